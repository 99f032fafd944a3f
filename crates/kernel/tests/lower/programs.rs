//! Random row programs with random mappings: what a user may write and the library doesn't have.

use tilewright_ir::DType;
use tilewright_ir::Program;
use tilewright_ir::analysis::facts;
use tilewright_ir::builder::ProgramBuilder;
use tilewright_ir::facts::{Family, ReductionFact};
use tilewright_ir::interp;
use tilewright_ir::program::*;
use tilewright_ir::verify::verify;
use tilewright_kernel::lower::{Options, Rule, lower, lower_any};
use tilewright_kernel::sim::Order;
use tilewright_kernel::validate::validate;
use tilewright_plan::mapping::{Mapping, RowMapping};

use crate::common::*;

/// Draws a program over rows of `n` columns: a few inputs of several kinds, a dozen operations
/// that stay well-conditioned, some of them reductions, and one to three outputs.
fn draw(random: &mut Random, n: u64) -> Program {
    let dtype = random.pick(&[DType::F32, DType::F32, DType::F64, DType::F16]);
    let compute = dtype.accumulator();
    let mut b = ProgramBuilder::new("drawn");
    let rows = b.dim("rows", DimKind::Symbolic { divisor: 1, max: 100 });
    let n = Extent::Const(n);
    let outer = random.below(2) == 0;
    let two = Extent::Const(2);
    let p = if outer { Some(b.grid("p", two, Extent::Const(1))) } else { None };
    let r = b.grid("r", rows, Extent::Const(1));
    let j = b.axis("j", n);
    let lead = |rest: Vec<Coord>| p.map(Coord::at).into_iter().chain(rest).collect::<Vec<_>>();
    let shape = |rest: &[Extent]| {
        p.map(|_| two).into_iter().chain(rest.iter().copied()).collect::<Vec<_>>()
    };
    let full = || vec![Coord::at(r), Coord::along(j)];
    let mut tiles = Vec::new();
    let mut scalars = Vec::new();
    for (i, name) in ["x", "z"].iter().enumerate().take(1 + random.below(2) as usize) {
        let t = b.tensor(name, Access::In, dtype, &shape(&[rows, n]));
        let v = b.load(t, lead(full()), Bounds::Assume);
        let v = b.cast(v, compute);
        tiles.push(v);
        if i == 0 && random.below(3) == 0 {
            // A neighbour: the row shifted by one, with a fill at the end.
            let shifted = Coord { origin: Origin::constant(1), axis: Some(j), gather: None };
            let v = b.load(t, lead(vec![Coord::at(r), shifted]), Bounds::Fill(0.25));
            tiles.push(b.cast(v, compute));
        }
    }
    let gamma = b.tensor("gamma", Access::In, dtype, &[n]);
    let v = b.load(gamma, vec![Coord::along(j)], Bounds::Assume);
    tiles.push(b.cast(v, compute));
    let per_row = b.tensor("w", Access::In, dtype, &[rows]);
    let v = b.load(per_row, vec![Coord::at(r)], Bounds::Assume);
    scalars.push(b.cast(v, compute));
    let mask = b.tensor("mask", Access::In, DType::I32, &shape(&[rows, n]));
    let mask = b.load(mask, lead(full()), Bounds::Assume);
    let zero = b.constant(0.0, DType::I32);
    let kept = b.map(MapOp::Ne, &[mask, zero]);
    let position = b.index(Origin::var(r), Some(j));
    let ten = b.constant(10.0, DType::I32);
    let early = b.map(MapOp::Lt, &[position, ten]);
    let one = b.constant(1.0, compute);
    for _ in 0..4 + random.below(9) {
        let operand = |b: &mut ProgramBuilder, random: &mut Random| {
            let scalar = !scalars.is_empty() && random.below(4) == 0;
            let v = if scalar { random.pick(&scalars) } else { random.pick(&tiles) };
            b.broadcast(v, &[j])
        };
        let (x, y) = (operand(&mut b, random), operand(&mut b, random));
        match random.below(9) {
            0 => {
                // A row scalar, kept in range.
                let fold = random.pick(&[ReduceOp::Add, ReduceOp::Max, ReduceOp::Min]);
                let order = random.pick(&[
                    OrderPolicy::UnorderedTree,
                    OrderPolicy::UnorderedTree,
                    OrderPolicy::OrderedTree,
                    OrderPolicy::FoldRight,
                ]);
                let s = b.reduce_ordered(fold, x, j, order);
                let size = b.size(n);
                let size = b.cast(size, compute);
                let size = b.map(MapOp::Add, &[size, one]);
                let s = if fold == ReduceOp::Add { b.map(MapOp::Div, &[s, size]) } else { s };
                scalars.push(s);
            }
            1 => {
                let products = b.map(MapOp::Mul, &[x, y]);
                let s = b.reduce(ReduceOp::Add, products, j);
                scalars.push(b.map(MapOp::Tanh, &[s]));
            }
            2 => tiles.push(b.map(MapOp::Select, &[kept, x, y])),
            3 => tiles.push(b.map(MapOp::Select, &[early, x, y])),
            4 => {
                let size = b.map(MapOp::Abs, &[y]);
                let size = b.map(MapOp::Add, &[size, one]);
                tiles.push(b.map(MapOp::Div, &[x, size]));
            }
            5 => tiles.push(b.map(MapOp::Tanh, &[x])),
            6 => {
                let product = b.map(MapOp::Mul, &[x, y]);
                tiles.push(b.map(MapOp::Tanh, &[product]));
            }
            7 => tiles.push(b.map(MapOp::Max, &[x, y])),
            _ => {
                let sum = b.map(MapOp::Sub, &[x, y]);
                tiles.push(b.map(MapOp::Tanh, &[sum]));
            }
        }
    }
    for (i, name) in ["y", "y2", "y3"].iter().enumerate().take(1 + random.below(3) as usize) {
        let per_row = i > 0 && random.below(2) == 0;
        let rest: &[Extent] = if per_row { &[rows] } else { &[rows, n] };
        let t = b.tensor(name, Access::Out, dtype, &shape(rest));
        let list = if per_row { &scalars } else { &tiles };
        let v = list[list.len() - 1 - random.below(list.len().min(3) as u64) as usize];
        let v = b.cast(v, dtype);
        let at = if per_row { vec![Coord::at(r)] } else { full() };
        b.store(t, lead(at), v, Bounds::Assume);
    }
    b.finish()
}

#[test]
fn random_programs() {
    for seed in 0..160 {
        let mut random = Random(seed * 0x1234_5678_9abc + 1);
        let n = random.pick(&[0, 1, 2, 15, 16, 17, 31, 64, 97, 130, 257]);
        let program = draw(&mut random, n);
        verify(&program).unwrap_or_else(|e| panic!("seed {seed}: {e:?}"));
        let facts = facts(&program);
        let Family::Rows(_) = facts.family else { panic!("seed {seed}: {:?}", facts.family) };
        let subgroups = random.pick(&[1, 1, 2, 3]);
        let unroll = random.pick(&[1, 2, 4]);
        let cluster = random.pick(&[1, 1, 1, 2, 4]);
        let m = RowMapping {
            lanes: random.pick(&[8, 16, 32]),
            subgroups,
            vector: random.pick(&[1, 1, 2, 4]),
            unroll,
            accumulators: random.pick(&[1, unroll]),
            pack: if subgroups == 1 && cluster == 1 { random.pick(&[1, 1, 3]) } else { 1 },
            cache: random.below(2) == 0,
            fuse: random.below(2) == 0,
            cluster,
            ahead: random.below(2) == 0,
            ..RowMapping::ONE
        };
        let context = format!("seed {seed}: {n} columns, {m:?}");
        let launch = launch(&program, &[("rows", 1 + random.below(4))], 0, seed);
        let dtype = program.tensors[program.tensor("x").unwrap()].dtype;
        let tolerance = Tolerance::rows(n, dtype);
        let orders = [Order::Forward, Order::Shuffled(seed)];
        let kernels = lower(&program, &facts, &Mapping::Rows(m), &Options::default())
            .unwrap_or_else(|e| panic!("{context}: {e}"));
        round_trips(&kernels.launches[0]);
        check(&program, &kernels, &launch, tolerance, &orders, &context);
        let any = lower_any(&program, m.lanes, &Options::default()).unwrap();
        check(&program, &any, &launch, tolerance, &orders[..1], &context);
    }
}

/// The same programs over several launches. Those with a reduction in a stated order are refused.
#[test]
fn random_programs_over_several_launches() {
    let mut ran = 0;
    for seed in 0..160 {
        let mut random = Random(seed * 0x1234_5678_9abc + 1);
        let n = random.pick(&[0, 1, 2, 15, 16, 17, 31, 64, 97, 130, 257]);
        let mut program = draw(&mut random, n);
        program.bind("rows", 1 + random.below(4)).unwrap();
        let facts = facts(&program);
        let Family::Rows(rows) = &facts.family else { panic!("seed {seed}: {:?}", facts.family) };
        let unroll = random.pick(&[1, 2, 4]);
        let m = RowMapping {
            lanes: random.pick(&[8, 16, 32]),
            subgroups: random.pick(&[1, 2, 3]),
            split: random.pick(&[2, 3, 5, 40]),
            vector: random.pick(&[1, 1, 2, 4]),
            unroll,
            accumulators: random.pick(&[1, unroll]),
            fuse: random.below(2) == 0,
            ..RowMapping::ONE
        };
        let context = format!("seed {seed}: {n} columns, {m:?}");
        let lowered = lower(&program, &facts, &Mapping::Rows(m), &Options::default());
        let stated = |r: &ReductionFact| {
            let free = OrderPolicy::UnorderedTree;
            !matches!(&program.ops[r.op].op, Op::Reduce { order, .. } if *order == free)
        };
        if rows.reductions.iter().any(stated) {
            assert_eq!(lowered.unwrap_err().rule, Rule::UnorderedReduction, "{context}");
            continue;
        }
        let lowered = lowered.unwrap_or_else(|e| panic!("{context}: {e}"));
        for kernel in &lowered.launches {
            validate(kernel).unwrap_or_else(|e| panic!("{context}: {}", e[0]));
            round_trips(kernel);
        }
        let launch = launch(&program, &[], 0, seed);
        let dtype = program.tensors[program.tensor("x").unwrap()].dtype;
        let expected = interp::magnitude(&program, &launch.bindings()).unwrap();
        for order in [Order::Forward, Order::Shuffled(seed)] {
            let found = simulate_all(&program, &lowered, &launch, order)
                .unwrap_or_else(|e| panic!("{context} {order:?}: {e}"));
            for output in &expected {
                compare(&program, output, &found[&output.name], Tolerance::rows(n, dtype))
                    .unwrap_or_else(|e| panic!("{context} {order:?}: {e}"));
            }
        }
        ran += 1;
    }
    assert!(ran >= 40, "only {ran} of 160 programs have no reduction in a stated order");
}

//! Random programs: they verify, survive the text form, and the interpreter gives what an
//! evaluator that shares nothing with it gives, element by element.

use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;
use tilewright_ir::builder::ProgramBuilder;
use tilewright_ir::interp::{self, Bindings, Options, scalar};
use tilewright_ir::oracle::{self, Case, Data};
use tilewright_ir::program::*;
use tilewright_ir::{DType, text, verify};

/// Choices of a program, consumed one by one; 0 once they run out.
struct Script<'a>(std::slice::Iter<'a, u8>);

impl Script<'_> {
    fn pick(&mut self, n: usize) -> usize {
        self.0.next().map_or(0, |x| *x as usize) % n.max(1)
    }
}

/// A program over rows and two axes that chains maps, casts, broadcasts, reductions and reindexes.
fn chain(script: &[u8], cols: u64) -> Program {
    let mut s = Script(script.iter());
    let mut b = ProgramBuilder::new("chain");
    let r = b.dim("rows", DimKind::Symbolic { divisor: 1, max: 100 });
    let n = match s.pick(2) {
        0 => b.dim("cols", DimKind::Static(cols)),
        _ => b.dim("cols", DimKind::Symbolic { divisor: 1, max: 100 }),
    };
    let three = Extent::Const(3);
    let dtype = [DType::F32, DType::F64, DType::F16, DType::BF16][s.pick(4)];
    let x = b.tensor("x", Access::In, dtype, &[r, n]);
    let w = b.tensor("w", Access::In, DType::F32, &[three, n]);
    let label = b.tensor("label", Access::In, DType::I32, &[r]);
    let y = b.tensor("y", Access::Out, DType::F32, &[r, n, three]);
    let axes = [b.axis("j", n), b.axis("k", three), b.axis("j2", n)];
    let [j, k, j2] = axes;
    let row = b.grid("r", r, Extent::Const(1));
    let scale = b.scalar("scale", DType::F32, false);

    let mut values = Vec::new();
    let shift = Origin { constant: s.pick(3) as i64 - 1, terms: vec![] };
    let at = Coord { origin: shift, axis: Some(j), gather: None };
    values.push(b.load(x, vec![Coord::at(row), at], Bounds::Fill(0.5)));
    values.push(b.load(w, vec![Coord::along(k), Coord::along(j2)], Bounds::Assume));
    let l = b.load(label, vec![Coord::at(row)], Bounds::Assume);
    values.push(b.load(w, vec![Coord::gathered(l), Coord::along(j)], Bounds::Fill(-2.0)));
    values.push(b.scalar_value(scale));
    values.push(b.size(n));
    values.push(b.index(Origin { constant: 2, terms: vec![(row, 3)] }, Some(j)));
    for _ in 0..s.pick(12) {
        let v = values[s.pick(values.len())];
        let ty = b.ty(v).clone();
        let value = match s.pick(7) {
            0 if ty.dtype.is_float() => {
                let ops = [MapOp::Neg, MapOp::Abs, MapOp::Exp, MapOp::Tanh, MapOp::Erf];
                b.map(ops[s.pick(5)], &[v])
            }
            1 | 2 if ty.dtype != DType::Bool => {
                let other = values[s.pick(values.len())];
                if b.ty(other).dtype == DType::Bool {
                    continue;
                }
                let other = b.cast(other, ty.dtype);
                let ops = [
                    MapOp::Add,
                    MapOp::Sub,
                    MapOp::Mul,
                    MapOp::Div,
                    MapOp::Max,
                    MapOp::MinNum,
                    MapOp::Lt,
                    MapOp::Ne,
                ];
                b.map(ops[s.pick(8)], &[v, other])
            }
            3 if ty.dtype == DType::Bool => {
                let other = values[s.pick(4)];
                b.map(MapOp::Select, &[v, other, other])
            }
            3 => b.cast(v, [DType::F32, DType::F64, DType::I32, DType::F16][s.pick(4)]),
            4 if !ty.axes.is_empty() && ty.dtype != DType::Bool => {
                let op = ReduceOp::ALL[s.pick(4)];
                let order = [OrderPolicy::UnorderedTree, OrderPolicy::FoldLeft][s.pick(2)];
                b.reduce_ordered(op, v, ty.axes[s.pick(ty.axes.len())], order)
            }
            5 if ty.axes.contains(&j) && !ty.axes.contains(&j2) => b.reindex(v, &[(j, j2)]),
            5 if ty.axes.contains(&j2) && !ty.axes.contains(&j) => b.reindex(v, &[(j2, j)]),
            _ => {
                let wanted: Vec<AxisId> = match s.pick(2) {
                    0 => axes.iter().rev().copied().collect(),
                    _ => ty.axes.iter().copied().chain([k]).collect(),
                };
                let mut wanted = wanted;
                wanted.dedup();
                if wanted.iter().enumerate().any(|(at, a)| wanted[..at].contains(a)) {
                    continue;
                }
                b.broadcast(v, &wanted)
            }
        };
        values.push(value);
    }
    // The last value, brought to the output's axes and dtype.
    let mut last = values.last().copied().unwrap_or(l);
    if b.ty(last).axes.contains(&j2) {
        last = match b.ty(last).dtype {
            DType::Bool => b.cast(last, DType::F32),
            _ => last,
        };
        last = b.reduce(ReduceOp::Max, last, j2);
    }
    let last = b.cast(last, DType::F32);
    let last = b.broadcast(last, &[k, j]);
    b.store(y, vec![Coord::at(row), Coord::along(j), Coord::along(k)], last, Bounds::Assume);
    b.finish()
}

/// One element of a value, straight from the definitions: no tiles, no strides.
struct Evaluator<'a> {
    program: &'a Program,
    sizes: HashMap<DimId, u64>,
    inputs: &'a BTreeMap<String, Vec<f64>>,
    scalar: f64,
}

type Env = HashMap<AxisId, i64>;

impl Evaluator<'_> {
    fn size(&self, extent: Extent) -> u64 {
        match extent {
            Extent::Const(n) => n,
            Extent::Dim(d) => self.sizes[&d],
        }
    }

    fn eval(&self, value: ValueId, env: &Env, row: i64) -> f64 {
        let op = self.program.definition(value).expect("no loops here");
        let ty = &self.program.values[value].ty;
        let eval = |v: ValueId| self.eval(v, env, row);
        let origin = |o: &Origin| o.constant + o.terms.iter().map(|(_, c)| c * row).sum::<i64>();
        match &self.program.ops[op].op {
            Op::Const { value } => *value,
            Op::Scalar(_) => self.scalar,
            Op::Size(e) => self.size(*e) as f64,
            Op::Index { origin: o, axis } => (origin(o) + axis.map_or(0, |a| env[&a])) as f64,
            Op::Load { tensor, coords, bounds } => {
                let tensor = &self.program.tensors[*tensor];
                let mut at = 0;
                for (coord, extent) in coords.iter().zip(&tensor.shape) {
                    let size = self.size(*extent) as i64;
                    let position = origin(&coord.origin)
                        + coord.axis.map_or(0, |a| env[&a])
                        + coord.gather.map_or(0, |g| eval(g) as i64);
                    if position < 0 || position >= size {
                        let Bounds::Fill(fill) = bounds else { panic!("out of bounds") };
                        return *fill;
                    }
                    at = at * size + position;
                }
                self.inputs[&tensor.name][at as usize]
            }
            Op::Map { op, args } => {
                let dtype = self.program.values[*args.last().expect("operands")].ty.dtype;
                let args: Vec<f64> = args.iter().map(|a| eval(*a)).collect();
                scalar::map(*op, dtype, &args)
            }
            Op::Cast(v) if ty.dtype == DType::I32 => DType::I32.round(eval(*v)),
            Op::Cast(v) | Op::Broadcast(v) => eval(*v),
            Op::Reduce { op, value, axis, .. } => {
                let mut env = env.clone();
                let mut total = op.identity(ty.dtype);
                for at in 0..self.size(self.program.axes[*axis].extent) as i64 {
                    env.insert(*axis, at);
                    let next = self.eval(*value, &env, row);
                    total = scalar::map(op.combine(), ty.dtype, &[total, next]);
                }
                total
            }
            Op::Reindex { value, axes } => {
                let mut env = env.clone();
                for (old, new) in axes {
                    let at = env[new];
                    env.insert(*old, at);
                }
                self.eval(*value, &env, row)
            }
            other => panic!("not in a chain: {other:?}"),
        }
    }
}

/// A program with loops, in-out tensors, strides and every kind of declaration.
fn looped(script: &[u8]) -> Program {
    let mut s = Script(script.iter());
    let mut b = ProgramBuilder::new("looped");
    let m = b.dim("m", DimKind::Symbolic { divisor: 1 + s.pick(2) as u64, max: 1 << 40 });
    let n = b.dim("n", DimKind::Static(s.pick(5) as u64));
    let k = b.dim("k", DimKind::Symbolic { divisor: 1, max: 1000 });
    let lda = b.dim("lda", DimKind::Symbolic { divisor: 8, max: 1000 });
    let bm = b.dim("bm", DimKind::Block { default: 1 + s.pick(5) as u64 });
    let bk = b.dim("bk", DimKind::Block { default: 1 + s.pick(5) as u64 });
    let dtype = [DType::F32, DType::F64, DType::F16, DType::BF16][s.pick(4)];
    let acc_type = dtype.accumulator();
    let a = b.tensor("a", Access::In, dtype, &[m, k]);
    b.strides(a, &[lda, Extent::Const(1)]);
    let w = b.tensor("b", Access::In, dtype, &[k, n]);
    let c = b.tensor("c", Access::InOut, acc_type, &[m, n]);
    let beta = b.scalar("beta", acc_type, s.pick(2) == 1);
    let (i, j, p) = (b.axis("i", bm), b.axis("j", n), b.axis("p", bk));
    let i0 = b.grid("i0", m, bm);
    let fill = [0.0, -0.0, f64::NEG_INFINITY, f64::NAN][s.pick(4)];
    let place = vec![Coord::tile(i0, i), Coord::along(j)];
    let old = b.load(c, place.clone(), Bounds::Fill(fill));
    let beta = b.scalar_value(beta);
    let mut init = vec![b.map(MapOp::Mul, &[old, beta])];
    for _ in 0..s.pick(3) {
        init.push(b.fill(s.pick(9) as f64 / 8.0, DType::F16, &[j, i]));
    }
    let kind = match s.pick(3) {
        0 => LoopKind::Serial,
        window => LoopKind::Pipeline { window: window as u32 },
    };
    let inner = s.pick(2) == 1;
    let steps = s.pick(3) as u64 + 1;
    let out = b.repeat(kind, "p0", k, bk, &init, |b, p0, carried| {
        let mut next = carried.to_vec();
        let x = b.load(a, vec![Coord::tile(i0, i), Coord::tile(p0, p)], Bounds::Fill(0.0));
        let y = b.load(w, vec![Coord::tile(p0, p), Coord::along(j)], Bounds::Fill(0.0));
        next[0] = b.mma(x, y, carried[0]);
        if inner {
            let (bound, one) = (Extent::Const(4), Extent::Const(steps));
            let inner = b.repeat(LoopKind::Serial, "q", bound, one, &next[1..], |b, q, carried| {
                let at = Origin { constant: -7, terms: vec![(p0, -2), (q, 1), (i0, 5)] };
                b.index(at, Some(p));
                carried.iter().rev().copied().collect()
            });
            next.splice(1.., inner);
        }
        next
    });
    let result = b.map(MapOp::Tanh, &[out[0]]);
    b.store(c, place, result, Bounds::Fill(0.0));
    b.finish()
}

fn survives_the_text_form(program: &Program) {
    assert_eq!(verify::verify(program), Ok(()), "{program}");
    let printed = text::print(program);
    let parsed = text::parse(&printed).unwrap_or_else(|e| panic!("{printed}\n{e:#?}"));
    assert_eq!(&parsed, program, "{printed}");
    assert_eq!(text::print(&parsed), printed);
}

fn close(a: f64, b: f64) -> bool {
    a.to_bits() == b.to_bits()
        || (a.is_nan() && b.is_nan())
        || a == b
        || (a - b).abs() <= 1e-11 * a.abs().max(b.abs()).max(1e-3)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn chains_survive_the_text_form_and_mean_what_they_say(
        script in prop::collection::vec(any::<u8>(), 0..80),
        rows in 0u64..4,
        cols in 0u64..5,
    ) {
        let program = chain(&script, cols);
        survives_the_text_form(&program);
        let case = Case {
            dims: [("rows".to_string(), rows), ("cols".to_string(), cols)].into(),
            scalars: [("scale".to_string(), 1.5)].into(),
            data: Data::Random,
            seed: rows * 10 + cols,
            magnitude: true,
        };
        let reference = oracle::compute(&program, &case).unwrap_or_else(|e| panic!("{program}\n{e}"));
        let sizes = program.dims.iter().map(|(id, d)| (id, case.dims[&d.name])).collect();
        let inputs = &reference.inputs;
        let evaluator = Evaluator { program: &program, sizes, inputs, scalar: 1.5 };
        let store = program.body.ops.last().copied().expect("a store");
        let Op::Store { value, coords, .. } = &program.ops[store].op else { panic!("a store") };
        let axis = |at: usize| coords[at].axis.expect("an axis");
        let out = &reference.outputs[0];
        for (n, got) in out.data.iter().enumerate() {
            let at = out.layout.index(n as u64);
            let env: Env = [(axis(1), at[1] as i64), (axis(2), at[2] as i64)].into();
            let want = evaluator.eval(*value, &env, at[0] as i64);
            prop_assert!(close(*got, want), "{program}\nat {at:?}: {got} for {want}");
            prop_assert!(out.magnitude[n] >= 0.0);
        }
    }

    #[test]
    fn loops_survive_the_text_form_and_fuse_to_the_same_sum(
        script in prop::collection::vec(any::<u8>(), 0..24),
        m in 0u64..9,
        k in 0u64..12,
    ) {
        let program = looped(&script);
        survives_the_text_form(&program);
        let case = Case {
            dims: [("m".to_string(), m * 2), ("k".to_string(), k), ("lda".to_string(), 16)].into(),
            scalars: [("beta".to_string(), 0.5)].into(),
            seed: m + k,
            ..Case::default()
        };
        let reference = oracle::compute(&program, &case).unwrap_or_else(|e| panic!("{program}\n{e}"));
        let mut bindings = Bindings { dims: case.dims, scalars: case.scalars, ..Bindings::new() };
        for (name, data) in &reference.inputs {
            bindings = bindings.tensor(name, data.as_slice());
        }
        let options = Options { plain: true, threads: 1, ..Options::default() };
        let plain = interp::run_with(&program, &bindings, &options).unwrap();
        let n = plain[0].layout.shape[1];
        for (at, (x, y)) in reference.outputs[0].data.iter().zip(&plain[0].data).enumerate() {
            prop_assert!(close(*x, *y), "{program}\n{x} {y}");
            // And both are the textbook sum.
            let (row, column) = (at as u64 / n.max(1), at as u64 % n.max(1));
            let mut sum = 0.5 * reference.inputs["c"][at];
            for p in 0..k {
                let a = reference.inputs["a"][(row * 16 + p) as usize];
                sum += a * reference.inputs["b"][(p * n + column) as usize];
            }
            prop_assert!(close(*x, libm::tanh(sum)), "{program}\n{x} {sum}");
        }
    }

    #[test]
    fn damaged_text_is_an_error_or_a_program_but_never_a_panic(
        script in prop::collection::vec(any::<u8>(), 0..40),
        damage in prop::collection::vec((any::<u16>(), 0usize..6, any::<u8>()), 1..6),
    ) {
        let mut source: Vec<u8> = match script.len() % 2 {
            0 => text::print(&looped(&script)).into_bytes(),
            _ => text::print(&chain(&script, 3)).into_bytes(),
        };
        for (at, kind, byte) in damage {
            let at = at as usize % source.len().max(1);
            let to = (at + byte as usize).min(source.len());
            match kind {
                0 => { source.remove(at); }
                1 => source.insert(at, b' ' + byte % 95),
                2 => { source.drain(at..to); }
                3 => { let copy = source[at..to].to_vec(); source.splice(at..at, copy); }
                4 => source.splice(at..at, *b" 99999999999999999999 ").for_each(drop),
                _ => source[at] = b"{}[]%:,=-\n"[byte as usize % 10],
            }
            if source.is_empty() {
                break;
            }
        }
        let source = String::from_utf8_lossy(&source).into_owned();
        match text::parse(&source) {
            Ok(program) => {
                let _ = verify::verify(&program);
                prop_assert_eq!(text::parse(&text::print(&program)), Ok(program));
            }
            Err(errors) => {
                prop_assert!(!errors.is_empty());
                for error in errors {
                    prop_assert!(error.loc.line >= 1 && error.loc.column >= 1);
                    prop_assert!(error.loc.line as usize <= source.lines().count() + 1);
                }
            }
        }
    }
}

#[test]
fn the_evaluator_sees_a_wrong_element() {
    // The comparison above can fail: one element off by one part in 10^9.
    assert!(!close(1.0, 1.0 + 1e-9));
    assert!(!close(f64::NAN, 0.0) && close(f64::NAN, f64::NAN));
}

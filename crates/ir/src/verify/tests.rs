use std::collections::BTreeSet;

use super::*;
use crate::builder::ProgramBuilder;
use crate::text::parse;
use crate::types::DType;

const DECLARATIONS: &str = "\
dim n: static 8
dim rows: symbolic max 100
dim bm: block 4
in x: f32[rows, n]
in w: f16[rows, n]
in lab: i32[rows]
inout c: f32[rows, n]
out y: f32[rows, n]
scalar s: f32
axis i: bm
axis j: n
axis j2: n
axis k: rows
grid r: rows step 1
";

const BODY: &str = "\
%x = load x[r, :j]
store y[r, :j], %x
";

fn verify_text(declarations: &str, body: &str) -> Vec<VerifyError> {
    let source = format!("program p {{\n{declarations}{body}}}\n");
    let program = parse(&source).unwrap_or_else(|e| panic!("{source}\n{e:#?}"));
    verify(&program).err().unwrap_or_default()
}

fn rules(errors: &[VerifyError]) -> BTreeSet<Rule> {
    errors.iter().map(|e| e.rule).collect()
}

/// Rule, a declaration line, a body line: added to the valid program above.
const TEXT: &[(Rule, &str, &str)] = &[
    (Rule::NameUnique, "dim n: static 8", ""),
    (Rule::NameUnique, "in s: f32[]", ""),
    (Rule::NameUnique, "axis j: n", ""),
    (Rule::NameUnique, "", "%x = exp %x"),
    (Rule::NameUnique, "", "for serial r in n step 1 {\n}"),
    (Rule::DimDivisor, "dim q: symbolic divisor 0 max 4", ""),
    (Rule::DimBlock, "dim q: block 0", ""),
    (Rule::SizeLimit, "dim q: static 281474976710657", ""),
    (Rule::SizeLimit, "axis q: 281474976710657", ""),
    (Rule::SizeLimit, "dim q: symbolic max 18446744073709551615", ""),
    (Rule::ParameterDtype, "scalar q: bool", ""),
    (Rule::TensorRank, "in q: f32[1, 1, 1, 1, 1, 1, 1, 1, 1]", ""),
    (Rule::TensorExtent, "in q: f32[bm]", ""),
    (Rule::TensorExtent, "in q: f32[n] strides [bm]", ""),
    (Rule::TensorStrides, "in q: f32[n, n] strides [1]", ""),
    (Rule::TensorStrides, "inout q: f32[n, n] strides [0, 1]", ""),
    (Rule::TensorAlign, "in q: f32[n] align 2", ""),
    (Rule::TensorAlign, "in q: f32[n] align 12", ""),
    (Rule::TensorAlign, "in q: f32[n] align 0", ""),
    (Rule::OutputUnwritten, "out q: f32[n]", ""),
    (Rule::IndexStep, "", "for serial q in n step 0 {\n}"),
    (Rule::Dominance, "", "for serial q in n step 1 {\n%e = exp %x\n}\n%f = exp %e"),
    (Rule::ResultType, "", "%e: f32[j2] = exp %x"),
    (Rule::ResultType, "", "%e: f64[j] = exp %x"),
    (Rule::ResultType, "", "%e: f32[j] = lt %x, %x"),
    (Rule::ResultType, "", "%e: f32[j, i] = load x[r, :j]"),
    (Rule::ResultType, "", "%e: i32[] = scalar s"),
    (Rule::SizeRange, "dim q: symbolic max 2147483648", "%e = size q"),
    (Rule::OriginTerms, "", "%e = load x[r + r, :j] fill 0"),
    (Rule::OriginTerms, "", "%e = index 0*r"),
    (Rule::ConstValue, "", "%e = const 0.1 f32"),
    (Rule::ConstValue, "", "%e = const 1e5 f16"),
    (Rule::ConstValue, "", "%e = const 0.5 i32"),
    (Rule::ConstValue, "", "%e = const 2147483648 i32"),
    (Rule::ConstValue, "", "%e = const nan i32"),
    (Rule::ConstValue, "", "%e = const 2 bool"),
    (Rule::FillValue, "", "%e = load x[r, :j] fill 0.1"),
    (Rule::LoadAccess, "", "%e = load y[r, :j]"),
    (Rule::StoreAccess, "", "store x[r, :j], %x"),
    (Rule::CoordCount, "", "%e = load x[:j]"),
    (Rule::CoordCount, "", "%e = load x[r, 0, :j]"),
    (Rule::GatherDtype, "", "%e = load x[%x, 0]"),
    (Rule::StoreGather, "", "%l = load lab[r]\nstore c[%l, :j], %x"),
    (Rule::StoreDtype, "", "%h = cast %x to f16\nstore c[r, :j], %h"),
    (Rule::StoreAxes, "", "store c[r, 0], %x"),
    (Rule::StoreAxes, "", "store c[:j, :j], %x"),
    (Rule::StoreAxes, "", "store c[r, :j2], %x"),
    (Rule::AssumedBounds, "", "%e = load x[r, 1:j]"),
    (Rule::AssumedBounds, "", "%e = load x[r, -1]"),
    (Rule::AssumedBounds, "", "for serial q in n step 3 {\nstore c[r, q + 2], %s2\n}"),
    (Rule::MapDtype, "", "%h = cast %x to f16\n%e = add %x, %h"),
    (Rule::MapDtype, "", "%e = and %x, %x"),
    (Rule::MapDtype, "", "%l = load lab[r]\n%e = exp %l"),
    (Rule::MapDtype, "", "%b = lt %x, %x\n%e = add %b, %b"),
    (Rule::MapDtype, "", "%b = lt %x, %x\n%e = lt %b, %b"),
    (Rule::MapDtype, "", "%e = select %x, %x, %x"),
    (Rule::MapDtype, "", "%b = lt %x, %x\n%h = cast %x to f16\n%e = select %b, %x, %h"),
    (Rule::MapAxes, "", "%e = add %x, %s2"),
    (Rule::MapAxes, "", "%y2 = load x[r, :j2]\n%e = add %x, %y2"),
    (Rule::CastBool, "", "%b = cast %x to bool"),
    (Rule::BroadcastAxes, "", "%e = broadcast %x to [i]"),
    (Rule::ReduceAxis, "", "%e: f32[j] = reduce add %x over i"),
    (Rule::ReduceDtype, "", "%b = lt %x, %x\n%e = reduce max %b over j"),
    (Rule::AxesDistinct, "", "%e = broadcast %x to [j, j]"),
    // f32 operands into an f16 accumulator; f16 and f32 mixed; i32.
    (
        Rule::MmaDtype,
        "",
        "%a = load w[:k, 0]\n%b = load w[:k, :j] fill 0\n%z = const 0 f16\n%zb = broadcast %z to [j]\n\
         %e = mma %a, %b, %zb",
    ),
    (Rule::MmaDtype, "", "%a = load w[:k, 0]\n%b = load x[:k, :j]\n%e = mma %a, %b, %x"),
    (Rule::MmaDtype, "", "%a = load lab[:k]\n%z = const 0 i32\n%e = mma %a, %a, %z"),
    // Contracted axis in one operand; nothing contracted; accumulator axis in neither.
    (Rule::MmaAxes, "", "%a = load x[:k, 0]\n%e = mma %a, %x, %x"),
    (Rule::MmaAxes, "", "%e = mma %x, %x, %x"),
    (
        Rule::MmaAxes,
        "",
        "%a = load x[:k, 0]\n%b = load x[:k, :j2]\n%z = broadcast %s2 to [j, j2]\n%e = mma %a, %b, %z",
    ),
    (Rule::ReindexAxes, "", "%e: f32[j] = reindex %x [i -> i]"),
    (Rule::ReindexAxes, "", "%e = reindex %x [j -> k]"),
    (Rule::ReindexAxes, "", "%t = broadcast %x to [j, j2]\n%e: f32[j2, j] = reindex %t [j -> j2]"),
    (Rule::LoopWindow, "", "for pipeline 0 q in n step 1 {\n}"),
    (
        Rule::LoopCarry,
        "",
        "%e = for serial q in n step 1 carry %a = %x {\n%h = cast %a to f16\nyield %h\n}",
    ),
    (Rule::LoopCarry, "", "%e = for serial q in n step 1 carry %a = %x {\nyield %s2\n}"),
    (Rule::LoopCarry, "", "%e: f64[j] = for serial q in n step 1 carry %a = %x {\nyield %a\n}"),
];

/// A valid program with one loop, for the rules that no text can break.
fn looped() -> (Program, OpId, ValueId) {
    let mut b = ProgramBuilder::new("p");
    let n = Extent::Const(8);
    let y = b.tensor("y", Access::Out, DType::F32, &[n]);
    let r = b.grid("r", n, Extent::Const(1));
    let zero = b.constant(0.0, DType::F32);
    let out = b.repeat(LoopKind::Serial, "q", n, Extent::Const(1), &[zero], |b, _, acc| {
        vec![b.map(MapOp::Exp, &[acc[0]])]
    });
    b.store(y, vec![Coord::at(r)], out[0], Bounds::Assume);
    let program = b.finish();
    let id = program.body.ops[1];
    (program, id, zero)
}

/// Rule and what is done to [`looped`].
type Mutation = fn(&mut Program, OpId, ValueId);
const MUTATIONS: &[(Rule, Mutation)] = &[
    (Rule::DanglingId, |p, _, _| p.grid.push(IndexId::from_index(99))),
    (Rule::DanglingId, |p, _, _| p.body.ops.push(OpId::from_index(99))),
    (Rule::DanglingId, |p, _, zero| p.values[zero].ty.axes.push(AxisId::from_index(9))),
    (Rule::DanglingId, |p, op, _| {
        if let Op::Loop { carries, .. } = &mut p.ops[op].op {
            carries[0].next = ValueId::from_index(99);
        }
    }),
    (Rule::DanglingId, |p, _, _| {
        p.tensors.iter_mut().for_each(|(_, t)| t.shape = vec![Extent::Dim(DimId::from_index(3))])
    }),
    (Rule::OpPlacement, |p, op, _| p.body.ops.push(op)),
    (Rule::OpPlacement, |p, _, _| {
        let data = p.ops[p.body.ops[0]].clone();
        p.ops.push(data);
    }),
    // A loop inside itself.
    (Rule::OpPlacement, |p, op, _| {
        if let Op::Loop { body, .. } = &mut p.ops[op].op {
            body.ops.push(op);
        }
    }),
    (Rule::Nesting, |p, op, _| {
        for level in 0..16 {
            let Op::Loop { index, .. } = p.ops[op].op else { return };
            let name = format!("q{level}");
            let index = p.indices.push(IndexVar { name, ..p.indices[index].clone() });
            let body = std::mem::take(&mut p.body);
            let op = Op::Loop { kind: LoopKind::Serial, index, carries: vec![], body };
            let id = p.ops.push(OpData { op, results: vec![], loc: Loc::default() });
            p.body.ops.push(id);
        }
    }),
    (Rule::NameForm, |p, _, _| p.name = "two words".to_string()),
    (Rule::NameForm, |p, _, _| p.name = "1st".to_string()),
    (Rule::NameForm, |p, _, zero| p.values[zero].name = "n".repeat(129)),
    (Rule::NameForm, |p, _, zero| p.values[zero].name = String::new()),
    (Rule::ParameterDtype, |p, _, _| {
        let tensor = Tensor {
            name: "b".to_string(),
            dtype: DType::Bool,
            shape: vec![],
            strides: Strides::Packed,
            align: 1,
            access: Access::In,
        };
        p.tensors.push(tensor);
    }),
    (Rule::IndexOwner, |p, _, _| p.grid.push(p.grid[0])),
    (Rule::IndexOwner, |p, op, _| {
        if let Op::Loop { index, .. } = &p.ops[op].op {
            let index = *index;
            p.grid.push(index);
        }
    }),
    (Rule::IndexOwner, |p, _, _| {
        let var = p.indices[p.grid[0]].clone();
        p.indices.push(IndexVar { name: "stray".to_string(), ..var });
    }),
    (Rule::IndexScope, |p, op, _| {
        if let (Op::Loop { index, .. }, Some(last)) = (&p.ops[op].op, p.body.ops.last()) {
            let (index, last) = (*index, *last);
            if let Op::Store { coords, .. } = &mut p.ops[last].op {
                coords[0].origin = Origin::var(index);
            }
        }
    }),
    (Rule::ResultCount, |p, op, zero| {
        if let Op::Loop { carries, .. } = &mut p.ops[op].op {
            let inner = p.values.push(Value { name: "more".to_string(), ..p.values[zero].clone() });
            carries.push(Carry { init: zero, inner, next: inner });
        }
    }),
    (Rule::SingleDefinition, |p, _, zero| {
        let data =
            OpData { op: Op::Const { value: 0.0 }, results: vec![zero], loc: Loc::default() };
        let id = p.ops.push(data);
        p.body.ops.push(id);
    }),
    (Rule::SingleDefinition, |p, _, zero| {
        p.values.push(Value { name: "never".to_string(), ..p.values[zero].clone() });
    }),
    (Rule::Dominance, |p, _, _| p.body.ops.swap(0, 1)),
    (Rule::FillValue, |p, _, _| {
        let last = p.body.ops[2];
        if let Op::Store { bounds, .. } = &mut p.ops[last].op {
            *bounds = Bounds::Fill(-0.0);
        }
    }),
    (Rule::MapArity, |p, _, zero| {
        let value = p.values.push(Value { name: "sum".to_string(), ..p.values[zero].clone() });
        let op = Op::Map { op: MapOp::Add, args: vec![zero] };
        let id = p.ops.push(OpData { op, results: vec![value], loc: Loc::default() });
        p.body.ops.push(id);
    }),
    (Rule::TileRank, |p, _, zero| {
        for at in 0..17 {
            let axis = Axis { name: format!("a{at}"), extent: Extent::Const(1) };
            let axis = p.axes.push(axis);
            p.values[zero].ty.axes.push(axis);
        }
    }),
];

#[test]
fn the_base_programs_are_valid() {
    assert_eq!(verify_text(DECLARATIONS, BODY), []);
    assert_eq!(verify(&looped().0), Ok(()));
}

#[test]
fn each_text_breaks_exactly_its_rule() {
    for (rule, declaration, line) in TEXT {
        let line = line.replace('\n', "\n  ");
        // A scalar tile for those who want one.
        let body = format!("%s2 = scalar s\n{BODY}{line}\n");
        let errors = verify_text(&format!("{DECLARATIONS}{declaration}\n"), &body);
        let found = rules(&errors);
        let shown: Vec<String> = errors.iter().map(|e| e.to_string()).collect();
        assert_eq!(found, BTreeSet::from([*rule]), "{declaration} {line}\n{shown:#?}");
        for error in &errors {
            assert!(error.message.len() > 20, "{error}");
            if let Place::Op(_) = error.place {
                assert!(error.loc.line > 0, "{error}");
            }
        }
    }
}

#[test]
fn each_mutation_breaks_exactly_its_rule() {
    for (at, (rule, mutate)) in MUTATIONS.iter().enumerate() {
        let (mut program, op, zero) = looped();
        mutate(&mut program, op, zero);
        let errors = verify(&program).err().unwrap_or_default();
        assert_eq!(rules(&errors), BTreeSet::from([*rule]), "mutation {at}: {errors:#?}");
        // The printer shows a broken program without failing.
        assert!(!crate::text::print(&program).is_empty());
    }
}

#[test]
fn every_rule_is_triggered() {
    let tested: BTreeSet<Rule> =
        TEXT.iter().map(|t| t.0).chain(MUTATIONS.iter().map(|m| m.0)).collect();
    assert_eq!(tested, Rule::ALL.iter().copied().collect());
    let names: BTreeSet<&str> = Rule::ALL.iter().map(|r| r.name()).collect();
    assert_eq!(names.len(), Rule::ALL.len());
    assert!(Rule::ALL.iter().all(|r| !r.text().is_empty() && r.text().ends_with('.')));
}

#[test]
fn valid_special_cases() {
    let valid = [
        // A diagonal is read once per position.
        ("in q: f32[n, n]", "%e = load q[:j, :j]"),
        // A stride of 0 repeats an input.
        ("in q: f32[n, n] strides [0, 1]", "%e = load q[:j, :j2]"),
        // Any block could be chosen, and a fill makes every coordinate legal.
        ("in q: f32[n]", "%e = load q[:i]"),
        ("in q: f32[n]", "%e = load q[100:j] fill 0"),
        // Nothing is accessed.
        ("axis none: 0", "%e = load x[r, 100:none]"),
        ("", "for serial q in 0 step 1 {\n%e = load x[r, q + 100]\n}"),
        // A batch axis is in all three.
        ("", "%a = load x[:k, :j]\n%e = mma %a, %a, %x"),
        (
            "",
            "%e = reindex %x [j -> j2]\n%t = broadcast %x to [j, j2]\n\
              %u = reindex %t [j -> j2, j2 -> j]",
        ),
        ("", "%b = lt %x, %x\n%e = eq %b, %b\n%f = select %b, %e, %b\n%g = cast %b to f32"),
        // Two loops one after another may share a name.
        ("", "for serial q in n step 1 {\n}\nfor serial q in n step 1 {\n}"),
    ];
    for (declaration, line) in valid {
        let body = format!("{BODY}{line}\n");
        let errors = verify_text(&format!("{DECLARATIONS}{declaration}\n"), &body);
        assert_eq!(errors, [], "{declaration} {line}");
    }
}

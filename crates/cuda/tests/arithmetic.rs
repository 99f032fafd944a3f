//! What emitted arithmetic computes: a reader of straight-line PTX runs it on the CPU, with the
//! approximate instructions at the ends of their documented errors (PTX ISA: `ex2.approx` 2^-22,
//! `rcp.approx` one unit in the last place, `sqrt.approx` 2^-23).

use std::collections::HashMap;

use tilewright_cuda::{PtxTarget, emit};
use tilewright_ir::DType;
use tilewright_ir::program::{Access, MapOp};
use tilewright_kernel::builder::KernelBuilder;
use tilewright_kernel::kernel::{ArgSource, Elem, Guard, Memory, Place, Size};

/// z = op(x) or op(x, s) with s uniform over the warp.
fn text(op: MapOp, shared: bool) -> String {
    let mut b = KernelBuilder::new("one", 32, 1);
    let x = b.buffer("x", DType::F32, Access::In, 4, ArgSource::Free);
    let s = b.buffer("s", DType::F32, Access::In, 4, ArgSource::Free);
    let z = b.buffer("z", DType::F32, Access::Out, 4, ArgSource::Free);
    b.grid(Size::Const(1), 1);
    let zero = b.int(0);
    let place = |memory, stride| Place::strided(memory, zero, stride);
    let own = b.load1(place(Memory::Global(x), 1), None);
    let uniform = b.load1(place(Memory::Global(s), 0), None);
    let args = match (op.arity(), shared) {
        (1, true) => vec![uniform],
        (1, false) => vec![own],
        _ => vec![own, uniform],
    };
    let out = b.map(op, &args);
    b.store(place(Memory::Global(z), 1), &[out], None::<Guard>);
    emit(&b.finish(), PtxTarget::BASE).unwrap().text
}

fn flush(v: f32) -> f32 {
    if v.is_subnormal() { 0.0f32.copysign(v) } else { v }
}

/// Runs the text for one lane. `lean` shifts approximate results by that part of their error.
fn run(text: &str, x: f32, s: f32, lean: f64) -> f32 {
    let mut regs: HashMap<String, u32> = HashMap::new();
    let mut loads = [x, s].into_iter();
    for line in text.lines().map(str::trim) {
        let Some((name, rest)) = line.trim_end_matches(';').split_once(' ') else { continue };
        let args: Vec<&str> = rest.split(", ").collect();
        let bits = |i: usize| -> u32 {
            let a = args[i];
            match a.strip_prefix("0f") {
                Some(hex) => u32::from_str_radix(hex, 16).unwrap(),
                None => regs.get(a).copied().unwrap_or_else(|| a.parse().unwrap()),
            }
        };
        let v = |i: usize| f32::from_bits(bits(i));
        let approximate = |exact: f64, error: f64| (exact * (1.0 + lean * error)) as f32;
        let value = match name {
            "ld.global.nc.f32" => loads.next().unwrap(),
            "st.global.f32" => return v(1),
            "mov.f32" | "mov.b32" => v(1),
            "neg.f32" => -v(1),
            "abs.f32" => v(1).abs(),
            "add.rn.f32" => v(1) + v(2),
            "sub.rn.f32" => v(1) - v(2),
            "mul.rn.f32" => v(1) * v(2),
            "fma.rn.f32" => v(1).mul_add(v(2), v(3)),
            "fma.rn.sat.f32" => {
                let r = v(1).mul_add(v(2), v(3));
                if r.is_nan() { 0.0 } else { r.clamp(0.0, 1.0) }
            }
            // Only used where the result is an integer between 2^23 and 2^24.
            "fma.rm.f32" => ((f64::from(v(1)) * f64::from(v(2))).floor() + f64::from(v(3))) as f32,
            "ex2.approx.ftz.f32" => {
                flush(approximate(f64::from(flush(v(1))).exp2(), 2f64.powi(-22)))
            }
            "rcp.approx.ftz.f32" => {
                flush(approximate(1.0 / f64::from(flush(v(1))), 2f64.powi(-23)))
            }
            "sqrt.approx.f32" => approximate(f64::from(v(1)).sqrt(), 2f64.powi(-23)),
            "shl.b32" => f32::from_bits(bits(1) << bits(2)),
            "selp.f32" => f32::from_bits(if bits(3) != 0 { bits(1) } else { bits(2) }),
            "setp.lt.f32" => f32::from_bits(u32::from(v(1) < v(2))),
            "setp.gt.f32" => f32::from_bits(u32::from(v(1) > v(2))),
            _ => continue,
        };
        regs.insert(args[0].to_string(), value.to_bits());
    }
    panic!("nothing is stored:\n{text}")
}

/// The error in units of 2^-24 of the reference, or of half the smallest number.
fn roundoffs(found: f32, exact: f64) -> f64 {
    let rounded = exact as f32;
    if found == rounded || found.is_nan() && exact.is_nan() {
        return 0.0;
    }
    (f64::from(found) - exact).abs() / (exact.abs() * 2f64.powi(-24)).max(2f64.powi(-150))
}

#[test]
fn the_exponential_is_good_to_a_few_units_everywhere() {
    let text = text(MapOp::Exp, false);
    let mut worst = 0.0f64;
    for lean in [-1.0, 0.0, 1.0] {
        for i in -110_000..100_000 {
            let x = i as f32 * 1e-3 + 1e-5 * (i % 7) as f32;
            let exact = f64::from(x).exp();
            let found = run(&text, x, 0.0, lean);
            if exact < f64::from(f32::MAX) {
                worst = worst.max(roundoffs(found, exact));
            } else if exact > f64::from(f32::MAX) * 1.000001 {
                assert_eq!(found, f32::INFINITY, "{x}");
            }
        }
    }
    // 4 from the power, and what the rest of the product, the scaling and the leaning round.
    assert!(worst < 7.0, "{worst}");
    for lean in [-1.0, 1.0] {
        assert_eq!(run(&text, f32::NEG_INFINITY, 0.0, lean), 0.0);
        assert_eq!(run(&text, -1e30, 0.0, lean), 0.0);
        assert_eq!(run(&text, f32::INFINITY, 0.0, lean), f32::INFINITY);
        assert_eq!(run(&text, 1e30, 0.0, lean), f32::INFINITY);
        assert!(run(&text, f32::NAN, 0.0, lean).is_nan());
    }
    assert_eq!(run(&text, 0.0, 0.0, 0.0), 1.0);
}

/// Into bf16, a softmax-like exponential may be coarse: within (1.25·|x| + 12)·2^-24.
#[test]
fn the_coarse_exponential_keeps_its_bound() {
    let mut b = KernelBuilder::new("one", 32, 1);
    let x = b.buffer("x", DType::F32, Access::In, 4, ArgSource::Free);
    let s = b.buffer("s", DType::F32, Access::In, 4, ArgSource::Free);
    let z = b.buffer("z", DType::BF16, Access::Out, 4, ArgSource::Free);
    b.grid(Size::Const(1), 1);
    let zero = b.int(0);
    let own = b.load1(Place::strided(Memory::Global(x), zero, 1), None);
    let most = b.load1(Place::strided(Memory::Global(s), zero, 0), None);
    let offset = b.map(MapOp::Sub, &[own, most]);
    let e = b.map(MapOp::Exp, &[offset]);
    let narrow = b.cast(e, Elem::Data(DType::BF16));
    b.store(Place::strided(Memory::Global(z), zero, 1), &[narrow], None::<Guard>);
    let text = emit(&b.finish(), PtxTarget::BASE).unwrap().text;
    assert!(!text.contains("fma"), "{text}");
    // The reader stops at the rounding: what it is given is what is compared.
    let text = text.replace("cvt.rn.bf16.f32 %h0,", "st.global.f32 [z],");
    for lean in [-1.0, 0.0, 1.0] {
        for i in -103_000..88_700 {
            let x = i as f32 * 1e-3 + 1e-5 * (i % 7) as f32;
            let error = roundoffs(run(&text, x, 0.0, lean), f64::from(x).exp());
            assert!(error <= 1.25 * f64::from(x.abs()) + 12.0, "{x}: {error}");
        }
        assert_eq!(run(&text, f32::NEG_INFINITY, 0.0, lean), 0.0);
        assert!(run(&text, f32::INFINITY, f32::INFINITY, lean).is_nan());
    }
}

#[test]
fn division_by_a_shared_value_holds_over_the_whole_range() {
    let text = text(MapOp::Div, true);
    let numbers: Vec<f32> = (-149..128)
        .flat_map(|e| [1.0f64, 1.3, 1.999_999].map(|m| (m * 2f64.powi(e)) as f32))
        .collect();
    let mut worst = 0.0f64;
    for lean in [-1.0, 1.0] {
        for s in &numbers {
            for x in numbers.iter().step_by(5) {
                let exact = f64::from(*x) / f64::from(*s);
                let found = run(&text, *x, -*s, lean);
                if exact < f64::from(f32::MAX) * 0.999_999 {
                    worst = worst.max(roundoffs(-found, exact));
                }
            }
        }
        for (x, s) in [(1.0, 0.0), (0.0, 0.0), (f32::INFINITY, f32::INFINITY), (1.0, f32::NAN)] {
            let (found, exact) = (run(&text, x, s, lean), x / s);
            assert!(found == exact || found.is_nan() && exact.is_nan(), "{x}/{s} = {found}");
        }
        assert_eq!(run(&text, 3.0, f32::INFINITY, lean), 0.0);
        assert_eq!(run(&text, 3.0, f32::NEG_INFINITY, lean).to_bits(), (-0.0f32).to_bits());
    }
    // 2 from the reciprocal, 1 from the product, and what the leaning itself rounds.
    assert!(worst <= 4.0, "{worst}");
}

#[test]
fn only_shared_roots_are_approximate() {
    assert!(text(MapOp::Sqrt, true).contains("sqrt.approx.f32"));
    assert!(text(MapOp::Sqrt, false).contains("sqrt.rn.f32"));
}

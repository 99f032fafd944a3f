//! The op library: every op verifies, and `kernels/*.tile` holds its text.

use std::path::PathBuf;

use tilewright_ir::ops::{self, EpilogueStep, OpError, OpRequest, ShapeForm, Trans};
use tilewright_ir::program::{Access, Extent, Op};
use tilewright_ir::{DType, text, verify};

/// `kernels/NAME.tile` is the printed generic f32 program. `TILEWRIGHT_BLESS=1` rewrites it.
#[test]
fn kernel_texts_are_the_library() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../kernels");
    let bless = std::env::var_os("TILEWRIGHT_BLESS").is_some();
    for op in ops::catalog() {
        let program = op.build(&OpRequest::generic(DType::F32)).unwrap();
        let printed = format!("// {}\n{}", op.doc, text::print(&program));
        let path = folder.join(format!("{}.tile", op.name));
        if bless {
            std::fs::write(&path, &printed).unwrap();
        }
        let file = std::fs::read_to_string(&path)
            .unwrap_or_else(|e| panic!("{}: {e}; TILEWRIGHT_BLESS=1 writes it", path.display()));
        assert_eq!(file, printed, "{} is stale; TILEWRIGHT_BLESS=1 rewrites it", path.display());
        assert_eq!(text::parse(&file).unwrap(), program, "{}", op.name);
    }
}

/// Every combination of options gives a program that verifies and survives its text form.
#[test]
fn every_program_verifies() {
    let check = |name: &str, request: &OpRequest| {
        let program = ops::build(name, request).unwrap_or_else(|e| panic!("{name}: {e}"));
        verify::verify(&program).unwrap_or_else(|e| panic!("{name} {request:?}: {e:?}"));
        let printed = text::print(&program);
        let parsed = text::parse(&printed).unwrap_or_else(|e| panic!("{name}: {e:?}\n{printed}"));
        assert_eq!(parsed, program, "{printed}");
        program
    };
    for op in ops::catalog() {
        let sizes: Vec<u64> = op.form.dims().iter().map(|_| 37).collect();
        for dtype in ops::FLOATS {
            for strided in [false, true] {
                for shape in [&[], sizes.as_slice()] {
                    let request = OpRequest { strided, ..OpRequest::shaped(dtype, shape) };
                    check(op.name, &request);
                }
                if op.form == ShapeForm::Rows {
                    continue;
                }
                for trans in Trans::ALL {
                    for (alpha, beta) in
                        [0.0, 1.0, 0.5].map(|a| [0.0, 1.0, 0.5].map(|b| (a, b))).concat()
                    {
                        let request = OpRequest {
                            strided,
                            trans,
                            alpha,
                            beta,
                            output: Some(dtype.accumulator()),
                            epilogue: EpilogueStep::ALL
                                .iter()
                                .chain(&EpilogueStep::ALL)
                                .copied()
                                .collect(),
                            ..OpRequest::generic(dtype)
                        };
                        let program = check(op.name, &request);
                        let reads_c = beta != 0.0;
                        let c = program.tensor("c").unwrap();
                        assert_eq!(program.tensors[c].access == Access::InOut, reads_c);
                        for (name, read) in
                            [("a", alpha != 0.0), ("b", alpha != 0.0), ("c", reads_c)]
                        {
                            let tensor = program.tensor(name).unwrap();
                            let loaded = program.ops.iter().any(
                                |(_, op)| matches!(op.op, Op::Load { tensor: t, .. } if t == tensor),
                            );
                            assert_eq!(loaded, read, "{name} with alpha {alpha}, beta {beta}");
                        }
                        for (name, factor) in [("alpha", alpha), ("beta", beta)] {
                            let scalar = program.scalars.iter().find(|(_, s)| s.name == name);
                            assert_eq!(scalar.is_some(), factor == 0.5, "{name} {factor}");
                            assert!(scalar.is_none_or(|(_, s)| s.nonzero));
                        }
                    }
                }
            }
        }
    }
}

/// A shape binds its dimensions in order; `dynamic` leaves rows, M and batch symbolic.
#[test]
fn shapes_bind() {
    let sizes = |name: &str, shape: &[u64], dynamic: bool| {
        let request = OpRequest { dynamic, ..OpRequest::shaped(DType::F32, shape) };
        let program = ops::build(name, &request).unwrap();
        ops::find(name)
            .unwrap()
            .form
            .dims()
            .iter()
            .map(|d| program.known(Extent::Dim(program.dim(d).unwrap())))
            .collect::<Vec<_>>()
    };
    assert_eq!(sizes("softmax", &[3, 5], false), [Some(3), Some(5)]);
    assert_eq!(sizes("softmax", &[3, 5], true), [None, Some(5)]);
    assert_eq!(sizes("bgemm", &[2, 3, 4, 0], false), [Some(2), Some(3), Some(4), Some(0)]);
    assert_eq!(sizes("bgemm", &[2, 3, 4, 0], true), [None, None, Some(4), Some(0)]);
}

/// Each bad request has its own error, which names what would be right.
#[test]
fn bad_requests() {
    let plain = OpRequest::generic(DType::F32);
    let error = |name: &str, request: OpRequest| ops::build(name, &request).unwrap_err();
    let text = error("sofmax", plain.clone()).to_string();
    assert!(text.contains("sofmax") && text.contains("masked_softmax"), "{text}");
    for op in ops::catalog() {
        for dtype in [DType::I32, DType::Bool] {
            let error = error(op.name, OpRequest::generic(dtype));
            assert!(matches!(error, OpError::Dtype { .. }), "{error}");
            assert!(error.to_string().contains("f32, f64, f16, bf16"), "{error}");
        }
        let error = error(op.name, OpRequest::shaped(DType::F32, &[1, 2, 3, 4, 5]));
        assert!(matches!(error, OpError::ShapeLength { got: 5, .. }), "{error}");
        assert!(error.to_string().contains(op.form.text()), "{error}");
    }
    let too_long = error("softmax", OpRequest::shaped(DType::F32, &[1, 1 << 31]));
    assert!(matches!(too_long, OpError::Size(_)), "{too_long}");
    let output = error("gemm", OpRequest { output: Some(DType::F64), ..plain.clone() });
    assert!(matches!(output, OpError::Output { .. }), "{output}");
    for (request, option) in [
        (OpRequest { trans: Trans::Nt, ..plain.clone() }, "transposition"),
        (OpRequest { alpha: 0.5, ..plain.clone() }, "alpha"),
        (OpRequest { beta: 0.5, ..plain.clone() }, "beta"),
        (OpRequest { epilogue: vec![EpilogueStep::Relu], ..plain.clone() }, "epilogue"),
        (OpRequest { output: Some(DType::F64), ..plain.clone() }, "output dtype"),
    ] {
        let error = error("softmax", request);
        assert!(matches!(error, OpError::Option { option: o, .. } if o == option), "{error}");
    }
    for (alpha, beta, bad) in [(f64::NAN, 0.0, "alpha"), (1.0, f64::INFINITY, "beta")] {
        let error = error("gemm", OpRequest { alpha, beta, ..plain.clone() });
        assert!(matches!(error, OpError::Factor { name, .. } if name == bad), "{error}");
    }
    assert!("tnn".parse::<Trans>().is_err() && "tanh".parse::<EpilogueStep>().is_err());
    for trans in Trans::ALL {
        assert_eq!(trans.name().parse(), Ok(trans));
    }
    for step in EpilogueStep::ALL {
        assert_eq!(step.name().parse(), Ok(step));
    }
}

#[test]
fn shape_texts() {
    assert_eq!(ops::parse_shape("37x1537"), Ok(vec![37, 1537]));
    assert_eq!(ops::parse_shape("0"), Ok(vec![0]));
    assert_eq!(ops::parse_shape("2147483647x1"), Ok(vec![2147483647, 1]));
    for bad in [
        "",
        "x",
        "3x",
        "x3",
        "3xx4",
        "-1x2",
        "3X4",
        "1.5x2",
        "٣x4",
        "2147483648",
        "99999999999999999999999x1",
    ] {
        let error = ops::parse_shape(bad).unwrap_err();
        assert!(matches!(error, OpError::ShapeText { .. }), "{bad}: {error}");
    }
}

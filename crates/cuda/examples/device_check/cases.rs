//! What is checked on the device.

use tilewright_engine::check::LaunchValues;
use tilewright_ir::ops::{EpilogueStep, OpRequest, ShapeForm, Trans, catalog};
use tilewright_ir::{DType, Program};
use tilewright_plan::mapping::{Mapping, Residency, RowMapping};

use crate::Error;

/// One thing to check.
pub struct Case {
    pub name: String,
    pub program: Program,
    pub scalars: Vec<(String, f64)>,
    /// Sizes of dimensions that the program leaves open, beside strides.
    pub dims: Vec<(String, u64)>,
    /// The mapping to run, where it isn't the plan's to choose.
    pub mapping: Option<Mapping>,
}

pub fn case(op: &str, request: OpRequest) -> Result<Case, Error> {
    let mut name = format!("{op} {:?} {}", request.shape, request.dtype);
    if request.trans != Trans::Nn {
        name.push_str(&format!(" {:?}", request.trans));
    }
    if request.strided {
        name.push_str(" strided");
    }
    if !request.epilogue.is_empty() || request.beta != 0.0 {
        name.push_str(&format!(" beta {} {:?}", request.beta, request.epilogue));
    }
    let program = tilewright_ir::ops::build(op, &request)?;
    let scalars = program.scalars.iter().map(|(_, s)| (s.name.clone(), 0.5)).collect();
    Ok(Case { name, program, scalars, dims: Vec::new(), mapping: None })
}

/// Sizes of the dimensions that a strided program leaves open: rows padded by 3 elements.
pub fn values(case: &Case) -> LaunchValues {
    let mut dims = case.dims.clone();
    for (_, tensor) in case.program.tensors.iter() {
        let tilewright_ir::program::Strides::Explicit(strides) = &tensor.strides else { continue };
        let mut packed = 1;
        for (extent, stride) in tensor.shape.iter().zip(strides).rev() {
            if let tilewright_ir::program::Extent::Dim(d) = stride
                && case.program.known(*stride).is_none()
            {
                packed += 3;
                let name = case.program.dims[*d].name.clone();
                if !dims.iter().any(|(n, _)| *n == name) {
                    dims.push((name, packed));
                }
            }
            packed *= case.program.known(*extent).unwrap_or(1);
        }
    }
    LaunchValues { dims, scalars: case.scalars.clone() }
}

/// Every op in every type over ragged and aligned shapes.
pub fn all_ops() -> Result<Vec<Case>, Error> {
    let rows: &[&[u64]] = &[
        &[1, 1],
        &[5, 31],
        &[3, 33],
        &[23, 769],
        &[37, 1537],
        &[64, 2048],
        &[9, 8193],
        &[4, 12289],
        &[2, 40000],
    ];
    let products: &[&[u64]] = &[&[1, 1, 1], &[7, 5, 3], &[127, 193, 61], &[256, 128, 64]];
    let batches: &[&[u64]] = &[&[1, 1, 1, 1], &[3, 65, 33, 17], &[2, 64, 64, 32]];
    let mut cases = Vec::new();
    for op in catalog() {
        for dtype in [DType::F32, DType::BF16, DType::F16, DType::F64] {
            let shapes = match op.form {
                ShapeForm::Rows => rows,
                ShapeForm::Matrix => products,
                ShapeForm::BatchedMatrix => batches,
            };
            for shape in shapes {
                cases.push(case(op.name, OpRequest::shaped(dtype, shape))?);
            }
        }
    }
    Ok(cases)
}

/// Products in f32: the reference's shapes, ragged and unaligned ones, thin ones, every storage,
/// batches, epilogues, padded rows.
pub fn products() -> Result<Vec<Case>, Error> {
    let mut cases = Vec::new();
    let f32 = |shape: &[u64]| OpRequest::shaped(DType::F32, shape);
    for shape in [
        [32, 32, 32],
        [128, 128, 128],
        [127, 193, 61],
        [256, 1024, 128],
        [513, 257, 129],
        [1024, 128, 256],
        [512, 512, 512],
        [1024, 1024, 1024],
        [2048, 2048, 2048],
        [16, 4096, 4096],
        [64, 4096, 4096],
        [4096, 4096, 64],
        [1, 4096, 1024],
        [4095, 1025, 1023],
        [33, 1, 999],
        [1, 1, 4097],
    ] {
        cases.push(case("gemm", f32(&shape))?);
    }
    for trans in [Trans::Nt, Trans::Tn, Trans::Tt] {
        for shape in [[127, 193, 61], [256, 256, 256], [1024, 512, 256], [65, 1027, 33]] {
            cases.push(case("gemm", OpRequest { trans, ..f32(&shape) })?);
        }
        cases.push(case("bgemm", OpRequest { trans, ..f32(&[3, 65, 130, 47]) })?);
    }
    for shape in [[7, 33, 65, 129], [16, 128, 128, 64], [2, 512, 256, 128]] {
        cases.push(case("bgemm", f32(&shape))?);
    }
    use EpilogueStep::{Bias, Gelu, Relu, Residual, Scale, Silu};
    for epilogue in [vec![Bias, Relu], vec![Scale, Bias, Residual, Gelu], vec![Silu]] {
        for shape in [[127, 193, 61], [512, 256, 128]] {
            let request = OpRequest { epilogue: epilogue.clone(), beta: 0.5, ..f32(&shape) };
            cases.push(case("gemm", request)?);
        }
    }
    for shape in [[127, 193, 61], [256, 256, 128]] {
        cases.push(case("gemm", OpRequest { strided: true, ..f32(&shape) })?);
    }
    Ok(cases)
}

/// A few cases of each kind of kernel.
pub fn few() -> Result<Vec<Case>, Error> {
    let mut cases = Vec::new();
    for (op, shape) in [
        ("softmax", &[5u64, 769][..]),
        ("softmax", &[3, 12289]),
        ("layernorm", &[9, 1537]),
        ("rmsnorm", &[7, 33]),
        ("cross_entropy", &[5, 129]),
        ("gelu", &[3, 1025]),
        ("row_sum", &[2, 40000]),
        ("gemv", &[33, 257]),
    ] {
        for dtype in [DType::F32, DType::BF16] {
            cases.push(case(op, OpRequest::shaped(dtype, shape))?);
        }
    }
    // A cluster for each row, and rows over several launches.
    for shape in [[2, 40_001], [2, 131_072], [2, 300_001]] {
        cases.push(case("softmax", OpRequest::shaped(DType::F32, &shape))?);
        cases.push(case("layernorm", OpRequest::shaped(DType::BF16, &shape))?);
    }
    let f32 = |shape: &[u64]| OpRequest::shaped(DType::F32, shape);
    for trans in [Trans::Nn, Trans::Nt, Trans::Tn, Trans::Tt] {
        for shape in [[33, 65, 17], [128, 128, 128], [65, 70, 1030]] {
            cases.push(case("gemm", OpRequest { trans, ..f32(&shape) })?);
        }
        for shape in [[1, 257, 1028], [130, 3, 515], [16, 96, 2048]] {
            cases.push(case("gemm", OpRequest { trans, ..f32(&shape) })?);
        }
        cases.push(case("bgemm", OpRequest { trans, ..f32(&[3, 65, 33, 17]) })?);
    }
    use EpilogueStep::{Bias, Gelu, Residual};
    let epilogue = vec![Bias, Residual, Gelu];
    cases.push(case("gemm", OpRequest { epilogue, beta: 0.5, ..f32(&[61, 127, 96]) })?);
    cases.push(case("gemm", OpRequest { strided: true, ..f32(&[61, 127, 96]) })?);
    cases.push(case("bgemm", OpRequest::shaped(DType::BF16, &[2, 9, 7, 5]))?);
    Ok(cases)
}

/// One kernel of each kind, for a memory checker in little time: rows in a subgroup, in a group, in
/// a cluster, staged alone and side by side, with hints, over several launches; products in tiles, in
/// slices, in place, with an epilogue.
pub fn brief() -> Result<Vec<Case>, Error> {
    let mut cases = vec![
        case("softmax", OpRequest::shaped(DType::F32, &[5, 33]))?,
        case("rmsnorm", OpRequest::shaped(DType::BF16, &[5, 1537]))?,
        case("softmax", OpRequest::shaped(DType::F32, &[1, 300_001]))?,
    ];
    let part = Residency::Part;
    let cluster = RowMapping {
        subgroups: 4,
        cluster: 4,
        vector: 8,
        cache: true,
        fuse: true,
        ..RowMapping::ONE
    };
    for (name, mapping) in [
        ("cluster", RowMapping { residency: part, ..cluster }),
        ("staged", RowMapping { stage: true, resident: 2, ..cluster }),
        ("side by side", RowMapping { stage: true, batch: 2, resident: 2, ..cluster }),
    ] {
        let mut case = case("layernorm", OpRequest::shaped(DType::BF16, &[3, 16_384]))?;
        case.mapping = Some(Mapping::Rows(mapping));
        case.name.push_str(&format!(" {name}"));
        cases.push(case);
    }
    let f32 = |shape: &[u64]| OpRequest::shaped(DType::F32, shape);
    cases.push(case("gemm", OpRequest { trans: Trans::Tn, ..f32(&[33, 65, 17]) })?);
    cases.push(case("gemm", OpRequest { trans: Trans::Nt, ..f32(&[16, 96, 2048]) })?);
    cases.push(case("gemm", f32(&[1, 257, 1028]))?);
    let epilogue = vec![EpilogueStep::Bias, EpilogueStep::Gelu];
    cases.push(case("gemm", OpRequest { epilogue, beta: 0.5, ..f32(&[61, 127, 96]) })?);
    Ok(cases)
}

/// Rows over several launches, beyond what a cluster holds, and where nothing else is legal; thin
/// products of every storage; grids longer than y and z; sizes that only the launch knows.
pub fn paths() -> Result<Vec<Case>, Error> {
    let mut cases = Vec::new();
    let rows = |op: &str, dtype, shape: [u64; 2]| case(op, OpRequest::shaped(dtype, &shape));
    for op in ["softmax", "rmsnorm", "layernorm", "row_sum", "cross_entropy", "gelu"] {
        for shape in [[1, 1 << 24], [4, 1 << 20], [3, 300_001]] {
            cases.push(rows(op, DType::F32, shape)?);
        }
        cases.push(rows(op, DType::BF16, [2, 1 << 20])?);
    }
    for op in ["layernorm", "rmsnorm", "row_sum"] {
        for shape in [[2, 40_000], [3, 40_001]] {
            cases.push(rows(op, DType::F64, shape)?);
        }
    }
    for dtype in [DType::F32, DType::BF16] {
        cases.push(rows("residual_layernorm", dtype, [2, 40_000])?);
        cases.push(rows("residual_layernorm", dtype, [2, 400_001])?);
    }
    let f32 = |shape: &[u64]| OpRequest::shaped(DType::F32, shape);
    for trans in [Trans::Nn, Trans::Nt, Trans::Tn, Trans::Tt] {
        for shape in [[1, 4096, 4096], [4096, 1, 4096], [16, 4096, 4096], [4096, 16, 4096]] {
            cases.push(case("gemm", OpRequest { trans, ..f32(&shape) })?);
        }
        for shape in [[3, 1025, 777], [1025, 3, 777], [1, 1, 5000], [7, 33, 4097]] {
            cases.push(case("gemm", OpRequest { trans, ..f32(&shape) })?);
        }
        cases.push(case("bgemm", OpRequest { trans, ..f32(&[64, 1, 512, 512]) })?);
        let open = OpRequest { trans, dynamic: true, ..f32(&[129, 257, 65]) };
        let mut open = case("gemm", open)?;
        open.dims.push(("m".to_string(), 131));
        open.name.push_str(" open");
        cases.push(open);
    }
    for shape in [[4096, 4096], [4097, 4095]] {
        cases.push(case("gemv", f32(&shape))?);
    }
    // Grids whose y or z would be too long.
    cases.push(case("bgemm", f32(&[70_000, 8, 8, 8]))?);
    cases.push(case("gemm", f32(&[9_000_000, 4, 4]))?);
    for (rows, open) in [(65_535, false), (65_536, false), (65_537, true)] {
        let request = OpRequest { dynamic: open, ..f32(&[rows, 512]) };
        let mut case = case("softmax", request)?;
        let mapping = RowMapping { subgroups: 2, cluster: 2, cache: true, ..RowMapping::ONE };
        case.mapping = Some(Mapping::Rows(RowMapping { vector: 4, fuse: true, ..mapping }));
        if open {
            case.dims.push(("rows".to_string(), rows));
        }
        case.name.push_str(" clusters");
        cases.push(case);
    }
    Ok(cases)
}

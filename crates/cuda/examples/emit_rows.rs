//! Prints the PTX of a row op, for GPUs with dependent launches: `emit_rows OP ROWS COLS DTYPE
//! 'MAPPING AS JSON'`. Fields that the mapping leaves out are those of one warp per row.

use serde_json::{Map, Value};
use tilewright_cuda::{PtxTarget, emit_for};
use tilewright_ir::ops::catalog::{OpRequest, build};
use tilewright_ir::{DType, analysis};
use tilewright_kernel::lower::{Options, lower};
use tilewright_plan::Target;
use tilewright_plan::mapping::{Mapping, RowMapping};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [op, rows, cols, dtype, mapping] = args.as_slice() else {
        return Err("usage: emit_rows OP ROWS COLS DTYPE 'MAPPING AS JSON'".into());
    };
    let dtype: DType = dtype.parse()?;
    let mut request = OpRequest::shaped(dtype, &[rows.parse()?, cols.parse()?]);
    request.dynamic = true;
    let mut program = build(op, &request)?;
    for (_, tensor) in program.tensors.iter_mut() {
        tensor.align = 16;
    }
    let Value::Object(mut fields) = serde_json::to_value(RowMapping::ONE)? else {
        return Err("a mapping is an object".into());
    };
    fields.extend(serde_json::from_str::<Map<String, Value>>(mapping)?);
    let mapping: RowMapping = serde_json::from_value(Value::Object(fields))?;
    let options = Options::for_target(&Target::nvidia_h200());
    let facts = analysis::facts(&program);
    for kernel in lower(&program, &facts, &Mapping::Rows(mapping), &options)?.launches {
        print!("{}", emit_for(&kernel, PtxTarget::DEPENDENT_LAUNCHES)?.text);
    }
    Ok(())
}

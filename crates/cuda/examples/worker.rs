//! A worker for benchmarks: one JSON request per line on standard input, one JSON answer per line.
//!
//! `{"cmd":"facts"}`;
//! `{"cmd":"prepare","op":"softmax","rows":R,"cols":C,"dtype":"f32"}` lowers every mapping of the
//! row space, checks each whole on up to 64 rows against the float64 oracle, times the correct
//! ones and keeps the fastest;
//! `{"cmd":"time","rounds":N}` times the kept kernel: medians of graph launches in microseconds;
//! `{"cmd":"copy","bytes":B}` times a copy of B bytes by a kernel of our own.

use std::io::{BufRead as _, Write as _};
use std::sync::Arc;

use serde_json::{Value, json};
use tilewright_cuda::driver::{Context, DeviceBuffer, Function, Graph};
use tilewright_cuda::{Ptx, PtxTarget, emit};
use tilewright_ir::interp::{Bindings, Options as InterpOptions, run_with};
use tilewright_ir::ops::catalog::{OpRequest, build};
use tilewright_ir::program::{Access, DimKind, Program};
use tilewright_ir::{DType, analysis};
use tilewright_kernel::kernel::{ArgSource, Kernel, Size};
use tilewright_kernel::lower::{Join, Options, lower};
use tilewright_plan::mapping::{Mapping, RowMapping};

type Error = Box<dyn std::error::Error>;

/// Rows that are checked against the oracle.
const CHECKED_ROWS: u64 = 64;

struct Prepared {
    function: Function,
    grid: [u32; 3],
    words: Vec<u64>,
    // Keeps the memory that `words` points to.
    _buffers: Vec<DeviceBuffer>,
    graph: Option<(Graph, usize)>,
}

/// A small generator of full-mantissa values in [-1, 1).
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }
}

fn encode(values: &[f64], dtype: DType) -> Vec<u8> {
    let mut out = Vec::with_capacity(values.len() * dtype.bytes() as usize);
    for v in values {
        match dtype {
            DType::F32 => out.extend((*v as f32).to_le_bytes()),
            DType::F64 => out.extend(v.to_le_bytes()),
            DType::F16 => out.extend(half::f16::from_f64(*v).to_le_bytes()),
            DType::BF16 => out.extend(half::bf16::from_f64(*v).to_le_bytes()),
            DType::I32 | DType::Bool => out.extend((*v as i32).to_le_bytes()),
        }
    }
    out
}

fn decode(bytes: &[u8], dtype: DType) -> Vec<f64> {
    match dtype {
        DType::F32 => bytes
            .chunks_exact(4)
            .map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])))
            .collect(),
        DType::F64 => bytes
            .chunks_exact(8)
            .map(|b| f64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]))
            .collect(),
        DType::F16 => {
            bytes.chunks_exact(2).map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f64()).collect()
        }
        DType::BF16 => bytes
            .chunks_exact(2)
            .map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f64())
            .collect(),
        DType::I32 | DType::Bool => bytes
            .chunks_exact(4)
            .map(|b| f64::from(i32::from_le_bytes([b[0], b[1], b[2], b[3]])))
            .collect(),
    }
}

/// Number of groups for a number of rows, outermost dimension last as PTX has it.
fn grid(kernel: &Kernel, rows: u64) -> [u32; 3] {
    let mut out = [1u32; 3];
    for (dim, out) in kernel.grid.iter().rev().zip(out.iter_mut()) {
        let size = match dim.size {
            Size::Const(n) => n,
            Size::Arg(_) => rows,
        };
        *out = size.div_ceil(dim.step) as u32;
    }
    out
}

/// One word per argument: device addresses for tensors, the row count for sizes.
fn words(kernel: &Kernel, buffers: &[DeviceBuffer], rows: u64) -> Result<Vec<u64>, Error> {
    kernel
        .args
        .iter()
        .map(|(_, arg)| match arg.source {
            ArgSource::Tensor(t) => {
                use tilewright_ir::entity::Id as _;
                Ok(buffers[t.index()].pointer())
            }
            ArgSource::Dim(_) => Ok(rows),
            other => Err(format!("argument {} comes from {other:?}", arg.name).into()),
        })
        .collect()
}

fn elements(program: &Program, tensor: &tilewright_ir::program::Tensor, rows: u64) -> u64 {
    tensor
        .shape
        .iter()
        .map(|e| match program.known(*e) {
            Some(n) => n,
            None => rows,
        })
        .product()
}

fn mappings(cols: u64, dtype: DType) -> Vec<RowMapping> {
    let widest = 16 / dtype.bytes();
    let mut out = Vec::new();
    for subgroups in [1u32, 2, 4, 8, 16, 32] {
        for vector in [1, 2, 4, 8] {
            if u64::from(vector) > widest {
                continue;
            }
            // Whole vectors where rows are aligned for them, single elements where not.
            let aligned = cols.is_multiple_of(widest);
            if aligned && u64::from(vector) * 2 < widest || !aligned && vector > 2 {
                continue;
            }
            let workers = 32 * u64::from(subgroups);
            let per_worker = cols.div_ceil(workers);
            // A worker with nothing to do, or more than fits its registers, isn't worth a try.
            if per_worker > 96 || (subgroups > 1 && per_worker * 2 < u64::from(vector)) {
                continue;
            }
            for pack in if subgroups == 1 { vec![1, 4] } else { vec![1] } {
                // Rows in several chunks per worker may fold into several accumulators.
                let chunks = per_worker.div_ceil(u64::from(vector)) as u32;
                let sets = if chunks >= 4 { vec![1, 4] } else { vec![1] };
                for accumulators in sets {
                    for cache in [true, false] {
                        out.push(RowMapping {
                            subgroups,
                            vector,
                            unroll: accumulators,
                            accumulators,
                            pack,
                            cache,
                            fuse: true,
                            ..RowMapping::ONE
                        });
                    }
                }
            }
        }
    }
    out
}

/// What an output should be.
struct Expected {
    tensor: usize,
    values: Vec<f64>,
    magnitude: Vec<f64>,
}

struct Case {
    program: Program,
    rows: u64,
    inputs: Vec<Vec<f64>>,
    reference: Vec<Expected>,
}

/// The fastest kernel so far.
struct Best {
    us: f64,
    function: Function,
    grid: [u32; 3],
    words: Vec<u64>,
    row: Value,
}

fn case(op: &str, rows: u64, cols: u64, dtype: DType) -> Result<Case, Error> {
    let mut request = OpRequest::shaped(dtype, &[rows, cols]);
    request.dynamic = true;
    let mut program = build(op, &request)?;
    // Device allocations are aligned to 256 bytes.
    for (_, tensor) in program.tensors.iter_mut() {
        tensor.align = 16;
    }
    let checked = rows.min(CHECKED_ROWS);
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut bindings = Bindings::new();
    for (_, dim) in program.dims.iter() {
        if matches!(dim.kind, DimKind::Symbolic { .. }) {
            bindings = bindings.dim(&dim.name, checked);
        }
    }
    let mut inputs = Vec::new();
    for (_, tensor) in program.tensors.iter() {
        let n = elements(&program, tensor, checked) as usize;
        let values: Vec<f64> = (0..n).map(|_| tensor.dtype.round(random.next() * 4.0)).collect();
        if tensor.access != Access::Out {
            bindings = bindings.tensor(&tensor.name, values.clone());
        }
        inputs.push(values);
    }
    let options = InterpOptions { magnitude: true, ..InterpOptions::default() };
    let outputs = run_with(&program, &bindings, &options)?;
    use tilewright_ir::entity::Id as _;
    let reference = outputs
        .into_iter()
        .map(|o| Expected { tensor: o.tensor.index(), values: o.packed(), magnitude: o.magnitude })
        .collect();
    Ok(Case { program, rows, inputs, reference })
}

/// Largest error over its bound, so that at most 1 is right.
fn worst(found: &[f64], want: &[f64], magnitude: &[f64], dtype: DType, cols: u64) -> f64 {
    let u = 2f64.powi(-24);
    let out = dtype.unit_roundoff();
    let factor = 16.0 + (cols.max(2) as f64).log2();
    let mut worst = 0.0f64;
    for ((f, w), m) in found.iter().zip(want).zip(magnitude) {
        let bound = factor * u * w.abs().max(*m) + out * w.abs() + f64::MIN_POSITIVE;
        let error = (f - w).abs() / bound;
        worst = if error.is_nan() { f64::INFINITY } else { worst.max(error) };
    }
    worst
}

fn load(context: &Arc<Context>, kernel: &Kernel) -> Result<(Function, Ptx), Error> {
    let ptx = emit(kernel, PtxTarget::BASE)?;
    Ok((context.load(&ptx)?, ptx))
}

fn microseconds(
    context: &Arc<Context>,
    prepared: &Prepared,
    rounds: usize,
) -> Result<Vec<f64>, Error> {
    let (graph, launches) = prepared.graph.as_ref().ok_or("not prepared")?;
    let mut out = Vec::new();
    for _ in 0..rounds {
        let us = context.time(|| graph.launch())?;
        out.push(us / *launches as f64);
    }
    Ok(out)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn graph(context: &Arc<Context>, prepared: &mut Prepared, launches: usize) -> Result<(), Error> {
    let graph = context.capture(|| {
        for _ in 0..launches {
            // SAFETY: the buffers were sized for this kernel and live in `prepared`.
            unsafe { prepared.function.launch(prepared.grid, &mut prepared.words)? };
        }
        Ok(())
    })?;
    prepared.graph = Some((graph, launches));
    Ok(())
}

fn prepare(context: &Arc<Context>, request: &Value) -> Result<(Prepared, Value), Error> {
    let op = request["op"].as_str().ok_or("op")?;
    let (rows, cols) =
        (request["rows"].as_u64().ok_or("rows")?, request["cols"].as_u64().ok_or("cols")?);
    let dtype: DType = request["dtype"].as_str().ok_or("dtype")?.parse()?;
    let case = case(op, rows, cols, dtype)?;
    let facts = analysis::facts(&case.program);
    let checked = rows.min(CHECKED_ROWS);
    let mut buffers = Vec::new();
    for (i, (_, tensor)) in case.program.tensors.iter().enumerate() {
        let bytes = elements(&case.program, tensor, case.rows) * tensor.dtype.bytes();
        let buffer = context.alloc(bytes as usize)?;
        if tensor.access != Access::Out {
            let data = encode(&case.inputs[i], tensor.dtype);
            // The checked rows again and again, so that every row has ordinary values.
            let mut all = Vec::with_capacity(bytes as usize);
            while all.len() < bytes as usize {
                let take = (bytes as usize - all.len()).min(data.len());
                all.extend_from_slice(&data[..take]);
            }
            buffer.upload(&all)?;
        }
        buffers.push(buffer);
    }
    let options = Options { join: Join::Lane, ..Options::default() };
    let mut table = Vec::new();
    let mut best: Option<Best> = None;
    for mapping in mappings(cols, dtype) {
        let mut row = json!({ "mapping": mapping });
        let outcome = (|| -> Result<(f64, Function, [u32; 3], Vec<u64>), Error> {
            let lowered = lower(&case.program, &facts, &Mapping::Rows(mapping), &options)?;
            let [kernel] = lowered.launches.as_slice() else { return Err("launches".into()) };
            let (function, _) = load(context, kernel)?;
            let report = function.report()?;
            row["registers"] = report.registers.into();
            row["local_bytes"] = report.local_bytes.into();
            for (i, (_, tensor)) in case.program.tensors.iter().enumerate() {
                if tensor.access == Access::Out {
                    buffers[i].fill(0xff)?;
                }
            }
            let mut small = words(kernel, &buffers, checked)?;
            // SAFETY: buffers hold all rows.
            unsafe { function.launch(grid(kernel, checked), &mut small)? };
            context.synchronize()?;
            let mut error = 0.0f64;
            for Expected { tensor, values: want, magnitude } in &case.reference {
                let dtype = case.program.tensors.iter().nth(*tensor).ok_or("tensor")?.1.dtype;
                let mut bytes = vec![0u8; want.len() * dtype.bytes() as usize];
                buffers[*tensor].download(&mut bytes)?;
                error = error.max(worst(&decode(&bytes, dtype), want, magnitude, dtype, cols));
            }
            row["error"] = error.into();
            if error > 1.0 {
                return Err(format!("wrong: {error} times the bound").into());
            }
            let mut full = words(kernel, &buffers, rows)?;
            let shape = grid(kernel, rows);
            // SAFETY: buffers hold all rows.
            let launch = |words: &mut [u64]| unsafe { function.launch(shape, words) };
            launch(&mut full)?;
            context.synchronize()?;
            let once = context.time(|| launch(&mut full))?;
            // By graphs, so that the host's launch rate doesn't decide between short kernels.
            let n = ((400.0 / once) as usize).clamp(2, 200);
            let graph = context.capture(|| (0..n).try_for_each(|_| launch(&mut full)))?;
            graph.launch()?;
            let mut samples = Vec::new();
            for _ in 0..3 {
                samples.push(context.time(|| graph.launch())? / n as f64);
            }
            Ok((median(samples), function, shape, full))
        })();
        match outcome {
            Ok((us, function, shape, full)) => {
                row["us"] = us.into();
                if best.as_ref().is_none_or(|b| us < b.us) {
                    best = Some(Best { us, function, grid: shape, words: full, row: row.clone() });
                }
            }
            Err(error) => {
                row["failed"] = error.to_string().chars().take(300).collect::<String>().into();
            }
        }
        table.push(row);
    }
    let Best { us, function, grid, words, row } = best.ok_or("no mapping works")?;
    let mut prepared = Prepared { function, grid, words, _buffers: buffers, graph: None };
    let launches = ((3000.0 / us) as usize).clamp(3, 500);
    graph(context, &mut prepared, launches)?;
    let warm = median(microseconds(context, &prepared, 3)?);
    Ok((prepared, json!({ "best": row, "us": warm, "candidates": table })))
}

/// Copies 16 bytes per thread and trip with a grid that fills the machine.
fn copy(context: &Arc<Context>, bytes: u64) -> Result<Value, Error> {
    let ptx = |threads: u32, unroll: u32| {
        let mut body = String::new();
        for u in 0..unroll {
            body += &format!(
                "    ld.global.nc.v4.u32 {{%r{a},%r{b},%r{c},%r{d}}}, [%rd1+{o}];\n",
                a = 10 + 4 * u,
                b = 11 + 4 * u,
                c = 12 + 4 * u,
                d = 13 + 4 * u,
                o = u * 16 * threads
            );
        }
        for u in 0..unroll {
            body += &format!(
                "    st.global.v4.u32 [%rd2+{o}], {{%r{a},%r{b},%r{c},%r{d}}};\n",
                a = 10 + 4 * u,
                b = 11 + 4 * u,
                c = 12 + 4 * u,
                d = 13 + 4 * u,
                o = u * 16 * threads
            );
        }
        Ptx {
            text: format!(
                ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry copy(.param .u64 a, .param .u64 b)\n.maxntid {threads},1,1\n{{\n    .reg .b32 %r<200>;\n    .reg .b64 %rd<8>;\n    ld.param.u64 %rd1, [a];\n    ld.param.u64 %rd2, [b];\n    cvta.to.global.u64 %rd1, %rd1;\n    cvta.to.global.u64 %rd2, %rd2;\n    mov.u32 %r1, %ctaid.x;\n    mov.u32 %r2, %tid.x;\n    mul.wide.u32 %rd3, %r1, {};\n    mul.wide.u32 %rd4, %r2, 16;\n    add.s64 %rd3, %rd3, %rd4;\n    add.s64 %rd1, %rd1, %rd3;\n    add.s64 %rd2, %rd2, %rd3;\n{body}    ret;\n}}\n",
                threads * 16 * unroll
            ),
            entry: "copy".into(),
            threads,
            shared_bytes: 0,
            cluster: 1,
        }
    };
    let (a, b) = (context.alloc(bytes as usize)?, context.alloc(bytes as usize)?);
    a.fill(1)?;
    let mut best = (f64::INFINITY, 0, 0);
    for threads in [128u32, 256, 512, 1024] {
        for unroll in [1u32, 2, 4, 8] {
            let per = u64::from(threads * 16 * unroll);
            if !bytes.is_multiple_of(per) {
                continue;
            }
            let function = context.load(&ptx(threads, unroll))?;
            let mut words = vec![a.pointer(), b.pointer()];
            let mut samples = Vec::new();
            for _ in 0..5 {
                let us = context.time(|| {
                    for _ in 0..5 {
                        // SAFETY: the grid covers exactly `bytes`.
                        unsafe { function.launch([(bytes / per) as u32, 1, 1], &mut words)? };
                    }
                    Ok(())
                })?;
                samples.push(us / 5.0);
            }
            let us = median(samples);
            if us < best.0 {
                best = (us, threads, unroll);
            }
        }
    }
    Ok(json!({ "us": best.0, "threads": best.1, "unroll": best.2,
               "tb_per_s": 2.0 * bytes as f64 / best.0 * 1e-6 }))
}

fn answer(
    context: &Arc<Context>,
    prepared: &mut Option<Prepared>,
    line: &str,
) -> Result<Value, Error> {
    let request: Value = serde_json::from_str(line)?;
    match request["cmd"].as_str() {
        Some("facts") => Ok(json!({ "facts": format!("{:?}", context.facts()) })),
        Some("prepare") => {
            *prepared = None;
            let (new, report) = prepare(context, &request)?;
            *prepared = Some(new);
            Ok(report)
        }
        Some("time") => {
            let rounds = request["rounds"].as_u64().unwrap_or(5) as usize;
            let prepared = prepared.as_ref().ok_or("nothing is prepared")?;
            Ok(json!({ "us": median(microseconds(context, prepared, rounds)?) }))
        }
        Some("copy") => copy(context, request["bytes"].as_u64().ok_or("bytes")?),
        _ => Err("unknown command".into()),
    }
}

fn main() -> Result<(), Error> {
    let context = match Context::open(0) {
        Ok(context) => context,
        Err(error) => {
            println!("{}", json!({ "error": error.to_string() }));
            return Ok(());
        }
    };
    let mut prepared = None;
    for line in std::io::stdin().lock().lines() {
        let reply = answer(&context, &mut prepared, &line?)
            .unwrap_or_else(|error| json!({ "error": error.to_string() }));
        println!("{reply}");
        std::io::stdout().flush()?;
    }
    Ok(())
}

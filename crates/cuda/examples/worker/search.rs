//! Which mappings are tried, and which is the fastest.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tilewright_cuda::driver::{Context, CudaError, Function, Graph};
use tilewright_cuda::{emit_for, target};
use tilewright_ir::DType;
use tilewright_ir::facts::Family;
use tilewright_kernel::kernel::Kernel;
use tilewright_kernel::lower::{Join, Options, lower};
use tilewright_plan::mapping::{Mapping, Residency, RowMapping};
use tilewright_plan::problem::rows::ahead_loads;

use crate::case::{Case, Error, Problem};

/// Device time of a search for one candidate, in microseconds.
const SEARCH_US: f64 = 400.0;
/// Device time of one measurement of the kept kernel, in microseconds.
const MEASURE_US: f64 = 3000.0;
/// Candidates that are timed as long as the kept kernel.
const FINALISTS: usize = 6;
/// Threads that lower and load candidates.
const LOADERS: usize = 12;

/// The fastest kernel of a problem, ready to be timed.
pub struct Kept {
    graph: Graph,
    launches: usize,
    // What the graph uses.
    _function: Function,
    problem: Problem,
}

impl Kept {
    /// What it runs on.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Device times of one launch, in microseconds.
    pub fn microseconds(&self, context: &Context, rounds: usize) -> Result<Vec<f64>, Error> {
        let time = || Ok(context.time(|| self.graph.launch())? / self.launches as f64);
        (0..rounds).map(|_| time()).collect()
    }
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Bytes of shared memory and threads that one core of an H200 holds.
const SHARED: u64 = 228 << 10;
const THREADS: u64 = 2048;
/// Mappings that are tried with hints to the second-level cache, the fastest without.
const HINTED: usize = 6;
/// Bytes beyond which they are tried, a quarter of the second-level cache of an H200: less stays
/// there by itself.
const CACHED: u64 = 15 << 20;

/// Columns from which rows are staged in shared memory, or several of them run side by side.
const LONG: u64 = 16_384;
/// Registers of a core, and those of a thread beside what it keeps.
const REGISTERS: u64 = 65_536;
const OTHERS: u64 = 40;

/// Mappings for long rows in whole vectors: in shared memory, in as many groups as a core then
/// holds, one or two rows at once; and in the registers of clusters, held to their share.
fn long(base: RowMapping, per_worker: u64, dtype: DType, norm: bool, out: &mut Vec<RowMapping>) {
    let threads = base.threads();
    let base = RowMapping { cache: true, fuse: true, ..base };
    for batch in [1u32, 2] {
        let bytes = dtype.bytes() * per_worker * threads * u64::from(batch) + 2048;
        let groups = (SHARED / bytes).min(THREADS / threads) as u32;
        for resident in [groups, groups.saturating_sub(1)] {
            if per_worker <= 128 && resident >= 2 {
                out.push(RowMapping { stage: true, batch, resident, ..base });
            }
        }
    }
    if base.cluster == 1 {
        return;
    }
    let kept = per_worker * dtype.bytes().min(4) / 4 + OTHERS;
    let resident = (REGISTERS / (threads * kept)) as u32;
    if norm && per_worker <= 64 && resident >= 2 {
        out.push(RowMapping { resident, ..base });
    }
}

/// The fastest mappings so far, with hints. Asynchronous copies carry none.
fn hinted(table: &[Value]) -> Vec<RowMapping> {
    let time = |row: &Value| row["us"].as_f64().unwrap_or(f64::INFINITY);
    let mut rows: Vec<&Value> = table.iter().filter(|r| r["us"].is_f64()).collect();
    rows.sort_by(|a, b| time(a).total_cmp(&time(b)));
    let parse = |row: &&Value| serde_json::from_value::<RowMapping>(row["mapping"].clone()).ok();
    let best: Vec<RowMapping> = rows.iter().filter_map(parse).take(HINTED).collect();
    let with = |m: &RowMapping| {
        [Residency::Keep, Residency::Stream, Residency::Part]
            .map(|residency| RowMapping { residency, ..*m })
    };
    best.iter().filter(|m| m.residency.is_normal() && !m.stage).flat_map(with).collect()
}

/// Mappings that may win.
pub fn mappings(case: &Case, dtype: DType) -> Vec<RowMapping> {
    let cols = case.cols;
    let widest = 16 / dtype.bytes();
    let ahead: &[bool] = match &case.facts.family {
        Family::Rows(facts) if !ahead_loads(&case.program, &facts.cache).is_empty() => {
            &[true, false]
        }
        _ => &[false],
    };
    let clusters: &[u32] = match cols {
        0..8192 => &[1],
        8192..65536 => &[1, 2, 4, 8],
        _ => &[4, 8, 16],
    };
    let mut out = Vec::new();
    for &cluster in clusters {
        for subgroups in [1u32, 2, 3, 4, 6, 8, 12, 16, 24, 32] {
            for vector in [1u32, 2, 4, 8] {
                if u64::from(vector) > widest {
                    continue;
                }
                // Whole vectors where rows are aligned for them, single elements where not.
                let aligned = cols.is_multiple_of(widest);
                if aligned && u64::from(vector) * 2 < widest || !aligned && vector > 1 {
                    continue;
                }
                // Narrow vectors don't win where each worker has many.
                if aligned && cols >= LONG && u64::from(vector) < widest {
                    continue;
                }
                let base = RowMapping { subgroups, cluster, vector, ..RowMapping::ONE };
                let per_worker = cols.div_ceil(base.workers());
                if aligned && cols >= LONG && per_worker >= 16 {
                    long(base, per_worker, dtype, ahead.len() > 1, &mut out);
                }
                // A worker with nothing to do, or more than fits its registers, isn't worth a try.
                let most = if cluster == 1 { 96 } else { 64 };
                if per_worker > most || (subgroups * cluster > 1 && per_worker < vector.into()) {
                    continue;
                }
                if per_worker > 32 && subgroups < 8 || cluster > 1 && subgroups < 4 {
                    continue;
                }
                for &ahead in ahead {
                    if ahead && per_worker > 24 {
                        continue;
                    }
                    for pack in
                        if subgroups == 1 && case.rows >= 256 { vec![1, 4] } else { vec![1] }
                    {
                        let m = RowMapping { cache: true, ahead, pack, ..base };
                        out.push(m);
                        // Several chains of additions where one would be long.
                        if per_worker >= u64::from(4 * vector) && per_worker <= 32 {
                            out.push(RowMapping { unroll: 4, accumulators: 4, ..m });
                        }
                    }
                }
                // Long rows of a norm are cheap to read again.
                if per_worker > 32 && cluster == 1 {
                    out.push(RowMapping { cache: false, ..base });
                }
            }
        }
    }
    out
}

/// A mapping's kernel on the device.
pub struct Loaded {
    pub kernel: Kernel,
    pub function: Function,
}

fn load(context: &Arc<Context>, case: &Case, mapping: RowMapping) -> Result<Loaded, Error> {
    let options = Options { join: Join::Lane, ..Options::default() };
    let lowered = lower(&case.program, &case.facts, &Mapping::Rows(mapping), &options)?;
    let [kernel] = lowered.launches.as_slice() else { return Err("several launches".into()) };
    let ptx = emit_for(kernel, target::limit(context.facts()))?;
    Ok(Loaded { kernel: kernel.clone(), function: context.load(&ptx)? })
}

/// Lowers and loads all mappings on several threads, in their order.
pub fn load_all(
    context: &Arc<Context>,
    case: &Case,
    mappings: &[RowMapping],
) -> Vec<Result<Loaded, Error>> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..LOADERS.min(mappings.len()) {
            scope.spawn(|| {
                while let Some(mapping) = mappings.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let index = mappings.iter().position(|m| m == mapping).unwrap_or(0);
                    let loaded = load(context, case, *mapping);
                    if let Ok(mut done) = done.lock() {
                        done.push((index, loaded));
                    }
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_default();
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, loaded)| loaded).collect()
}

/// What was tried: a table, and the fastest, best first.
#[derive(Default)]
struct Tried {
    table: Vec<Value>,
    best: Vec<(f64, Loaded, Value)>,
}

impl Tried {
    /// Checks and times mappings.
    fn add(&mut self, context: &Arc<Context>, problem: &Problem, mappings: &[RowMapping]) {
        for (mapping, loaded) in mappings.iter().zip(load_all(context, &problem.case, mappings)) {
            let mut row = json!({ "mapping": mapping });
            let outcome = loaded.and_then(|loaded| {
                let report = loaded.function.report()?;
                row["registers"] = report.registers.into();
                row["local_bytes"] = report.local_bytes.into();
                row["per_core"] = report.groups_per_core.into();
                let error = problem.check(context, &loaded.function, &loaded.kernel)?;
                row["error"] = error.into();
                if error > 1.0 {
                    return Err(format!("wrong: {error} times the bound").into());
                }
                Ok((search(context, problem, &loaded)?, loaded))
            });
            match outcome {
                Ok((us, loaded)) => {
                    row["us"] = us.into();
                    let at = self.best.partition_point(|b| b.0 <= us);
                    self.best.insert(at, (us, loaded, row.clone()));
                    self.best.truncate(FINALISTS);
                }
                Err(error) => {
                    row["failed"] = error.to_string().chars().take(300).collect::<String>().into();
                }
            }
            self.table.push(row);
        }
    }
}

/// Checks and times every mapping, and the fastest with hints to the second-level cache where it
/// can't hold everything; times the fastest of all once more, as long as the kept one is timed
/// later, because short graphs say little of what a cache holds in the long run. The fastest, and
/// a table.
pub fn prepare(
    context: &Arc<Context>,
    problem: Problem,
    mappings: &[RowMapping],
) -> Result<(Kept, Value), Error> {
    let mut tried = Tried::default();
    tried.add(context, &problem, mappings);
    if problem.bytes() > CACHED {
        let hinted = hinted(&tried.table);
        let new: Vec<RowMapping> = hinted.into_iter().filter(|m| !mappings.contains(m)).collect();
        tried.add(context, &problem, &new);
    }
    let Tried { table, best } = tried;
    let mut finals = Vec::new();
    for (us, loaded, row) in best {
        let launches = ((MEASURE_US / us) as usize).clamp(3, 500);
        let graph = graph(context, &problem, &loaded.kernel, &loaded.function, launches)?;
        graph.launch()?;
        let sample = |_| Ok(context.time(|| graph.launch())? / launches as f64);
        let us = median((0..3).map(sample).collect::<Result<Vec<f64>, Error>>()?);
        finals.push((us, graph, launches, loaded.function, row));
    }
    let fastest = finals.into_iter().min_by(|a, b| a.0.total_cmp(&b.0));
    let Some((us, graph, launches, function, row)) = fastest else {
        let first = table.iter().find_map(|r| r["failed"].as_str()).unwrap_or("none was tried");
        return Err(format!("no mapping works: {first}").into());
    };
    let kept = Kept { graph, launches, _function: function, problem };
    kept.microseconds(context, 2)?;
    Ok((kept, json!({ "best": row, "us": us, "candidates": table })))
}

/// By graphs, so that the host's launch rate doesn't decide between short kernels.
fn graph(
    context: &Arc<Context>,
    problem: &Problem,
    kernel: &Kernel,
    function: &Function,
    launches: usize,
) -> Result<Graph, Error> {
    let rows = problem.case.rows;
    let (grid, mut words) = (problem.grid(kernel, rows)?, problem.words(kernel, rows)?);
    let one = |_| -> Result<(), CudaError> {
        // SAFETY: buffers hold all rows, and live as long as the graph.
        unsafe { function.launch(grid, &mut words) }
    };
    Ok(context.capture(|| (0..launches).try_for_each(one))?)
}

fn search(context: &Arc<Context>, problem: &Problem, loaded: &Loaded) -> Result<f64, Error> {
    let time = |launches: usize, rounds: usize| -> Result<f64, Error> {
        let graph = graph(context, problem, &loaded.kernel, &loaded.function, launches)?;
        graph.launch()?;
        let sample = || Ok(context.time(|| graph.launch())? / launches as f64);
        Ok(median((0..rounds).map(|_| sample()).collect::<Result<_, Error>>()?))
    };
    let once = time(2, 1)?;
    time(((SEARCH_US / once) as usize).clamp(2, 200), 3)
}

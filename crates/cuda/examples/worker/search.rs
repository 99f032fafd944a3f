//! Which mappings are tried, and which is the fastest.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tilewright_cuda::driver::{Context, CudaError, Function, Graph};
use tilewright_cuda::{emit_for, target};
use tilewright_kernel::kernel::Kernel;
use tilewright_kernel::lower::{Options, lower};
use tilewright_plan::mapping::{Mapping, Residency, RowMapping};
use tilewright_plan::policy::gpu::Gpu;
use tilewright_plan::{Request, Target, plan};

use crate::case::{Case, Error, Problem};

/// Device time of a search for one candidate, in microseconds.
const SEARCH_US: f64 = 400.0;
/// Device time of one measurement of the kept kernel, in microseconds.
const MEASURE_US: f64 = 3000.0;
/// Candidates of each kind of hint that are timed as long as the kept kernel, beside the default
/// plan: short graphs favour what streams past the cache.
const FINALISTS: usize = 3;
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

    /// Device times of one launch, in microseconds, from a neutral cache on.
    pub fn microseconds(&self, context: &Arc<Context>, rounds: usize) -> Result<Vec<f64>, Error> {
        self.problem.reset(context)?;
        self.graph.launch()?;
        let time = || Ok(context.time(|| self.graph.launch())? / self.launches as f64);
        (0..rounds).map(|_| time()).collect()
    }
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Mappings that are tried with every hint to the second-level cache: the fastest before.
const HINTED: usize = 6;
/// Bytes beyond which they are tried, a quarter of the second-level cache of an H200: less stays
/// there by itself.
const CACHED: u64 = 15 << 20;

/// The fastest mappings so far, with the hints that they weren't tried with. Asynchronous copies
/// carry none.
fn hinted(table: &[Value]) -> Vec<RowMapping> {
    let timed = |row: &Value| {
        let mapping: RowMapping = serde_json::from_value(row["mapping"].clone()).ok()?;
        Some((row["us"].as_f64()?, mapping))
    };
    let mut rows: Vec<(f64, RowMapping)> = table.iter().filter_map(timed).collect();
    rows.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut best: Vec<RowMapping> = Vec::new();
    for (_, mapping) in &rows {
        let plain = RowMapping { residency: Residency::Normal, ..*mapping };
        if !plain.stage && !best.contains(&plain) && best.len() < HINTED {
            best.push(plain);
        }
    }
    let with = |m: &RowMapping| Residency::ALL.map(|residency| RowMapping { residency, ..*m });
    let tried = |m: &RowMapping| rows.iter().any(|(_, other)| other == m);
    best.iter().flat_map(with).filter(|m| !tried(m)).collect()
}

/// The legal mappings of the planner's space that take one launch, by its ranking: the first is the
/// default plan.
///
/// # Errors
/// The planner refuses the case.
pub fn mappings(case: &Case) -> Result<Vec<RowMapping>, Error> {
    let request = Request::new(&case.program, &case.facts).size("rows", case.rows);
    let ranking = plan(&request, &Target::nvidia_h200(), &Gpu)?;
    let candidate = |at: &usize| match ranking.candidates.get(*at)?.mapping {
        Mapping::Rows(mapping) if mapping.split == 1 => Some(mapping),
        _ => None,
    };
    Ok(ranking.order.iter().filter_map(candidate).collect())
}

/// A mapping's kernel on the device.
pub struct Loaded {
    pub kernel: Kernel,
    pub function: Function,
}

fn load(context: &Arc<Context>, case: &Case, mapping: RowMapping) -> Result<Loaded, Error> {
    let options = Options::for_target(&Target::nvidia_h200());
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

/// A candidate that is right: its time, in microseconds, and where it stands in the table.
struct Right {
    us: f64,
    at: usize,
    mapping: RowMapping,
    loaded: Loaded,
}

/// What was tried: a table, and the fastest of each kind of hint with the first of all, best first.
#[derive(Default)]
struct Tried {
    table: Vec<Value>,
    best: Vec<Right>,
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
                    self.keep(Right { us, at: self.table.len(), mapping: *mapping, loaded });
                }
                Err(error) => {
                    row["failed"] = error.to_string().chars().take(300).collect::<String>().into();
                }
            }
            self.table.push(row);
        }
    }

    /// Keeps a candidate while it is among the fastest of its kind, or the first of all.
    fn keep(&mut self, right: Right) {
        let at = self.best.partition_point(|other| other.us <= right.us);
        self.best.insert(at, right);
        let mut seen: HashMap<Residency, usize> = HashMap::new();
        self.best.retain(|right| {
            let seen = seen.entry(right.mapping.residency).or_default();
            *seen += 1;
            *seen <= FINALISTS || right.at == 0
        });
    }
}

/// Checks and times every mapping, and the fastest with hints to the second-level cache where it
/// can't hold everything; times the fastest of each kind, and the first, once more, as long as the
/// kept one is timed later, because short graphs say little of what a cache holds in the long run.
/// The fastest, and a table, whose rows have a `graph_us` where they were timed so.
pub fn prepare(
    context: &Arc<Context>,
    problem: Problem,
    mappings: &[RowMapping],
) -> Result<(Kept, Value), Error> {
    let mut tried = Tried::default();
    tried.add(context, &problem, mappings);
    if problem.bytes() > CACHED {
        let hinted = hinted(&tried.table);
        tried.add(context, &problem, &hinted);
    }
    let Tried { mut table, best } = tried;
    let mut fastest: Option<(f64, usize, Graph, usize, Function)> = None;
    for Right { us, at, loaded, .. } in best {
        let launches = ((MEASURE_US / us) as usize).clamp(3, 500);
        let graph = graph(context, &problem, &loaded.kernel, &loaded.function, launches)?;
        problem.reset(context)?;
        graph.launch()?;
        let sample = |_| Ok(context.time(|| graph.launch())? / launches as f64);
        let us = median((0..3).map(sample).collect::<Result<Vec<f64>, Error>>()?);
        table[at]["graph_us"] = us.into();
        if fastest.as_ref().is_none_or(|other| us < other.0) {
            fastest = Some((us, at, graph, launches, loaded.function));
        }
    }
    let Some((us, at, graph, launches, function)) = fastest else {
        let first = table.iter().find_map(|r| r["failed"].as_str()).unwrap_or("none was tried");
        return Err(format!("no mapping works: {first}").into());
    };
    let kept = Kept { graph, launches, _function: function, problem };
    kept.microseconds(context, 2)?;
    Ok((kept, json!({ "best": table[at], "us": us, "candidates": table })))
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
    problem.reset(context)?;
    let time = |launches: usize, rounds: usize| -> Result<f64, Error> {
        let graph = graph(context, problem, &loaded.kernel, &loaded.function, launches)?;
        graph.launch()?;
        let sample = || Ok(context.time(|| graph.launch())? / launches as f64);
        Ok(median((0..rounds).map(|_| sample()).collect::<Result<_, Error>>()?))
    };
    let once = time(2, 1)?;
    time(((SEARCH_US / once) as usize).clamp(2, 200), 3)
}

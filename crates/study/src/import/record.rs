//! Search records of the reference system: every trial of its row search and of its matrix
//! search, with labels and the plan facts that it reported.
//!
//! The planner counts each schedule again; a record whose facts differ is refused, so that a fit
//! sees exactly what the policy will see.

use std::collections::HashMap;

use serde_json::Value;
use tilewright_ir::ops::{self, OpRequest};
use tilewright_ir::{DType, analysis};
use tilewright_plan::calibrate::Sample;
use tilewright_plan::calibrate::service::RowCounts as ServiceCounts;
use tilewright_plan::mapping::{Mapping, MatrixBasis, RowMapping};
use tilewright_plan::matrix::MatrixCounts;
use tilewright_plan::policy::matrix_mpp_v1::MatrixMppV1;
use tilewright_plan::policy::matrix_mpp_v2::MatrixMppV2;
use tilewright_plan::policy::reduction_v1::ReductionV1;
use tilewright_plan::policy::whole_launch::Family;
use tilewright_plan::policy::{CandidateFacts, CandidateView, FragmentGate, MatrixRules, Policy};
use tilewright_plan::problem::{MatrixProblem, Problem, RowProblem};
use tilewright_plan::ranking::plan_matrix;
use tilewright_plan::rows::RowCounts;
use tilewright_plan::space::matrix::realise;
use tilewright_plan::{PlanError, Request, SpaceOptions, Target};

use super::kernel_tuner::fault;
use super::{ImportError, Training, TrainingRow};

/// A search record.
#[derive(Clone, Debug)]
pub struct SearchRecord {
    /// Its valid trials.
    pub training: Training,
    /// Trials that the search rejected.
    pub rejected: usize,
    /// For rows: the facts that the reference's fit is made of, in step with the training rows.
    pub service: Vec<ServiceCounts>,
    /// Scores of policies that need no fit, by name, in step with the training rows.
    pub scores: Vec<(&'static str, Vec<f64>)>,
}

/// Reads a record.
///
/// # Errors
/// A field is missing, or a fact isn't the planner's.
pub fn parse(value: &Value) -> Result<SearchRecord, ImportError> {
    let trials = value["trials"].as_array().ok_or_else(|| fault("trials", "it must be a list"))?;
    let is_rows = trials.first().is_some_and(|t| t.get("scalar_rounds").is_some());
    let mut record = SearchRecord {
        training: Training {
            family: if is_rows { Family::GpuRows } else { Family::GpuMatrix },
            target: "apple-m1-max".to_string(),
            rows: Vec::new(),
        },
        rejected: 0,
        service: Vec::new(),
        scores: Vec::new(),
    };
    let mut scored: Vec<[f64; 2]> = Vec::new();
    let mut v1 = FirstScores::default();
    for (i, trial) in trials.iter().enumerate() {
        let trial = Fields { value: trial, place: format!("trials[{i}]") };
        if !trial.flag("valid")? {
            record.rejected += 1;
            continue;
        }
        if is_rows {
            let (row, service, score) = row(&trial)?;
            record.training.rows.push(row);
            record.service.push(service);
            scored.push([score, 0.0]);
        } else {
            let (row, scores) = matrix(&trial, &mut v1)?;
            record.training.rows.push(row);
            scored.push(scores);
        }
    }
    let column = |j: usize| scored.iter().map(|s| s[j]).collect::<Vec<f64>>();
    if is_rows {
        record.scores.push(("reduction-v1", column(0)));
    } else {
        record.scores.push(("matrix-mpp-v1", column(0)));
        record.scores.push(("matrix-mpp-v2", column(1)));
    }
    mark_incumbents(&mut record, is_rows);
    Ok(record)
}

/// Incumbents: of rows the best reload candidate by `reduction-v1`, which is what the reference
/// system used before its fit; of matrix products the best by `matrix-mpp-v2`. The first of equals.
fn mark_incumbents(record: &mut SearchRecord, is_rows: bool) {
    let Some((_, scores)) = record.scores.last() else { return };
    let mut best: std::collections::BTreeMap<String, usize> = Default::default();
    for (i, row) in record.training.rows.iter().enumerate() {
        if is_rows && row.sample.candidate.ends_with("cache") {
            continue;
        }
        let entry = best.entry(row.sample.case.clone()).or_insert(i);
        if scores[i] < scores[*entry] {
            *entry = i;
        }
    }
    for row in best.into_values() {
        record.training.rows[row].incumbent = true;
    }
}

/// A trial's fields, with its place for errors.
struct Fields<'a> {
    value: &'a Value,
    place: String,
}

impl Fields<'_> {
    fn missing(&self, key: &str, wanted: &str) -> ImportError {
        fault(&self.place, &format!("`{key}` must be {wanted}"))
    }

    fn flag(&self, key: &str) -> Result<bool, ImportError> {
        self.value[key].as_bool().ok_or_else(|| self.missing(key, "a truth value"))
    }

    fn count(&self, key: &str) -> Result<u64, ImportError> {
        self.value[key].as_u64().ok_or_else(|| self.missing(key, "a count"))
    }

    fn number(&self, key: &str) -> Result<f64, ImportError> {
        let number = self.value[key].as_f64().filter(|n| n.is_finite());
        number.ok_or_else(|| self.missing(key, "a number"))
    }

    fn text(&self, key: &str) -> Result<&str, ImportError> {
        self.value[key].as_str().ok_or_else(|| self.missing(key, "text"))
    }

    fn numbers(&self, key: &str) -> Result<Vec<f64>, ImportError> {
        let list = self.value[key].as_array();
        let numbers = list.and_then(|l| l.iter().map(Value::as_f64).collect::<Option<Vec<f64>>>());
        numbers.filter(|n| !n.is_empty()).ok_or_else(|| self.missing(key, "a list of numbers"))
    }

    fn same<T: PartialEq + std::fmt::Display>(
        &self,
        fact: &str,
        found: T,
        expected: T,
    ) -> Result<(), ImportError> {
        if found == expected {
            return Ok(());
        }
        Err(ImportError::Fact {
            place: self.place.clone(),
            fact: fact.to_string(),
            found: found.to_string(),
            expected: expected.to_string(),
        })
    }

    fn plan(&self, error: PlanError) -> ImportError {
        ImportError::Plan { place: self.place.clone(), error }
    }
}

/// The planner's numbers of a library op on rows.
pub(super) fn row_problem(op: &str, rows: u64, columns: u64) -> Result<RowProblem, PlanError> {
    let program = ops::build(op, &OpRequest::shaped(DType::F32, &[rows, columns]))
        .map_err(|e| PlanError::Family(e.to_string()))?;
    let facts = analysis::facts(&program);
    let request = Request::new(&program, &facts);
    match &facts.family {
        tilewright_ir::facts::Family::Rows(rows) => RowProblem::new(&request, rows),
        _ => Err(PlanError::Family(format!("`{op}` isn't a row program"))),
    }
}

/// The mapping that the record's choices stand for: V = 4, U = 1, P = 1.
pub(super) fn row_mapping(threads: u64, cache: bool) -> RowMapping {
    RowMapping {
        lanes: 32,
        subgroups: (threads / 32).min(u64::from(u32::MAX)) as u32,
        vector: 4,
        unroll: 1,
        accumulators: 1,
        pack: 1,
        cache,
        fuse: false,
        ..RowMapping::ONE
    }
}

fn row(t: &Fields<'_>) -> Result<(TrainingRow, ServiceCounts, f64), ImportError> {
    let (m, n) = (t.count("m")?, t.count("n")?);
    let (threads, cache) = (t.count("threads")?, t.flag("cache")?);
    let op = t.text("op")?;
    let problem = row_problem(op, m, n).map_err(|e| t.plan(e))?;
    let mapping = row_mapping(threads, cache);
    let counts = RowCounts::new(&problem, &mapping);
    let unknown = || t.missing("op", "an op whose payload bytes are known");
    let program = counts.program_bytes.ok_or_else(unknown)?;
    let worker = counts.worker_bytes.ok_or_else(unknown)?;
    for (key, expected) in [
        ("scalar_rounds", counts.scalar_rounds),
        ("reduction_operations", counts.reductions),
        ("subgroups_per_program", mapping.subgroups.into()),
        ("threadgroups", counts.groups),
        ("programs", counts.programs),
        ("striped_storage_scalars_per_worker", counts.private_scalars),
        ("global_read_bytes_program", program.global_read),
        ("global_write_bytes_program", program.global_write),
        ("private_read_bytes_program", program.private_read),
        ("private_write_bytes_program", program.private_write),
        ("global_read_bytes_worker", worker.global_read),
        ("global_write_bytes_worker", worker.global_write),
        ("private_read_bytes_worker", worker.private_read),
        ("private_write_bytes_worker", worker.private_write),
    ] {
        t.same(key, t.count(key)?, expected)?;
    }
    let repetitions = t.number("control_repetitions")?;
    let samples = t.numbers("control_command_buffer_ns")?;
    let service = ServiceCounts {
        rounds: counts.scalar_rounds,
        reductions: counts.reductions,
        subgroups: mapping.subgroups.into(),
        groups: counts.groups,
        programs: counts.programs,
        pack: 1,
        program_global: program.global_read + program.global_write,
        worker_global: worker.global_read + worker.global_write,
        worker_private: worker.private_read + worker.private_write,
    };
    let v1 = ReductionV1::default().program(&counts, mapping.subgroups, 1);
    let target = Target::apple_m1_max();
    let view = CandidateView {
        target: &target,
        problem: Problem::Rows(&problem),
        mapping: &Mapping::Rows(mapping),
        facts: &CandidateFacts::Rows(counts),
        cpu_threads: 1,
    };
    let (_, inputs) = Family::of(&view).map_err(|e| t.plan(e.into()))?;
    let sample = Sample {
        case: t.text("case")?.to_string(),
        // Zero-padded, so that the order of text is that of (rows, columns).
        shape: format!("{m:08}x{n:08}"),
        operator: op.to_string(),
        candidate: format!("{threads} threads, {}", if cache { "cache" } else { "reload" }),
        label: t.number("control_p50_us")?,
        samples: samples.iter().map(|ns| ns / repetitions / 1000.0).collect(),
    };
    Ok((TrainingRow { sample, inputs, incumbent: false }, service, v1))
}

/// Kernel scores of `matrix-mpp-v1` by case, block and threads. Each policy chooses its own
/// distribution of subgroups; the record has the choice of v2 only.
#[derive(Default)]
struct FirstScores(HashMap<([u64; 3], [u64; 3], u64), f64>);

impl FirstScores {
    fn get(
        &mut self,
        size: [u64; 3],
        block: [u64; 3],
        threads: u64,
    ) -> Result<Option<f64>, PlanError> {
        if !self.0.keys().any(|(s, _, _)| *s == size) {
            let [m, n, k] = size;
            let problem = MatrixProblem::plain(m, n, k);
            let (target, policy) = (Target::apple_m1_max(), MatrixMppV1::default());
            let ranking = plan_matrix(&problem, &target, &policy, &SpaceOptions::default())?;
            for candidate in &ranking.candidates {
                if let (Mapping::Matrix(m), Ok(score)) = (&candidate.mapping, &candidate.verdict) {
                    self.0.insert((size, m.block, m.threads.into()), score.kernel);
                }
            }
        }
        Ok(self.0.get(&(size, block, threads)).copied())
    }
}

fn matrix(t: &Fields<'_>, first: &mut FirstScores) -> Result<(TrainingRow, [f64; 2]), ImportError> {
    let (m, n, k) = (t.count("m")?, t.count("n")?, t.count("k")?);
    let block: Vec<u64> =
        t.numbers("block")?.iter().filter(|v| **v >= 0.0).map(|v| *v as u64).collect();
    let block: [u64; 3] = block.try_into().map_err(|_| t.missing("block", "three counts"))?;
    let grid = t.value["matrices"][0].as_array().map(Vec::as_slice).unwrap_or_default();
    let grid: Vec<u64> = grid.iter().filter_map(Value::as_u64).collect();
    let [gm, gn, rm, rn] = grid.as_slice() else {
        return Err(t.missing("matrices", "a list of four counts"));
    };
    let threads = t.count("threads")?;
    let problem = MatrixProblem::plain(m, n, k);
    let rules = MatrixRules { basis: MatrixBasis::Mpp, gate: FragmentGate::WithOperands };
    let mut mapping = realise(&problem, rules, &SpaceOptions::default(), block);
    mapping.threads = threads.min(u64::from(u32::MAX)) as u32;
    mapping.subgroups = [*gm, *gn];
    mapping.atoms = [*rm, *rn];
    let counts = MatrixCounts::new(&problem, &mapping);
    for (name, expected) in counts.features.named() {
        t.same(name, t.number(name)?, expected)?;
    }
    for (key, expected) in [
        ("programs", counts.programs),
        ("shared_memory_bytes", counts.shared_bytes),
        ("independent_elements", counts.independent_elements),
        ("fragment_scalars_per_lane", counts.fragment_scalars_per_lane),
    ] {
        t.same(key, t.count(key)?, expected)?;
    }
    let target = Target::apple_m1_max();
    let view = CandidateView {
        target: &target,
        problem: Problem::Matrix(&problem),
        mapping: &Mapping::Matrix(mapping),
        facts: &CandidateFacts::Matrix(counts),
        cpu_threads: 1,
    };
    let policy = |p: &dyn Policy| p.score(&view).map(|s| s.kernel).map_err(|e| t.plan(e.into()));
    let v1 = first.get([m, n, k], block, threads).map_err(|e| t.plan(e))?;
    let v1 = v1.ok_or_else(|| t.missing("block", "one of the reference's 15, legal"))?;
    let v2 = policy(&MatrixMppV2::default())?;
    let (_, inputs) = Family::of(&view).map_err(|e| t.plan(e.into()))?;
    let [bm, bn, bk] = block;
    let sample = Sample {
        case: format!("gemm_{m}x{n}x{k}"),
        shape: format!("{m:08}x{n:08}x{k:08}"),
        operator: "gemm".to_string(),
        candidate: format!("block {bm}x{bn}x{bk}, {threads} threads"),
        label: t.number("native_p50_us")?,
        samples: t.numbers("native_throughput_us")?,
    };
    Ok((TrainingRow { sample, inputs, incumbent: false }, [v1, v2]))
}

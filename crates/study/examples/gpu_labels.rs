//! From measured candidates to training files: reads what the `labels` example of the `cuda` crate
//! wrote, plans every case again, and writes each legal candidate with its label and what the
//! model sees of it.
//!
//! usage: gpu_labels LABELS.jsonl FAMILY OUT.csv [SET]
//!
//! FAMILY is `gpu-register-rows` or `gpu-register-matrix`; SET `train` or `hold-out` keeps those
//! cases only. The incumbent of a case is the pick of the `gpu` policy. Candidates that the space has
//! gained since are left out and counted: regret is then that among those with labels.

use std::collections::HashMap;

use serde_json::Value;
use tilewright_ir::facts::Family as IrFamily;
use tilewright_ir::ops::catalog::{OpRequest, build};
use tilewright_ir::{DType, analysis};
use tilewright_plan::calibrate::Sample;
use tilewright_plan::mapping::Mapping;
use tilewright_plan::policy::CandidateView;
use tilewright_plan::policy::gpu::Gpu;
use tilewright_plan::policy::whole_launch::Family;
use tilewright_plan::problem::{MatrixProblem, Problem, RowProblem};
use tilewright_plan::ranking::describe;
use tilewright_plan::{Request, Target, plan};
use tilewright_study::export;
use tilewright_study::import::{Training, TrainingRow};

type Error = Box<dyn std::error::Error>;

/// What every tensor is aligned to.
const ALIGN: u64 = 16;

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match (sorted.len(), sorted.len() % 2) {
        (0, _) => f64::NAN,
        (_, 1) => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}

/// Rows of one case, if it is of the family.
fn rows(
    case: &Value,
    wanted: Family,
    target: &Target,
    left_out: &mut usize,
) -> Result<Vec<TrainingRow>, Error> {
    let text = |name: &str| case[name].as_str().ok_or(format!("`{name}` is missing"));
    let (id, op) = (text("case")?, text("op")?);
    let dtype: DType = text("dtype")?.parse()?;
    let shape: Vec<u64> = serde_json::from_value(case["shape"].clone())?;
    let mut program = build(op, &OpRequest::shaped(dtype, &shape))?;
    let ids: Vec<_> = program.tensors.iter().map(|(id, _)| id).collect();
    ids.into_iter().for_each(|id| program.tensors[id].align = ALIGN);
    let facts = analysis::facts(&program);
    let request = Request::new(&program, &facts);
    let (row_problem, matrix_problem);
    let problem = match (&facts.family, wanted) {
        (IrFamily::Rows(found), Family::GpuRegisterRows) => {
            row_problem = RowProblem::new(&request, found)?;
            Problem::Rows(&row_problem)
        }
        (IrFamily::Matrix(found), Family::GpuRegisterMatrix) => {
            matrix_problem = MatrixProblem::new(&request, found)?;
            Problem::Matrix(&matrix_problem)
        }
        _ => return Ok(Vec::new()),
    };
    let mut labels: HashMap<Mapping, Vec<f64>> = HashMap::new();
    for candidate in case["candidates"].as_array().into_iter().flatten() {
        let mapping: Mapping = serde_json::from_value(candidate["mapping"].clone())?;
        let samples = candidate["us"].as_array().into_iter().flatten().filter_map(Value::as_f64);
        labels.insert(mapping, samples.collect());
    }
    let ranking = plan(&request, target, &Gpu)?;
    let sizes: Vec<String> = shape.iter().map(u64::to_string).collect();
    let mut out = Vec::new();
    for (i, candidate) in ranking.candidates.iter().enumerate() {
        if candidate.verdict.is_err() {
            continue;
        }
        let name = describe(&candidate.mapping);
        let samples = labels.get(&candidate.mapping).filter(|s| !s.is_empty());
        let Some(samples) = samples else {
            *left_out += 1;
            continue;
        };
        let view = CandidateView {
            target,
            problem,
            mapping: &candidate.mapping,
            facts: &candidate.facts,
            cpu_threads: 1,
        };
        let (_, inputs) = Family::of(&view)?;
        out.push(TrainingRow {
            sample: Sample {
                case: id.to_string(),
                shape: sizes.join("x"),
                operator: op.to_string(),
                candidate: name,
                label: median(samples),
                samples: samples.clone(),
            },
            inputs,
            incumbent: ranking.chosen() == Some(i),
        });
    }
    Ok(out)
}

fn main() -> Result<(), Error> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [labels, family, out, set @ ..] = args.as_slice() else {
        return Err("usage: gpu_labels LABELS.jsonl FAMILY OUT.csv [SET]".into());
    };
    let family = Family::by_name(family).ok_or("no such family")?;
    let target = Target::nvidia_h200();
    let mut training = Training { family, target: target.name.clone(), rows: Vec::new() };
    let mut left_out = 0;
    for line in std::fs::read_to_string(labels)?.lines() {
        let case: Value = serde_json::from_str(line)?;
        let wanted = set.first().is_none_or(|set| case["set"].as_str() == Some(set.as_str()));
        if wanted && case["candidates"].is_array() {
            training.rows.extend(rows(&case, family, &target, &mut left_out)?);
        }
    }
    let mut cases: Vec<&str> = training.rows.iter().map(|r| r.sample.case.as_str()).collect();
    cases.dedup();
    let all = training.rows.len();
    println!("{all} candidates of {} cases; {left_out} without labels are left out", cases.len());
    std::fs::write(out, export::training(&training)?)?;
    Ok(())
}

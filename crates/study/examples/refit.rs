//! Fits recorded searches again with the present inputs of the model, and prints what the fit is
//! worth on shapes that it hasn't seen: for work on the model, between studies.
//!
//! `cargo run --release -p tilewright-study --example refit -- DIR… [-SHAPE…]`
//! takes the searches of records made on this machine; shapes after a minus are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use tilewright_ir::analysis;
use tilewright_ir::facts::Family as IrFamily;
use tilewright_plan::calibrate::{Split, Strategy, nested, whole_launch};
use tilewright_plan::mapping::Mapping;
use tilewright_plan::policy::cpu_matrix::CpuMatrixCounts;
use tilewright_plan::policy::whole_launch::Family;
use tilewright_plan::policy::{CandidateFacts, CandidateView};
use tilewright_plan::problem::{MatrixProblem, Problem, RowProblem};
use tilewright_plan::rows::RowCounts;
use tilewright_plan::{Request, Target};
use tilewright_study::fit::{shape_text, training, weighted};
use tilewright_study::record::SearchFile;

type Fault = Box<dyn std::error::Error>;

/// Sets the inputs of every candidate anew.
fn renew(search: &mut SearchFile, target: &Target) -> Result<(), Fault> {
    let program = search.case.program()?;
    let facts = analysis::facts(&program);
    let request = Request::new(&program, &facts);
    let (rows, matrix);
    let problem = match &facts.family {
        IrFamily::Rows(facts) => {
            rows = RowProblem::new(&request, facts)?;
            Problem::Rows(&rows)
        }
        IrFamily::Matrix(facts) => {
            matrix = MatrixProblem::new(&request, facts)?;
            Problem::Matrix(&matrix)
        }
        IrFamily::Other(reason) => return Err(reason.clone().into()),
    };
    for candidate in &mut search.candidates {
        let facts = match (problem, &candidate.mapping) {
            (Problem::Rows(p), Mapping::Rows(m)) => CandidateFacts::Rows(RowCounts::new(p, m)),
            (Problem::Matrix(p), Mapping::CpuMatrix(m)) => {
                CandidateFacts::CpuMatrix(CpuMatrixCounts::new(p, m))
            }
            _ => return Err("a mapping of another family".into()),
        };
        let view = CandidateView {
            target,
            problem,
            mapping: &candidate.mapping,
            facts: &facts,
            cpu_threads: search.case.threads,
        };
        let (family, inputs) = Family::of(&view)?;
        candidate.inputs = inputs[..family.inputs().len()].to_vec();
    }
    Ok(())
}

fn read(folder: &Path, target: &Target) -> Result<Vec<SearchFile>, Fault> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let mut search: SearchFile = serde_json::from_slice(&std::fs::read(entry?.path())?)?;
        renew(&mut search, target)?;
        out.push(search);
    }
    Ok(out)
}

fn main() -> Result<(), Fault> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let isa = tilewright_cpu::host::best_isa();
    let target = Target::cpu(tilewright_cpu::host::facts(isa));
    let without: BTreeSet<&str> = args.iter().filter_map(|a| a.strip_prefix('-')).collect();
    let mut searches = Vec::new();
    for dir in args.iter().filter(|a| !a.starts_with('-')) {
        searches.extend(read(&Path::new(dir).join("search"), &target)?);
    }
    searches.retain(|s| {
        let shape = shape_text(&s.case.shape);
        !without.contains(shape.as_str()) && !without.contains(s.case.id.as_str())
    });
    searches.sort_by(|a, b| a.case.id.cmp(&b.case.id));
    for family in Family::ALL {
        let own: Vec<&SearchFile> = searches.iter().filter(|s| s.family == family.name()).collect();
        if !own.is_empty() {
            report(family, &own)?;
        }
    }
    Ok(())
}

fn report(family: Family, searches: &[&SearchFile]) -> Result<(), Fault> {
    let training = training(family, "cpu", searches);
    let data = weighted(training.dataset()?, searches)?;
    let (inputs, incumbents) = (training.inputs(), training.incumbents());
    let fit = whole_launch::fit_family(family, &data, &inputs, &incumbents)?;
    let folds = nested(&data, Split::Shape, Strategy::Average)?;
    let picks: Vec<_> = folds.iter().flat_map(|f| &f.picks).collect();
    let regrets: Vec<f64> = picks.iter().map(|p| p.regret()).collect();
    let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len().max(1) as f64;
    let top3: Vec<f64> = picks.iter().map(|p| p.top3_regret()).collect();
    println!(
        "{}: {} cases; regret mean {:.4}, max {:.4}, of the best of 3 {:.4}",
        family.name(),
        picks.len(),
        mean(&regrets),
        regrets.iter().copied().fold(0.0, f64::max),
        mean(&top3)
    );
    for t in fit.model.terms() {
        println!("  {:>16} {:.4e}", fit.model.label(t), t.coefficient);
    }
    println!("  {:?}", fit.confidence);
    println!("  covered without the own shape: {:.3}", whole_launch::coverage(&data, &folds));
    let predictions: BTreeMap<usize, f64> =
        folds.iter().flat_map(|f| f.predictions.iter().copied()).collect();
    let (mut undecided, mut gains) = (0, Vec::new());
    for (case, rows) in data.cases(&data.all()) {
        let least = rows.iter().map(|r| predictions[r]).fold(f64::INFINITY, f64::min);
        let near = rows.iter().filter(|r| predictions[r] <= least * fit.confidence.slack).count();
        undecided += usize::from(near > (rows.len() / 4).max(4));
        let pick = picks.iter().find(|p| p.case == case).ok_or("a case without a pick")?;
        if let Some(incumbent) = rows.iter().find(|r| incumbents.contains(r)) {
            let measured = data.samples()[*incumbent].label / pick.label;
            gains.push((predictions[incumbent] / pick.prediction, measured, case));
        }
    }
    println!("  undecided: {undecided} of {}", picks.len());
    gains.sort_by(|a, b| b.0.total_cmp(&a.0));
    for (predicted, measured, case) in gains {
        println!("  gain predicted {predicted:.3}, measured {measured:.3}: {case}");
    }
    let mut worst: Vec<_> = picks.iter().map(|p| (p.regret(), p.case.as_str(), p.row)).collect();
    worst.sort_by(|a, b| b.0.total_cmp(&a.0));
    for (regret, case, row) in worst.iter().take(12) {
        println!("  {regret:.3} {case}: {}", data.samples()[*row].candidate);
    }
    Ok(())
}

//! Ablations: every combination of a few factors of a mapping, measured in balanced rounds beside
//! an A/A path, so that each factor's effect can be read at fixed values of the others.

use crate::adhoc::with_bench;
use crate::bench::{Bench, Setup};
use crate::canonical::derive;
use crate::case::{Case, CaseSet};
use crate::error::StudyError;
use crate::order;
use crate::protocol::{Protocol, Samples};
use crate::record::{Fault, Outcome};
use crate::search::{inputs_seed, verdict};
use crate::spec::{Metric, Study};
use crate::stats::{median, quantile};
use crate::subject::{Candidates, Subject};
use serde::Serialize;
use serde_json::Value;

/// `schema` of an ablation.
pub const SCHEMA: &str = "tilewright-ablate-v1";

/// Most combinations.
const MAX_CELLS: usize = 32;

/// A factor: a field of the mapping and the values to compare.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Factor {
    /// The field.
    pub name: String,
    /// Its values, the first the base.
    pub levels: Vec<Value>,
}

impl Factor {
    /// Parses `unroll=1,4` or `cache=off,on`. `width` means `subgroups`, `reuse` means `cache`
    /// (`reload`, `cache`).
    ///
    /// # Errors
    /// It has another form or fewer than two values.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (name, levels) =
            text.split_once('=').ok_or_else(|| format!("`{text}` isn't NAME=VALUE,VALUE"))?;
        let name = match name.trim() {
            "width" => "subgroups",
            "reuse" => "cache",
            other => other,
        };
        let levels: Vec<Value> = levels
            .split(',')
            .map(|level| match level.trim() {
                "on" | "cache" => Value::Bool(true),
                "off" | "reload" => Value::Bool(false),
                // Blocks and tiles are lists: 8x3.
                text if text.contains('x') => text.split('x').map(number).collect(),
                text => number(text),
            })
            .collect();
        if levels.len() < 2 {
            return Err(format!("factor `{name}` needs at least two values"));
        }
        Ok(Factor { name: name.to_string(), levels })
    }
}

fn number(text: &str) -> Value {
    text.trim().parse::<u64>().map_or_else(|_| Value::String(text.to_string()), Value::from)
}

/// A combination of levels.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Cell {
    /// The value of each factor.
    pub levels: Vec<Value>,
    /// Index of its plan in the space.
    pub plan: usize,
    /// Its mapping.
    pub mapping: Value,
    /// Fields that had to differ from the base beyond the factors.
    pub also: Vec<String>,
    /// What became of it.
    pub outcome: Outcome,
    /// Why it isn't valid.
    pub error: Option<Fault>,
    /// Time of each round.
    pub rounds_us: Vec<f64>,
    /// Their median.
    pub median_us: Option<f64>,
}

/// The effect of a factor between two of its values with the others fixed.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Effect {
    /// The factor.
    pub factor: String,
    /// From this value.
    pub from: Value,
    /// To this one.
    pub to: Value,
    /// Values of all factors at `from`.
    pub at: Vec<Value>,
    /// Median over rounds of time(from) / time(to): above 1, `to` is faster.
    pub median: f64,
    /// Smallest ratio.
    pub min: f64,
    /// Largest ratio.
    pub max: f64,
    /// Rounds in which `to` was faster.
    pub won: usize,
    /// Whether |ln median| exceeds the noise floor.
    pub beyond_floor: bool,
}

/// An ablation.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Ablation {
    /// [`SCHEMA`].
    pub schema: String,
    /// The case.
    pub case: Case,
    /// The factors.
    pub factors: Vec<Factor>,
    /// Settings.
    pub protocol: Protocol,
    /// Rounds measured.
    pub rounds: usize,
    /// Whether positions and precedence are balanced.
    pub balanced: bool,
    /// Every combination.
    pub cells: Vec<Cell>,
    /// 95th percentile of |ln| of the first cell against itself.
    pub floor: Option<f64>,
    /// Effects of each factor.
    pub effects: Vec<Effect>,
}

/// Every combination of levels, the last factor fastest.
fn combinations(factors: &[Factor]) -> Vec<Vec<Value>> {
    factors.iter().fold(vec![Vec::new()], |all, factor| {
        all.iter()
            .flat_map(|head: &Vec<Value>| {
                factor.levels.iter().map(move |level| {
                    let mut one = head.clone();
                    one.push(level.clone());
                    one
                })
            })
            .collect()
    })
}

/// Every combination, each as near to a base as there is one: the incumbent, or else the best-ranked
/// candidate of which all combinations exist with nothing else changed; the incumbent if none is.
fn cells(
    case: &Case,
    candidates: &Candidates,
    factors: &[Factor],
) -> Result<Vec<Cell>, StudyError> {
    let mut bases: Vec<usize> = (0..candidates.list.len()).collect();
    bases.sort_by(|a, b| candidates.list[*a].score.total_cmp(&candidates.list[*b].score));
    let near = |base: usize| -> Result<Vec<Cell>, StudyError> {
        let all = combinations(factors);
        all.iter().map(|levels| find(case, candidates, base, factors, levels)).collect()
    };
    let first = near(candidates.incumbent)?;
    let alone = |cells: &[Cell]| cells.iter().all(|c| c.also.is_empty());
    if alone(&first) {
        return Ok(first);
    }
    let other = bases.into_iter().filter_map(|base| near(base).ok()).find(|cells| alone(cells));
    Ok(other.unwrap_or(first))
}

/// The candidate that has these levels and differs least from the base otherwise.
fn find(
    case: &Case,
    candidates: &Candidates,
    base: usize,
    factors: &[Factor],
    levels: &[Value],
) -> Result<Cell, StudyError> {
    let fault = |message: String| StudyError::Case { case: case.id.clone(), message };
    let value = |i: usize| serde_json::to_value(candidates.list[i].mapping).unwrap_or_default();
    let base = value(base);
    if let Some(unknown) = factors.iter().find(|f| base.get(&f.name).is_none()) {
        let known: Vec<&String> = base.as_object().into_iter().flat_map(|o| o.keys()).collect();
        return Err(fault(format!("a mapping has no `{}`; it has {known:?}", unknown.name)));
    }
    let mut best: Option<(usize, f64, usize, Vec<String>)> = None;
    for (i, candidate) in candidates.list.iter().enumerate() {
        let mapping = value(i);
        let fits = factors.iter().zip(levels).all(|(f, level)| mapping.get(&f.name) == Some(level));
        if !fits {
            continue;
        }
        let also: Vec<String> = base
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(name, v)| {
                factors.iter().all(|f| f.name != **name) && mapping.get(*name) != Some(*v)
            })
            .map(|(name, _)| name.clone())
            .collect();
        let key = (also.len(), candidate.score);
        if best.as_ref().is_none_or(|b| key < (b.0, b.1)) {
            best = Some((also.len(), candidate.score, i, also));
        }
    }
    let (_, _, i, also) = best.ok_or_else(|| {
        let names: Vec<String> =
            factors.iter().zip(levels).map(|(f, l)| format!("{} = {l}", f.name)).collect();
        fault(format!("no legal candidate has {}", names.join(", ")))
    })?;
    Ok(Cell {
        levels: levels.to_vec(),
        plan: candidates.list[i].plan,
        mapping: value(i),
        also,
        outcome: Outcome::Valid,
        error: None,
        rounds_us: Vec::new(),
        median_us: None,
    })
}

/// Measures every combination of the factors in the only training case of a study.
///
/// # Errors
/// A factor that mappings don't have, a combination without a legal candidate, too many
/// combinations, or a failure of the workers.
pub fn ablate(
    setup: &Setup<'_>,
    study: &Study,
    factors: &[Factor],
) -> Result<Ablation, StudyError> {
    let case = study
        .set(CaseSet::Training)
        .next()
        .ok_or_else(|| StudyError::Order("there is no case to ablate".to_string()))?
        .clone();
    let count: usize = factors.iter().map(|f| f.levels.len()).product();
    if factors.is_empty() || count > MAX_CELLS {
        let message =
            format!("{count} combinations of {} factors, 2 to {MAX_CELLS}", factors.len());
        return Err(StudyError::Case { case: case.id, message });
    }
    let target = setup.device.target().clone();
    let subject = Subject::new(&case, &target, &study.space)?;
    let candidates = subject.candidates(&target, &study.space, &[])?;
    let cells = cells(&case, &candidates, factors)?;
    with_bench(setup, study, |bench, _| measure(bench, &subject, factors, cells))
}

fn measure(
    bench: &mut Bench<'_>,
    subject: &Subject,
    factors: &[Factor],
    mut cells: Vec<Cell>,
) -> Result<Ablation, StudyError> {
    let study = bench.study;
    let (protocol, case) = (study.replay, subject.case.clone());
    let basis = study.hash();
    let seed = inputs_seed(&basis, &case.id);
    // The last path is the first cell again.
    let n = cells.len() + 1;
    let rounds = protocol.rounds;
    let offset = order::reduce(derive(&format!("{basis}/{}/order", case.id)), 2 * n);
    let mut again: Vec<f64> = Vec::new();
    bench.setup.progress.begin(&case.id, rounds);
    for round in 0..rounds {
        bench.open(&case, seed, protocol.sets)?;
        let mut good = Vec::with_capacity(n);
        for slot in 0..n {
            let cell = slot % cells.len();
            good.push(prepare(bench, subject, slot, seed, &mut cells[cell])?);
        }
        let order: Vec<usize> =
            order::replay(n, offset, round).into_iter().filter(|p| good[*p]).collect();
        let times = interleaved(bench, &protocol, &order, n)?;
        for (slot, time) in times.into_iter().enumerate() {
            match time {
                Some(us) if slot < cells.len() => cells[slot].rounds_us.push(us),
                Some(us) => again.push(us),
                None if good[slot] && slot < cells.len() => {
                    cells[slot].outcome = Outcome::Failed;
                    cells[slot].error = Some(Fault::new("a measurement failed"));
                }
                None => {}
            }
        }
        bench.setup.progress.advance("");
    }
    bench.setup.progress.end();
    for cell in &mut cells {
        cell.median_us = (!cell.rounds_us.is_empty()).then(|| median(&cell.rounds_us));
    }
    let noise: Vec<f64> =
        cells[0].rounds_us.iter().zip(&again).map(|(a, b)| (b / a).ln().abs()).collect();
    let floor = (noise.len() == rounds).then(|| quantile(&noise, study.verdict.quantile));
    Ok(Ablation {
        schema: SCHEMA.to_string(),
        effects: effects(factors, &cells, floor),
        factors: factors.to_vec(),
        balanced: rounds.is_multiple_of(2 * n),
        case,
        protocol,
        rounds,
        cells,
        floor,
    })
}

/// Compiles and checks a cell into a slot. Whether it may be timed.
fn prepare(
    bench: &mut Bench<'_>,
    subject: &Subject,
    slot: usize,
    seed: u64,
    cell: &mut Cell,
) -> Result<bool, StudyError> {
    if cell.outcome != Outcome::Valid {
        return Ok(false);
    }
    let mut compiled = bench.compile(&[[slot, cell.plan]], 1, false)?;
    let missing = Err((Outcome::Failed, Fault::new("it wasn't compiled")));
    match compiled.remove(&slot).unwrap_or(missing) {
        Ok(_) => {
            let (outcome, error, _) = verdict(bench.check(subject, seed, slot)?);
            (cell.outcome, cell.error) = (outcome, error);
        }
        Err((outcome, fault)) => (cell.outcome, cell.error) = (outcome, Some(fault)),
    }
    Ok(cell.outcome == Outcome::Valid)
}

/// Times of the slots in one round, batch by batch in turn.
fn interleaved(
    bench: &mut Bench<'_>,
    protocol: &Protocol,
    order: &[usize],
    n: usize,
) -> Result<Vec<Option<f64>>, StudyError> {
    let metric = bench.study.metric.of_labels();
    let mut all: Vec<Option<Samples>> = vec![None; n];
    for slot in order {
        all[*slot] = bench.start(*slot, protocol)?.ok();
    }
    for pass in 0..protocol.samples {
        for slot in order::pass(order.len(), pass).into_iter().map(|at| &order[at]) {
            let Some(samples) = &mut all[*slot] else { continue };
            let on_device = samples.device_repetitions.filter(|_| metric == Metric::Device);
            let (time, into) = match on_device {
                Some(n) => {
                    (bench.device_batch(*slot, n)?, samples.device_ns.get_or_insert_default())
                }
                None => (bench.batch(*slot, samples.repetitions)?, &mut samples.batch_ns),
            };
            match time {
                Ok(ns) => into.push(ns),
                Err(_) => all[*slot] = None,
            }
        }
    }
    let time = |s: Samples| s.quantile(metric, protocol.time_quantile());
    Ok(all.into_iter().map(|s| s.and_then(time)).collect())
}

/// Effects of each factor from its first level to each other one, at every combination of the
/// other factors.
fn effects(factors: &[Factor], cells: &[Cell], floor: Option<f64>) -> Vec<Effect> {
    let mut out = Vec::new();
    for (f, factor) in factors.iter().enumerate() {
        for base in cells.iter().filter(|c| c.levels[f] == factor.levels[0]) {
            for other in cells {
                let same_else = (0..factors.len()).all(|i| {
                    if i == f {
                        other.levels[i] != base.levels[i]
                    } else {
                        other.levels[i] == base.levels[i]
                    }
                });
                let whole = base.rounds_us.len() == other.rounds_us.len();
                if !same_else || !whole || base.rounds_us.is_empty() {
                    continue;
                }
                let ratios: Vec<f64> =
                    base.rounds_us.iter().zip(&other.rounds_us).map(|(a, b)| a / b).collect();
                let middle = median(&ratios);
                out.push(Effect {
                    factor: factor.name.clone(),
                    from: base.levels[f].clone(),
                    to: other.levels[f].clone(),
                    at: base.levels.clone(),
                    median: middle,
                    min: quantile(&ratios, 0.0),
                    max: quantile(&ratios, 1.0),
                    won: ratios.iter().filter(|r| **r > 1.0).count(),
                    beyond_floor: floor.is_some_and(|floor| middle.ln().abs() > floor),
                });
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn factors_are_parsed_and_combined() {
        let factors =
            [Factor::parse("width=1,4").unwrap(), Factor::parse("reuse=reload,cache").unwrap()];
        assert_eq!(factors[0].name, "subgroups");
        assert_eq!(factors[1].levels, [json!(false), json!(true)]);
        let all = combinations(&factors);
        assert_eq!(all.len(), 4);
        assert_eq!(all[1], [json!(1), json!(true)]);
        assert_eq!(Factor::parse("tile=8x3,6x4").unwrap().levels, [json!([8, 3]), json!([6, 4])]);
        assert!(Factor::parse("unroll").is_err());
        assert!(Factor::parse("unroll=1").is_err());
    }

    /// Width by reuse on a GPU whose registers are known: nothing else differs between the cells.
    #[test]
    fn cells_of_a_register_space_differ_in_their_factors_alone() {
        let text = "name = \"a\"\ndevice = \"cuda\"\n[[family]]\n\
                    ops = [\"softmax\", \"rmsnorm\", \"layernorm\"]\ntraining = [\"37x1537\"]\n";
        let study = Study::parse(text, false).unwrap();
        let target = tilewright_plan::Target::nvidia_h200();
        let factors =
            [Factor::parse("width=6,12").unwrap(), Factor::parse("reuse=reload,cache").unwrap()];
        for case in study.set(CaseSet::Training) {
            let subject = Subject::new(case, &target, &study.space).unwrap();
            let candidates = subject.candidates(&target, &study.space, &[]).unwrap();
            let cells = cells(case, &candidates, &factors).unwrap();
            assert!(cells.iter().all(|c| c.also.is_empty()), "{}: {cells:?}", case.id);
            let plans: std::collections::BTreeSet<usize> = cells.iter().map(|c| c.plan).collect();
            assert_eq!(plans.len(), 4, "{}", case.id);
        }
    }

    #[test]
    fn an_effect_is_read_with_the_other_factors_fixed() {
        let factors =
            [Factor::parse("unroll=1,2").unwrap(), Factor::parse("cache=off,on").unwrap()];
        let cells: Vec<Cell> = combinations(&factors)
            .into_iter()
            .zip([8.0, 4.0, 2.0, 1.0])
            .map(|(levels, us)| Cell {
                levels,
                plan: 0,
                mapping: Value::Null,
                also: Vec::new(),
                outcome: Outcome::Valid,
                error: None,
                rounds_us: vec![us; 3],
                median_us: Some(us),
            })
            .collect();
        let effects = effects(&factors, &cells, Some(0.1));
        assert_eq!(effects.len(), 4);
        let of = |name: &str| effects.iter().filter(|e| e.factor == name).collect::<Vec<_>>();
        assert!(of("unroll").iter().all(|e| e.median == 4.0 && e.won == 3 && e.beyond_floor));
        assert!(of("cache").iter().all(|e| e.median == 2.0));
    }
}

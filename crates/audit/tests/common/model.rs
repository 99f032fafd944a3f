//! Fit and frozen plans.

use super::{measure, sha};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Rows have the model of a CPU, products that of a GPU, so that every record has both kinds.
pub fn family(case: &Value) -> &'static str {
    if case["family"] == "rows" { "cpu-rows" } else { "gpu-matrix" }
}

pub fn inputs(case: &Value) -> &'static [&'static str] {
    if case["family"] == "rows" {
        &["launch", "arithmetic", "rows"]
    } else {
        &[
            "programs",
            "subgroups",
            "fragment_scalars",
            "matrix_issues",
            "footprint_fragments",
            "fragment_reads",
            "independent_elements",
        ]
    }
}

/// Terms of the models, with their capacities.
fn terms(family: &str) -> &'static [(&'static str, Option<u32>)] {
    match family {
        "cpu-rows" => &[("launch", None), ("arithmetic", None), ("rows", None)],
        _ => &[("launch", None), ("footprint", None), ("issues", Some(16)), ("issues", Some(64))],
    }
}

/// The terms of each fit that a model is the mean of.
fn designs(family: &str) -> &'static [&'static [usize]] {
    match family {
        "cpu-rows" => &[&[0, 1, 2]],
        _ => &[&[0, 1, 2], &[0, 1, 3]],
    }
}

/// Passes in which a GPU takes a launch.
pub fn passes(x: &[f64], capacity: f64) -> f64 {
    let at_once = (capacity / (x[1] * (x[2] / 32.0).max(1.0))).floor().max(1.0);
    (x[0] / at_once).ceil().max(1.0)
}

/// Values of the terms.
fn values(family: &str, x: &[f64]) -> Vec<f64> {
    let value = |(term, capacity): &(&str, Option<u32>)| match (*term, capacity) {
        ("launch", _) => 1.0,
        ("footprint", _) => x[4] * x[0],
        ("issues", Some(capacity)) => x[3] / x[1] * passes(x, f64::from(*capacity)),
        _ => unreachable!(),
    };
    if family == "cpu-rows" {
        return x.to_vec();
    }
    terms(family).iter().map(value).collect()
}

struct Row {
    case: String,
    shape: String,
    candidate: usize,
    label: f64,
    /// How far its rounds lie apart, or the middle one of its case's candidates where that is more.
    spread: f64,
    inputs: Vec<f64>,
    /// Values of the terms.
    x: Vec<f64>,
}

fn floats(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

fn spread(trial: &Value) -> f64 {
    measure::spread(&trial["rounds"])
}

impl Row {
    fn weight(&self) -> f64 {
        1.0 / (1.0 + (self.spread / 0.1).powi(2))
    }
}

fn rows(searches: &[&Value]) -> Vec<Row> {
    let mut out = Vec::new();
    for search in searches {
        let valid = search["trials"].as_array().unwrap().iter();
        let valid = valid.filter(|t| t["outcome"] == "valid");
        let middle = quantile(valid.map(spread).collect(), 0.5);
        for (candidate, trial) in search["trials"].as_array().unwrap().iter().enumerate() {
            if trial["outcome"] != "valid" {
                continue;
            }
            let shape: Vec<String> =
                search["case"]["shape"].as_array().unwrap().iter().map(Value::to_string).collect();
            out.push(Row {
                case: search["case"]["id"].as_str().unwrap().to_string(),
                shape: shape.join("x"),
                candidate,
                label: trial["label_us"].as_f64().unwrap(),
                spread: spread(trial).max(middle),
                inputs: floats(&search["candidates"][candidate]["inputs"]),
                x: values(
                    search["family"].as_str().unwrap(),
                    &floats(&search["candidates"][candidate]["inputs"]),
                ),
            });
        }
    }
    out
}

/// What the coefficients of a family's fits stay near, and strengths, the strongest first; products
/// have such a prior, rows none.
fn prior(family: &str) -> Option<(f64, [f64; 3])> {
    (family == "gpu-matrix").then_some((1.0, [1e-2, 1e-3, 1e-5]))
}

/// Nonnegative least squares by cyclic coordinate descent on the normal equations, with a penalty of
/// strength·Σw·(c − toward)² for each coefficient.
fn fit(rows: &[&Row], design: &[usize], (strength, toward): (f64, f64)) -> Vec<f64> {
    let n = design.len();
    let scale: Vec<f64> = (0..n)
        .map(|j| {
            let square = |r: &&Row| r.weight() * (r.x[design[j]] / r.label).powi(2);
            rows.iter().map(square).sum::<f64>().sqrt()
        })
        .collect();
    let root = |r: &Row| r.weight().sqrt();
    let a = |r: &Row, j: usize| root(r) * r.x[design[j]] / r.label / scale[j];
    let heavy = strength * rows.iter().map(|r| r.weight()).sum::<f64>();
    let mut gram: Vec<Vec<f64>> = (0..n)
        .map(|i| (0..n).map(|j| rows.iter().map(|r| a(r, i) * a(r, j)).sum()).collect())
        .collect();
    let mut target: Vec<f64> =
        (0..n).map(|j| rows.iter().map(|r| root(r) * a(r, j)).sum()).collect();
    for j in 0..n {
        gram[j][j] += heavy / (scale[j] * scale[j]);
        target[j] += heavy * toward / scale[j];
    }
    let mut c = vec![0.0; n];
    for _ in 0..100_000 {
        let before = c.clone();
        for j in 0..n {
            let rest: f64 = (0..n).filter(|i| *i != j).map(|i| gram[j][i] * c[i]).sum();
            c[j] = f64::max(0.0, (target[j] - rest) / gram[j][j]);
        }
        if c == before {
            break;
        }
    }
    c.iter().zip(&scale).map(|(c, s)| c / s).collect()
}

/// Fits of every design, with a strength where the family has a prior.
fn fits(family: &str, rows: &[&Row], strength: Option<f64>) -> Vec<Vec<f64>> {
    let toward = prior(family).map_or(0.0, |p| p.0);
    let penalty = (strength.unwrap_or(0.0), toward);
    designs(family).iter().map(|design| fit(rows, design, penalty)).collect()
}

/// The strength by leaving out each shape of some rows: smallest mean regret, then error, then the
/// first.
fn strength(family: &str, rows: &[&Row]) -> Option<f64> {
    let mut shapes: Vec<&str> = rows.iter().map(|r| r.shape.as_str()).collect();
    shapes.sort_unstable();
    shapes.dedup();
    let mut best: Option<([f64; 2], f64)> = None;
    for strength in prior(family)?.1 {
        let (mut regrets, mut square) = (Vec::new(), 0.0);
        for shape in &shapes {
            let rest: Vec<&Row> = rows.iter().copied().filter(|r| r.shape != *shape).collect();
            let c = mean(family, &fits(family, &rest, Some(strength)));
            let held: Vec<&Row> = rows.iter().copied().filter(|r| r.shape == *shape).collect();
            let mut cases: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
            for row in held {
                let own = predict(&c, &row.x);
                square += row.weight() * (own / row.label - 1.0).powi(2);
                cases.entry(&row.case).or_default().push((own, row.label));
            }
            for own in cases.values() {
                let least = |a: (f64, f64), b: &(f64, f64)| if b.0 < a.0 { *b } else { a };
                let pick = own.iter().fold(own[0], least).1;
                let best = own.iter().map(|o| o.1).fold(f64::MAX, f64::min);
                regrets.push(pick / best - 1.0);
            }
        }
        let weight: f64 = rows.iter().map(|r| r.weight()).sum();
        let regret = regrets.iter().sum::<f64>() / regrets.len() as f64;
        let found = [regret, square / weight];
        if best.is_none_or(|(best, _)| found < best) {
            best = Some((found, strength));
        }
    }
    best.map(|(_, strength)| strength)
}

/// Their mean.
fn mean(family: &str, fits: &[Vec<f64>]) -> Vec<f64> {
    let mut all = vec![0.0; terms(family).len()];
    for (design, fit) in designs(family).iter().zip(fits) {
        for (term, c) in design.iter().zip(fit) {
            all[*term] += c / fits.len() as f64;
        }
    }
    all
}

pub fn predict(coefficients: &[f64], x: &[f64]) -> f64 {
    coefficients.iter().zip(x).map(|(c, x)| c * x).sum()
}

/// Rows of each case: the smallest by a key, the first of equals.
fn pick(rows: &[(usize, &Row)], key: impl Fn(usize) -> f64) -> usize {
    rows.iter().fold(rows[0].0, |least, r| if key(r.0) < key(least) { r.0 } else { least })
}

fn rank(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = ((values.len() + 1) as f64 * share).ceil() as usize;
    values[rank.min(values.len()) - 1]
}

pub fn quantile(mut values: Vec<f64>, q: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = q * (values.len() - 1) as f64;
    let (low, high) = (values[at.floor() as usize], values[at.ceil() as usize]);
    low + (high - low) * (at - at.floor())
}

pub fn calibrate(family: &str, searches: &[&Value]) -> Value {
    let rows = rows(searches);
    let all: Vec<&Row> = rows.iter().collect();
    let names = inputs(&searches[0]["case"]);
    let chosen = strength(family, &all);
    let fitted = fits(family, &all, chosen);
    let coefficients = mean(family, &fitted);
    let mut shapes: Vec<&str> = rows.iter().map(|r| r.shape.as_str()).collect();
    shapes.sort_unstable();
    shapes.dedup();
    let mut held = vec![0.0; rows.len()];
    let mut strengths = Vec::new();
    for shape in &shapes {
        let training: Vec<&Row> = rows.iter().filter(|r| r.shape != *shape).collect();
        let own = strength(family, &training);
        strengths.push(own);
        let c = mean(family, &fits(family, &training, own));
        for (i, row) in rows.iter().enumerate().filter(|(_, r)| r.shape == *shape) {
            held[i] = predict(&c, &row.x);
        }
    }
    let mut cases: BTreeMap<&str, Vec<(usize, &Row)>> = BTreeMap::new();
    for (i, row) in rows.iter().enumerate() {
        cases.entry(&row.case).or_default().push((i, row));
    }
    let picks: Vec<(usize, usize)> =
        cases.values().map(|own| (pick(own, |i| held[i]), pick(own, |i| rows[i].label))).collect();
    let folds: Vec<Value> = shapes
        .iter()
        .zip(strengths)
        .map(|(shape, strength)| {
            let regrets: Vec<f64> = picks
                .iter()
                .filter(|(p, _)| rows[*p].shape == *shape)
                .map(|(p, b)| rows[*p].label / rows[*b].label - 1.0)
                .collect();
            let mean = regrets.iter().sum::<f64>() / regrets.len() as f64;
            let max = regrets.iter().copied().fold(0.0, f64::max);
            let mut fold = json!({"held_out": shape, "regret_mean": mean, "regret_max": max});
            if let Some(strength) = strength {
                fold["strength"] = json!(strength);
            }
            fold
        })
        .collect();
    let incumbents: Vec<usize> = searches
        .iter()
        .filter_map(|s| {
            let at = |r: &Row| {
                s["case"]["id"] == r.case.as_str() && s["incumbent"] == json!(r.candidate)
            };
            rows.iter().position(at)
        })
        .collect();
    let gains: Vec<(f64, f64)> = incumbents
        .iter()
        .map(|i| {
            let p = picks.iter().find(|(p, _)| rows[*p].case == rows[*i].case).unwrap().0;
            (held[*i] / held[p], rows[*i].label / rows[p].label)
        })
        .collect();
    // Interval and slack are set on labels that weren't disturbed, unless all were.
    let some = rows.iter().any(|r| r.weight() >= 0.5);
    let steady = |i: usize| !some || rows[i].weight() >= 0.5;
    for own in cases.values_mut() {
        own.retain(|(i, _)| steady(*i));
    }
    let count = cases.len();
    cases.retain(|_, own| !own.is_empty());
    let picks: Vec<(usize, usize)> =
        cases.values().map(|own| (pick(own, |i| held[i]), pick(own, |i| rows[i].label))).collect();
    // The first margin of 1.01 and up that accepts at most one loser in twenty: the older rule.
    let mut margins: Vec<f64> = gains.iter().map(|g| g.0.max(1.01)).chain([1.01]).collect();
    margins.sort_by(f64::total_cmp);
    let older = *margins
        .iter()
        .find(|m| {
            let accepted: Vec<_> = gains.iter().filter(|g| g.0 > **m).collect();
            20 * accepted.iter().filter(|g| g.1 * 1.02 < 1.0).count() <= accepted.len()
        })
        .unwrap();
    // A family with a prior states the present rule.
    let broken = |g: &(f64, f64)| if g.1 < 1.0 { g.0 / g.1 } else { 1.0 };
    let promised = gains.iter().filter(|g| g.0 > 1.01).map(broken).collect::<Vec<f64>>();
    let margin = match (prior(family), promised.is_empty()) {
        (None, _) => older,
        (Some(_), true) => gains.iter().map(broken).fold(1.01, f64::max),
        (Some(_), false) => quantile(promised, 0.8).max(1.01),
    };
    let ratio = |i: usize| rows[i].label / held[i];
    // With a prior, what is within 2 % of a case's best is as good.
    let good = if prior(family).is_some() { 1.02 } else { 1.0 };
    let slacks: Vec<f64> = picks
        .iter()
        .map(|(p, b)| {
            let own = (0..rows.len()).filter(|i| steady(*i) && rows[*i].case == rows[*p].case);
            let own = own.filter(|i| rows[*i].label <= rows[*b].label * good);
            own.map(|i| held[i]).fold(f64::MAX, f64::min) / held[*p]
        })
        .collect();
    let known = || (0..rows.len()).filter(|i| steady(*i));
    let ranges: BTreeMap<&str, [f64; 2]> = names
        .iter()
        .enumerate()
        .map(|(j, name)| {
            let column = || rows.iter().map(|r| r.inputs[j]);
            (*name, [column().fold(f64::MAX, f64::min), column().fold(0.0, f64::max)])
        })
        .collect();
    let fit_rows: Vec<Value> = rows
        .iter()
        .map(|r| {
            let (case, candidate) = (&r.case, r.candidate);
            json!({"case": case, "candidate": candidate, "label_us": r.label, "spread": r.spread})
        })
        .collect();
    let line =
        |r: &Row| format!("{},{},{},{}\n", r.case, r.candidate, json!(r.label), json!(r.spread));
    let text: String = rows.iter().map(line).collect();
    let terms: Vec<Value> = terms(family)
        .iter()
        .zip(&coefficients)
        .map(|((term, capacity), c)| json!({"term": term, "capacity": capacity, "coefficient": c}))
        .collect();
    let designs: Vec<Value> = designs(family)
        .iter()
        .zip(&fitted)
        .map(|(terms, c)| json!({"terms": terms, "coefficients": c}))
        .collect();
    let mut file = json!({
        "schema": "tilewright-calibration-v1", "family": family, "rows": fit_rows,
        "incumbents": incumbents, "terms": terms, "folds": folds,
        "designs": designs,
        "confidence": {
            "level": 0.9,
            "low": (1.0 / rank(known().map(|i| 1.0 / ratio(i)).collect(), 0.95)).min(1.0),
            "high": rank(known().map(ratio).collect(), 0.95).max(1.0),
            "slack": quantile(slacks, 0.9),
            "margin": margin, "ranges": ranges, "rows": rows.len(), "cases": count,
            "shapes": shapes.len(),
        },
        "code_sha256": sha("code"), "data_sha256": sha(text),
    });
    if let (Some((toward, strengths)), Some(strength)) = (prior(family), chosen) {
        file["prior"] = json!({"toward": toward, "strengths": strengths, "strength": strength});
        file["guard"] = json!({"gain": 0.01, "covered": 0.8, "kept": true});
        file["tolerance"] = json!(0.02);
    }
    file
}

/// Frozen plans of a case.
pub fn frozen(
    case: &Value,
    candidates: &[Value],
    fit: &Value,
    identity: &str,
    protocol: &Value,
) -> Value {
    let coefficients: Vec<f64> = fit["terms"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t["coefficient"].as_f64().unwrap())
        .collect();
    let predictions: Vec<f64> = candidates
        .iter()
        .map(|c| predict(&coefficients, &values(family(case), &floats(&c["inputs"]))))
        .collect();
    let score = |c: usize| candidates[c]["score"].as_f64().unwrap();
    let first = |key: &dyn Fn(usize) -> f64| {
        (0..candidates.len()).fold(0, |least, c| if key(c) < key(least) { c } else { least })
    };
    let (incumbent, challenger) = (first(&score), first(&|c| predictions[c]));
    let plan = |c: usize| {
        let kernel = sha(measure::kernel_text(case, c));
        json!({
            "candidate": c, "plan": candidates[c]["plan"], "mapping": candidates[c]["mapping"],
            "kernel_sha256": kernel, "artifact_sha256": sha(format!("artifact {kernel}")),
            "prediction_us": predictions[c],
        })
    };
    let confidence = &fit["confidence"];
    let number = |name: &str| confidence[name].as_f64().unwrap();
    let least = predictions[challenger];
    let likely = predictions.iter().filter(|p| **p <= least * number("slack")).count().max(1);
    let gain = predictions[incumbent] / least;
    let margin = protocol["guard"][family(case)].as_f64().unwrap();
    let x = floats(&candidates[challenger]["inputs"]);
    let outside = inputs(case).iter().zip(&x).any(|(name, x)| {
        let range = floats(&confidence["ranges"][name]);
        *x < range[0] / 2.0 || *x > range[1] * 2.0
    });
    let abstains = match (outside, likely > (candidates.len() / 4).max(4)) {
        (true, _) => json!("an input is outside of training"),
        (_, true) => json!("too many candidates look alike"),
        _ => Value::Null,
    };
    let all: Vec<Value> = candidates
        .iter()
        .zip(&predictions)
        .map(|(c, p)| json!({"plan": c["plan"], "score": c["score"], "prediction_us": p}))
        .collect();
    json!({
        "schema": "tilewright-frozen-v1", "case": case,
        "program_sha256": sha(format!("program {}", case["id"].as_str().unwrap())),
        "target_sha256": sha("target"), "identity_sha256": identity, "driver": null,
        "tool": "0.1.0", "profile_sha256": protocol["profile_sha256"],
        "resource_table_sha256": null, "numeric_policy": "strict",
        "space": measure::space(candidates.len()), "candidates": all,
        "incumbent": plan(incumbent), "challenger": plan(challenger),
        "advice": {
            "interval_us": [least * number("low"), least * number("high")],
            "shortlist": likely.min(3), "abstains": abstains, "predicted_gain": gain,
            "margin": margin, "accepted": gain > margin && incumbent != challenger,
        },
    })
}

//! results.json.

use super::measure::{median, time};
use super::model::quantile;
use super::{PATHS, REPLAY_ROUNDS};
use serde_json::{Value, json};
use std::collections::BTreeMap;

type Files = BTreeMap<String, Value>;

fn spread(ratios: &[f64]) -> Value {
    if ratios.is_empty() {
        return Value::Null;
    }
    let min = ratios.iter().copied().fold(f64::MAX, f64::min);
    let max = ratios.iter().copied().fold(0.0, f64::max);
    let won = ratios.iter().filter(|r| **r > 1.0).count();
    json!({"median": median(ratios), "min": min, "max": max, "won": won})
}

fn gain(ratios: &[f64]) -> Value {
    let mut out = spread(ratios);
    out["worst"] = out["min"].clone();
    out
}

fn run<'a>(files: &'a Files, round: usize, id: &str, path: &str) -> &'a Value {
    let round = &files[&format!("replay/round-{round:02}.json")];
    let case = round["cases"].as_array().unwrap().iter().find(|c| c["case"] == id).unwrap();
    // A path that an altered record lacks counts as one that failed.
    case["runs"].as_array().unwrap().iter().find(|r| r["path"] == path).unwrap_or(&Value::Null)
}

/// Ratios of two paths over the rounds in which both are valid.
fn ratios(files: &Files, id: &str, above: &str, below: &str, phase: &str) -> Vec<f64> {
    (0..REPLAY_ROUNDS)
        .filter_map(|r| {
            let (a, b) = (run(files, r, id, above), run(files, r, id, below));
            let valid = a["outcome"] == "valid" && b["outcome"] == "valid";
            valid.then(|| time(a, phase) / time(b, phase))
        })
        .collect()
}

fn binomial(n: u32, k: u32) -> f64 {
    (0..k).fold(1.0, |c, i| c * f64::from(n - i) / f64::from(i + 1))
}

fn number(value: &Value) -> Option<f64> {
    value.as_f64()
}

fn mean_max(values: &[f64]) -> Value {
    if values.is_empty() {
        return json!({"mean": null, "max": null});
    }
    let max = values.iter().copied().fold(f64::MIN, f64::max);
    json!({"mean": values.iter().sum::<f64>() / values.len() as f64, "max": max})
}

fn regret(case: &Value, which: &str) -> Option<f64> {
    number(&case["regret"][which])
}

fn choice(cases: &[&Value], takes: &dyn Fn(&Value) -> bool) -> Value {
    let time = |case: &Value, path: &str| {
        let own = case["paths"].as_array().unwrap().iter().find(|p| p["path"] == path).unwrap();
        number(&own["time_us"])
    };
    let mut product = 1.0;
    let mut count = 0.0;
    for case in cases.iter().filter(|c| !c["gain"].is_null()) {
        count += 1.0;
        if takes(case) {
            product *= time(case, "incumbent").unwrap() / time(case, "challenger").unwrap();
        }
    }
    let loses = |c: &&&Value| {
        takes(c)
            && number(&c["gain"]["median"])
                .is_some_and(|g| g < (-number(&c["floor"]).unwrap()).exp())
    };
    let regrets: Vec<f64> = cases
        .iter()
        .filter_map(|c| regret(c, if takes(c) { "challenger" } else { "incumbent" }))
        .collect();
    json!({
        "speedup": f64::powf(product, 1.0 / count),
        "losers": cases.iter().filter(loses).count(), "regret": mean_max(&regrets),
    })
}

fn accepted(case: &Value) -> bool {
    case["accepted"] == true
}

fn group(family: &str, cases: &[&Value]) -> Value {
    let all = |which: &str| -> Vec<f64> { cases.iter().filter_map(|c| regret(c, which)).collect() };
    let sum =
        |name: &str| -> u64 { cases.iter().map(|c| c["coverage"][name].as_u64().unwrap()).sum() };
    json!({
        "family": family, "cases": cases.len(),
        "regret": {
            "challenger": mean_max(&all("challenger")), "incumbent": mean_max(&all("incumbent")),
            "top3": mean_max(&all("top3")),
        },
        "coverage": {"inside": sum("inside"), "labels": sum("labels")},
        "half_width": cases[0]["half_width"],
        "abstained": cases.iter().filter(|c| !c["abstains"].is_null()).count(),
        "always_incumbent": choice(cases, &|_| false),
        "always_challenger": choice(cases, &|_| true),
        "guarded": choice(cases, &accepted),
    })
}

fn case(files: &Files, id: &str) -> Value {
    let labels = &files[&format!("labels/{id}.json")];
    let frozen = &files[&format!("frozen/{id}.json")];
    let fits = files["profile.json"]["fits"].as_array().unwrap();
    let confidence = &fits.iter().find(|f| f["family"] == labels["family"]).unwrap()["confidence"];
    let (low, high) = (number(&confidence["low"]).unwrap(), number(&confidence["high"]).unwrap());
    let label = |c: usize| {
        let trial = &labels["trials"][c];
        number(&trial["label_us"]).filter(|_| trial["outcome"] == "valid")
    };
    let n = labels["trials"].as_array().unwrap().len();
    let best = (0..n).filter_map(label).fold(f64::MAX, f64::min);
    let regret = |c: &Value| label(c.as_u64().unwrap() as usize).map(|l| l / best - 1.0);
    let prediction = |c: usize| number(&frozen["candidates"][c]["prediction_us"]).unwrap();
    let mut ranked: Vec<usize> = (0..n).collect();
    ranked.sort_by(|a, b| prediction(*a).total_cmp(&prediction(*b)));
    let top3 = ranked[..3].iter().filter_map(|c| label(*c)).fold(f64::MAX, f64::min);
    let inside = |c: &usize| {
        let l = label(*c).unwrap();
        prediction(*c) * low <= l && l <= prediction(*c) * high
    };
    let measured: Vec<usize> = (0..n).filter(|c| label(*c).is_some()).collect();

    let ratio = |path: &str, phase: &str| ratios(files, id, path, "challenger", phase);
    let paths: Vec<Value> = PATHS
        .iter()
        .map(|path| {
            let times: Vec<f64> = (0..REPLAY_ROUNDS)
                .map(|r| run(files, r, id, path))
                .filter(|r| r["outcome"] == "valid")
                .map(|r| time(r, "batch_ns"))
                .collect();
            let time = (!times.is_empty()).then(|| median(&times));
            let own = spread(&ratio(path, "batch_ns"));
            json!({"path": path, "rounds": times.len(), "time_us": time, "ratio": own})
        })
        .collect();
    let gains = ratio("incumbent", "batch_ns");
    let again = ratios(files, id, "incumbent-again", "incumbent", "batch_ns");
    let advice = &frozen["advice"];
    let mut out = json!({
        "case": id, "family": labels["family"],
        "regret": {
            "challenger": regret(&frozen["challenger"]["candidate"]),
            "incumbent": regret(&frozen["incumbent"]["candidate"]),
            "top3": (top3 < f64::MAX).then(|| top3 / best - 1.0),
        },
        "coverage": {"inside": measured.iter().filter(|c| inside(c)).count(), "labels": measured.len()},
        "half_width": (high - low) / 2.0,
        "accepted": advice["accepted"], "predicted_gain": advice["predicted_gain"],
        "shortlist": advice["shortlist"], "abstains": advice["abstains"], "paths": paths,
        "gain": null, "metrics": {"batch": null, "single": null, "device": null},
        "floor": null, "sign_p": null, "holm_p": null, "verdict": "incomplete", "loser": false,
    });
    if gains.len() == REPLAY_ROUNDS && again.len() == REPLAY_ROUNDS {
        out["gain"] = gain(&gains);
        out["metrics"]["batch"] = gain(&ratio("incumbent", "batch_ns"));
        out["metrics"]["single"] = gain(&ratio("incumbent", "single_ns"));
        let noise: Vec<f64> = again.iter().map(|r| r.ln().abs()).collect();
        out["floor"] = json!(quantile(noise, 0.95));
        let n = gains.iter().filter(|g| **g != 1.0).count() as u32;
        let few = (gains.iter().filter(|g| **g > 1.0).count() as u32)
            .min(gains.iter().filter(|g| **g < 1.0).count() as u32);
        let tail: f64 = (0..=few).map(|k| binomial(n, k)).sum();
        out["sign_p"] = json!((2.0 * tail / 2f64.powi(n as i32)).min(1.0));
    }
    out
}

pub fn results(files: &Files, freeze: &str, holdout: &[Value]) -> Value {
    let mut cases: Vec<Value> =
        holdout.iter().map(|c| case(files, c["id"].as_str().unwrap())).collect();
    // Holm: sorted p times m, m−1, …, each at least the one before.
    let mut tests: Vec<(f64, usize)> =
        cases.iter().enumerate().filter_map(|(i, c)| Some((number(&c["sign_p"])?, i))).collect();
    tests.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut least, m) = (0.0, tests.len());
    for (rank, (p, i)) in tests.into_iter().enumerate() {
        least = f64::max(least, p * (m - rank) as f64).min(1.0);
        cases[i]["holm_p"] = json!(least);
    }
    for case in &mut cases {
        let (Some(g), Some(floor)) = (number(&case["gain"]["median"]), number(&case["floor"]))
        else {
            continue;
        };
        let verdict = match g.ln() {
            m if m > floor => "win",
            m if m < -floor => "loss",
            _ => "tie",
        };
        case["verdict"] = json!(verdict);
        case["loser"] = json!(accepted(case) && g < (-floor).exp());
    }
    let all: Vec<&Value> = cases.iter().collect();
    let families: Vec<Value> = ["cpu-rows", "gpu-matrix"]
        .iter()
        .map(|f| {
            let own: Vec<&Value> = all.iter().copied().filter(|c| c["family"] == *f).collect();
            group(f, &own)
        })
        .collect();
    let whole = group("all", &all);
    let count = |holds: &dyn Fn(&Value) -> bool| all.iter().filter(|c| holds(c)).count();
    let wins = count(&|c| c["verdict"] == "win");
    let kept = count(&|c| c["verdict"] == "win" && accepted(c));
    let losers = count(&|c| c["loser"] == true);
    let training: Vec<Vec<f64>> = files
        .iter()
        .filter(|(path, _)| path.starts_with("search/"))
        .map(|(_, s)| {
            let trials = s["trials"].as_array().unwrap().iter();
            trials
                .filter(|t| t["outcome"] == "valid")
                .map(|t| number(&t["label_us"]).unwrap())
                .collect()
        })
        .collect();
    let least = |labels: &Vec<f64>| labels.iter().copied().fold(f64::MAX, f64::min);
    let widths: Vec<f64> = all.iter().map(|c| number(&c["half_width"]).unwrap()).collect();
    let coverage = &whole["coverage"];
    let value = |rule: &str| match rule {
        "regret_mean" => whole["regret"]["challenger"]["mean"].clone(),
        "regret_max" => whole["regret"]["challenger"]["max"].clone(),
        "regret_top3" => whole["regret"]["top3"]["mean"].clone(),
        "coverage" => {
            json!(number(&coverage["inside"]).unwrap() / number(&coverage["labels"]).unwrap())
        }
        "half_width" => json!(median(&widths)),
        "guard_losers" => json!(losers as f64),
        "wins_kept" => json!(if wins == 0 { 1.0 } else { kept as f64 / wins as f64 }),
        "candidates" => json!(training.iter().map(Vec::len).min().unwrap() as f64),
        _ => json!(training.iter().map(|l| median(l) / least(l)).fold(f64::MAX, f64::min)),
    };
    let lower = ["coverage", "wins_kept", "candidates", "median_over_best"];
    let rules: Vec<Value> = files["protocol.json"]["acceptance"]
        .as_object()
        .unwrap()
        .iter()
        .filter(|(_, limit)| !limit.is_null())
        .map(|(rule, limit)| {
            let (v, limit) = (value(rule), number(limit).unwrap());
            let own = number(&v).unwrap();
            let passed = if lower.contains(&rule.as_str()) { own >= limit } else { own <= limit };
            json!({"rule": rule, "value": v, "limit": limit, "passed": passed})
        })
        .collect();
    let complete = all.iter().all(|c| c["verdict"] != "incomplete");
    let passed = complete && rules.iter().all(|r| r["passed"] == true);
    let lost = |c: &Value| number(&c["gain"]["max"]).is_some_and(|g| g < 1.0);
    json!({
        "schema": "tilewright-results-v1", "freeze": freeze, "freezes": 1,
        "rounds": REPLAY_ROUNDS, "cases": cases, "families": families,
        "always_incumbent": whole["always_incumbent"],
        "always_challenger": whole["always_challenger"], "guarded": whole["guarded"],
        "wins": wins, "kept": kept, "accepted": count(&accepted), "losers": losers,
        "gate": {"rules": rules, "passed": passed}, "default_ok": !all.iter().any(|c| lost(c)),
    })
}

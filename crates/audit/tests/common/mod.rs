//! Small whole records, written from the text of `docs/formats/record.md` alone.
#![allow(dead_code)]

mod measure;
mod model;
mod results;
pub mod schema;

use measure::{Cases, case_list, floor, label_of, order_of_round, samples, trial};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub const SEARCH_ROUNDS: usize = 2;
/// With the further ones.
pub const MOST_ROUNDS: usize = 4;
/// Rounds of the fastest candidates.
pub const FINAL_ROUNDS: usize = 3;
/// How many of those there are.
pub const FINALISTS: usize = 2;
/// The spread beyond which a measurement gets further rounds.
pub const SPREAD: f64 = 0.05;
pub const REPLAY_ROUNDS: usize = 14;
/// Which quantile of a path's samples is its time in a round.
pub const TIME_QUANTILE: f64 = 0.25;
pub const PATHS: [&str; 6] =
    ["incumbent", "challenger", "incumbent-again", "best", "plain-loops", "torch"];

pub fn sha(bytes: impl AsRef<[u8]>) -> String {
    Sha256::digest(bytes.as_ref()).iter().map(|b| format!("{b:02x}")).collect()
}

/// `derive(text)` of the format.
pub fn derive(text: &str) -> u64 {
    u64::from_str_radix(&sha(text)[..16], 16).unwrap()
}

/// Canonical JSON without the line feed.
pub fn canonical(value: &Value) -> String {
    match value {
        Value::Object(o) => {
            let mut keys: Vec<&String> = o.keys().collect();
            keys.sort();
            let members: Vec<String> =
                keys.iter().map(|k| format!("{}:{}", json!(k), canonical(&o[*k]))).collect();
            format!("{{{}}}", members.join(","))
        }
        Value::Array(a) => {
            format!("[{}]", a.iter().map(canonical).collect::<Vec<_>>().join(","))
        }
        other => other.to_string(),
    }
}

/// Alters a file (by path) before it is hashed and before later files are derived from it.
pub type Alter<'a> = &'a dyn Fn(&str, &mut Value);

/// A record in memory.
pub struct Record {
    pub files: BTreeMap<String, Vec<u8>>,
    pub entries: Vec<(String, Value)>,
}

impl Record {
    /// A valid record.
    pub fn valid() -> Record {
        Record::altered(&|_, _| {})
    }

    /// A record in which one step went wrong; everything after it follows from what it left.
    pub fn altered(alter: Alter<'_>) -> Record {
        Builder {
            alter,
            record: Record { files: BTreeMap::new(), entries: Vec::new() },
            values: BTreeMap::new(),
        }
        .build()
    }

    /// The ledger's lines, chained.
    pub fn chain(&self) -> Vec<Value> {
        let mut prev = "0".repeat(64);
        let mut out = Vec::new();
        for (index, (kind, body)) in self.entries.iter().enumerate() {
            let mut entry = json!({"index": index, "kind": kind, "body": body, "prev": prev});
            prev = sha(canonical(&entry));
            entry["hash"] = json!(prev);
            out.push(entry);
        }
        out
    }

    /// Writes it to a new directory, with the chain of its entries.
    pub fn write(&self, name: &str) -> Directory {
        let dir = Directory::new(name);
        for (path, bytes) in &self.files {
            dir.write(path, bytes);
        }
        let lines: Vec<String> = self.chain().iter().map(|e| canonical(e) + "\n").collect();
        dir.write("ledger.jsonl", lines.concat());
        dir
    }

    /// Writes the hashes of the files as they are now into the entries. (The hash of the freeze
    /// changes with it; what derives from it doesn't.)
    pub fn reseal(&mut self) {
        let files = &self.files;
        let own = |body: &mut Value, file: &str, field: &str| {
            if let (Some(bytes), true) = (files.get(file), body.get(field).is_some()) {
                body[field] = json!(sha(bytes));
            }
        };
        for (_, body) in &mut self.entries {
            if let Some(file) = body["file"].as_str().map(str::to_string) {
                own(body, &file, "sha256");
            }
            for list in ["families", "plans"] {
                for item in body.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
                    let file = item["file"].as_str().unwrap().to_string();
                    own(item, &file, "sha256");
                }
            }
            own(body, "machine.json", "machine_sha256");
            own(body, "profile.json", "profile_sha256");
            own(body, "protocol.json", "protocol_sha256");
        }
    }

    pub fn json(&self, path: &str) -> Value {
        serde_json::from_slice(&self.files[path]).unwrap()
    }
}

/// A directory that is removed with everything in it.
pub struct Directory(PathBuf);

impl Directory {
    pub fn new(name: &str) -> Self {
        let name = format!("tilewright-record-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Directory(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.join(name)).unwrap()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Builder<'a> {
    alter: Alter<'a>,
    record: Record,
    values: BTreeMap<String, Value>,
}

impl Builder<'_> {
    fn put(&mut self, path: &str, mut value: Value) -> Value {
        (self.alter)(path, &mut value);
        // Floats as they read back.
        let text = canonical(&value) + "\n";
        self.record.files.insert(path.to_string(), text.clone().into_bytes());
        let value: Value = serde_json::from_str(&text).unwrap();
        self.values.insert(path.to_string(), value.clone());
        value
    }

    fn hash(&self, path: &str) -> String {
        self.record.files.get(path).map_or_else(|| "0".repeat(64), sha)
    }

    fn enter(&mut self, kind: &str, body: Value) {
        self.record.entries.push((kind.to_string(), body));
    }

    fn freeze_hash(&self) -> String {
        let chain = self.record.chain();
        let freeze = chain.iter().rfind(|e| e["kind"] == "freeze").unwrap();
        freeze["hash"].as_str().unwrap().to_string()
    }

    fn build(mut self) -> Record {
        let mut study = json!(measure::study());
        (self.alter)("study.toml", &mut study);
        let study = study.as_str().unwrap().as_bytes().to_vec();
        self.record.files.insert("study.toml".to_string(), study);
        let machine = self.put("machine.json", measure::machine());
        let identity = sha(canonical(&machine["identity"]));
        let cases = case_list();
        let ids = |set: &[Value]| -> Vec<Value> { set.iter().map(|c| c["id"].clone()).collect() };
        self.enter(
            "open",
            json!({
                "study_sha256": self.hash("study.toml"),
                "machine_sha256": self.hash("machine.json"),
                "identity_sha256": identity, "format": 1,
                "tool": {"version": "0.1.0", "executable_sha256": sha("tool")},
                "training": ids(&cases.training), "holdout": ids(&cases.holdout), "quick": false,
            }),
        );
        let study = self.hash("study.toml");
        for case in &cases.training {
            let search = self.search(&machine, case, &study, None);
            let id = case["id"].as_str().unwrap();
            let path = format!("search/{id}.json");
            self.put(&path, search);
            let sha256 = self.hash(&path);
            self.enter("search", json!({"case": id, "file": path, "sha256": sha256}));
        }
        let fits = self.calibrate(&cases);
        self.freeze(&machine, &cases, &identity, &fits);
        let freeze = self.freeze_hash();
        for case in &cases.holdout {
            let id = case["id"].as_str().unwrap();
            let challenger = self.values[&format!("frozen/{id}.json")]["challenger"].clone();
            let labels = self.search(&machine, case, &freeze, Some(&challenger));
            let path = format!("labels/{id}.json");
            self.put(&path, labels);
            let sha256 = self.hash(&path);
            self.enter(
                "labels",
                json!({"case": id, "file": path, "sha256": sha256, "freeze": freeze}),
            );
        }
        for round in 0..REPLAY_ROUNDS {
            let value = self.round(&cases, &freeze, round);
            let path = format!("replay/round-{round:02}.json");
            self.put(&path, value);
            let sha256 = self.hash(&path);
            self.enter(
                "replay",
                json!({"round": round, "file": path, "sha256": sha256, "freeze": freeze}),
            );
        }
        let results = results::results(&self.values, &freeze, &cases.holdout);
        self.put("results.json", results);
        let sha256 = self.hash("results.json");
        self.enter("results", json!({"file": "results.json", "sha256": sha256}));
        self.record
    }

    /// A file of candidates with raw samples.
    fn search(&self, machine: &Value, case: &Value, basis: &str, frozen: Option<&Value>) -> Value {
        let id = case["id"].as_str().unwrap();
        let candidates = measure::candidates(case);
        let n = candidates.len();
        let offset = (derive(&format!("{basis}/{id}/order")) % n as u64) as usize;
        let floor = floor(machine, case);
        let training = frozen.is_none();
        let mut trials: Vec<Value> =
            (0..n).map(|c| trial(case, &candidates[c], c, training, &floor)).collect();
        let mut rounds = Vec::new();
        let first =
            |c: usize| label_of(&json!(trials[c]["rounds"].as_array().unwrap()[..SEARCH_ROUNDS]));
        let mut finalists: Vec<usize> = (0..n)
            .filter(|c| trials[*c]["rounds"].as_array().unwrap().len() >= SEARCH_ROUNDS)
            .collect();
        finalists
            .sort_by(|a, b| first(*a).as_f64().unwrap().total_cmp(&first(*b).as_f64().unwrap()));
        finalists.truncate(FINALISTS);
        for k in 0..MOST_ROUNDS.max(FINAL_ROUNDS) {
            let mut order = order_of_round(n, SEARCH_ROUNDS, offset, k);
            if k >= SEARCH_ROUNDS {
                order.retain(|c| {
                    let wide = measure::spread(&trials[*c]["rounds"]) > SPREAD;
                    (k < MOST_ROUNDS && wide) || (k < FINAL_ROUNDS && finalists.contains(c))
                });
                if order.is_empty() {
                    break;
                }
                for c in &order {
                    let time = measure::true_us(case, &candidates[*c]);
                    let refused = trials[*c]["outcome"] == "refused";
                    let more = match refused {
                        true => trials[*c]["rounds"][0].clone(),
                        false => samples(&format!("{id}/further/{c}/{k}"), time, 3),
                    };
                    trials[*c]["rounds"].as_array_mut().unwrap().push(more);
                    trials[*c]["label_us"] = label_of(&trials[*c]["rounds"]);
                }
            }
            rounds
                .push(json!({"order": order, "drift_ns": [1000, 1001], "state": measure::state()}));
        }
        let mut best: Option<usize> = None;
        for c in order_of_round(n, SEARCH_ROUNDS, offset, 0) {
            let label = |c: usize| trials[c]["label_us"].as_f64().unwrap();
            if trials[c]["outcome"] == "valid" && best.is_none_or(|b| label(c) < label(b)) {
                best = Some(c);
            }
        }
        let best = best.unwrap();
        let mut fresh = trials[best].clone();
        let time = measure::true_us(case, &candidates[best]);
        fresh["rounds"] = json!([samples(&format!("{id}/fresh"), time, 3)]);
        fresh["label_us"] = label_of(&fresh["rounds"]);
        let score = |c: usize| candidates[c]["score"].as_f64().unwrap();
        let incumbent = (0..n).fold(0, |least, c| if score(c) < score(least) { c } else { least });
        json!({
            "schema": "tilewright-search-v1", "case": case, "basis": basis,
            "inputs_seed": format!("{:016x}", derive(&format!("{basis}/{id}/inputs"))),
            "offset": offset, "program_sha256": sha(format!("program {id}")),
            "plan_key": sha(format!("key {id}")), "policy": "plain",
            "space": measure::space(n), "family": model::family(case),
            "input_names": model::inputs(case), "candidates": candidates, "incumbent": incumbent,
            "protocol": measure::protocol(SEARCH_ROUNDS), "floor": floor, "rounds": rounds,
            "trials": trials, "controls": measure::controls(case),
            "selection": {"metric": "batch", "winner": best, "fresh": fresh},
            "state_before": measure::state(), "state_after": measure::state(),
        })
    }

    /// Fits each family; gives the profile's fits.
    fn calibrate(&mut self, cases: &Cases) -> Vec<Value> {
        let (mut fits, mut families) = (Vec::new(), Vec::new());
        for family in ["cpu-rows", "gpu-matrix"] {
            let searches: Vec<&Value> = cases
                .training
                .iter()
                .map(|c| &self.values[&format!("search/{}.json", c["id"].as_str().unwrap())])
                .filter(|s| s["family"] == family)
                .collect();
            let calibration = model::calibrate(family, &searches);
            let path = format!("calibration/{family}.json");
            let calibration = self.put(&path, calibration);
            families.push(json!({"family": family, "file": path, "sha256": self.hash(&path)}));
            fits.push(json!({
                "family": family, "terms": calibration["terms"],
                "confidence": calibration["confidence"],
            }));
        }
        let profile = self.put(
            "profile.json",
            json!({
                "schema": "tilewright-profile-v1", "policy": "whole-launch", "target": "cpu",
                "unit": "us", "fits": fits,
                "fit": {"data_sha256": sha("data"), "code_sha256": sha("code"), "procedure": "x"},
            }),
        );
        let profile_sha256 = self.hash("profile.json");
        self.enter("calibration", json!({"families": families, "profile_sha256": profile_sha256}));
        profile["fits"].as_array().unwrap().clone()
    }

    fn freeze(&mut self, machine: &Value, cases: &Cases, identity: &str, fits: &[Value]) {
        let ids = |set: &[Value]| -> Vec<Value> { set.iter().map(|c| c["id"].clone()).collect() };
        let margin = |family: &str| {
            let fit = fits.iter().find(|f| f["family"] == family).unwrap();
            fit["confidence"]["margin"].clone()
        };
        let protocol = json!({
            "schema": "tilewright-protocol-v1", "study_sha256": self.hash("study.toml"),
            "profile_sha256": self.hash("profile.json"), "training": ids(&cases.training),
            "holdout": ids(&cases.holdout), "labels": measure::protocol(SEARCH_ROUNDS),
            "replay": measure::protocol(REPLAY_ROUNDS),
            "paths": {"rows": PATHS, "matrix": PATHS}, "shortlist": 3, "cap": null, "top": null,
            "selection": "batch",
            "guard": {"cpu-rows": margin("cpu-rows"), "gpu-matrix": margin("gpu-matrix")},
            "acceptance": {
                "regret_mean": 0.5, "regret_max": 1.0, "regret_top3": 0.5, "coverage": 0.5,
                "half_width": 0.9, "abstention": null, "guard_losers": 3, "wins_kept": 0.01, "candidates": 3,
                "median_over_best": 1.01,
            },
            "verdict": {"rounds": 14, "quantile": 0.95, "alpha": 0.05},
        });
        self.put("protocol.json", protocol.clone());
        let mut plans = Vec::new();
        for case in &cases.holdout {
            let id = case["id"].as_str().unwrap();
            let candidates = measure::candidates(case);
            let fit = fits.iter().find(|f| f["family"] == model::family(case)).unwrap();
            let frozen = model::frozen(case, &candidates, fit, identity, &protocol);
            for plan in ["incumbent", "challenger"] {
                let c = frozen[plan]["candidate"].as_u64().unwrap() as usize;
                let text = measure::kernel_text(case, c);
                self.record.files.insert(format!("kernels/{}.txt", sha(&text)), text.into_bytes());
            }
            let path = format!("frozen/{id}.json");
            self.put(&path, frozen);
            plans.push(json!({"case": id, "file": path, "sha256": self.hash(&path)}));
        }
        let _ = machine;
        let body = json!({
            "number": 1, "protocol_sha256": self.hash("protocol.json"),
            "profile_sha256": self.hash("profile.json"), "plans": plans,
        });
        self.enter("freeze", body);
    }

    fn round(&self, cases: &Cases, freeze: &str, round: usize) -> Value {
        let n = cases.holdout.len();
        let start = (derive(&format!("{freeze}/cases")).wrapping_add(round as u64)) % n as u64;
        let rotated = (0..n).map(|i| &cases.holdout[(i + start as usize) % n]);
        let measured: Vec<Value> = rotated
            .map(|case| {
                let id = case["id"].as_str().unwrap();
                let labels = &self.values[&format!("labels/{id}.json")];
                let frozen = &self.values[&format!("frozen/{id}.json")];
                let n = PATHS.len();
                let i = (derive(&format!("{freeze}/{id}/order")).wrapping_add(round as u64)
                    % (2 * n as u64)) as usize;
                let mut order: Vec<usize> = (0..n).map(|p| (p + i % n) % n).collect();
                if i >= n {
                    order.reverse();
                }
                let run = |path: &&str| measure::run(case, path, frozen, labels, round);
                json!({
                    "case": id, "paths": PATHS, "order": order, "drift_ns": [1000],
                    "runs": PATHS.iter().map(run).collect::<Vec<_>>(),
                })
            })
            .collect();
        json!({
            "schema": "tilewright-replay-v1", "round": round, "freeze": freeze,
            "protocol": measure::protocol(REPLAY_ROUNDS), "cases": measured,
            "state_before": measure::state(), "state_after": measure::state(),
        })
    }
}

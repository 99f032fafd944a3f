//! A study from its file to its results, step by step. Each step goes on where an earlier attempt
//! stopped: what the ledger names is done, what a finished journal holds is taken from it.

use crate::bench::{Bench, Setup};
use crate::canonical::canonical;
use crate::case::{Case, CaseSet};
use crate::error::StudyError;
use crate::fit::{self, Calibrated};
use crate::freeze::{self, Origin};
use crate::ledger::{Kind, Ledger};
use crate::machine;
use crate::record::{FORMAT, FrozenFile, Machine, ProtocolFile, SearchFile, Tool};
use crate::replay::{self, Difference, ReplayTask};
use crate::results::{Evidence, results};
use crate::search::{self, SearchTask};
use crate::spec::Study;
use crate::store::Store;
use serde_json::{Value, json};
use std::path::Path;
use tilewright_plan::Profile;
use tilewright_plan::profile::{HoldOut, WholeLaunchProfile};

const STUDY: &str = "study.toml";
const MACHINE: &str = "machine.json";
const PROFILE: &str = "profile.json";
const PROTOCOL: &str = "protocol.json";
const RESULTS: &str = "results.json";

/// Folder for tensors on their way, swept with the journals. Each process has its own: a worker
/// that outlives a killed study for a moment must not write into the one of the next attempt.
fn scratch(store: &Store) -> std::path::PathBuf {
    store.path(&format!("journal/scratch-{}", std::process::id()))
}

/// A record that is being worked on.
pub struct Session<'a> {
    setup: &'a Setup<'a>,
    study: Study,
    store: Store,
    ledger: Ledger,
    machine: Machine,
    tool: Tool,
    identity_sha256: String,
}

impl<'a> Session<'a> {
    /// Begins a record, or goes on with one.
    ///
    /// # Errors
    /// The folder holds something else, or the record is of another study, machine or program
    /// (the latter two are recorded if the set-up says so); files can't be written.
    pub fn open(setup: &'a Setup<'a>, study: Study, dir: &Path) -> Result<Self, StudyError> {
        let store = Store::open(dir)?;
        let mut ledger = Ledger::read(&store)?;
        let tool = machine::tool()?;
        let identity_sha256 = machine::identity_hash(&machine::identity(&setup.device))?;
        if ledger.entries().is_empty() {
            only_ours(&store)?;
            store.write(STUDY, study.text.as_bytes())?;
            let machine = machine::machine(&setup.device, setup.meter, &study, &setup.worker)?;
            let machine_sha256 = store.write_json(MACHINE, &machine)?;
            let ids = |set| study.set(set).map(|c| c.id.clone()).collect::<Vec<_>>();
            ledger.append(
                &store,
                Kind::Open,
                json!({
                    "study_sha256": study.hash(),
                    "machine_sha256": machine_sha256,
                    "identity_sha256": identity_sha256,
                    "tool": tool,
                    "format": FORMAT,
                    "quick": study.quick,
                    "training": ids(CaseSet::Training),
                    "holdout": ids(CaseSet::Holdout),
                }),
            )?;
            return Ok(Session { setup, study, store, ledger, machine, tool, identity_sha256 });
        }
        let open = &ledger.entries()[0];
        let found = study.hash();
        let (expected, quick) = (open.text("study_sha256"), open.body["quick"].as_bool());
        if expected != Some(&found) || quick != Some(study.quick) {
            return Err(StudyError::Changed {
                what: "the study".to_string(),
                expected: expected.unwrap_or_default().to_string(),
                found,
                hint: ": a record is of one study; choose another folder".to_string(),
            });
        }
        let (machine, _) = store.read_json::<Machine>(MACHINE)?;
        let recorded = |name: &str| open.text(name).unwrap_or_default().to_string();
        let executable = open.body["tool"]["executable_sha256"].as_str().unwrap_or_default();
        let pairs = [
            ("identity", recorded("identity_sha256"), identity_sha256.clone()),
            ("executable", executable.to_string(), tool.executable_sha256.clone()),
        ];
        let mut session = Session { setup, study, store, ledger, machine, tool, identity_sha256 };
        for (what, expected, found) in pairs {
            if expected != found {
                session.change(what, &expected, &found, None)?;
            }
        }
        Ok(session)
    }

    /// Opens a record by its folder alone, with the study that it keeps.
    ///
    /// # Errors
    /// As [`Session::open`]; there is no record.
    pub fn reopen(setup: &'a Setup<'a>, dir: &Path) -> Result<Self, StudyError> {
        let study = kept_study(dir)?;
        Session::open(setup, study, dir)
    }

    /// The study.
    pub fn study(&self) -> &Study {
        &self.study
    }

    /// The record's folder.
    pub fn dir(&self) -> &Path {
        self.store.dir()
    }

    /// How far the record is.
    pub fn progress(&self) -> Value {
        let freeze = self.ledger.freeze().map(|e| e.hash.clone());
        let cases = |set, kind, freeze: Option<&str>| {
            let all: Vec<&Case> = self.study.set(set).collect();
            let done = all.iter().filter(|c| self.ledger.case(kind, &c.id, freeze).is_some());
            json!({"done": done.count(), "of": all.len()})
        };
        let labels = match freeze.as_deref() {
            Some(hash) => cases(CaseSet::Holdout, Kind::Labels, Some(hash)),
            None => json!({"done": 0, "of": self.study.set(CaseSet::Holdout).count()}),
        };
        let rounds = self.study.replay.rounds;
        let replayed = freeze.as_deref().map_or(0, |hash| {
            (0..rounds).filter(|r| self.ledger.round(*r as u64, hash).is_some()).count()
        });
        json!({
            "study": self.study.name,
            "search": cases(CaseSet::Training, Kind::Search, None),
            "calibrated": self.ledger.of(Kind::Calibration).next().is_some(),
            "freezes": self.ledger.of(Kind::Freeze).count(),
            "freeze": freeze,
            "labels": labels,
            "replay": {"done": replayed, "of": rounds},
        })
    }

    /// Records a difference, or stops.
    fn change(
        &mut self,
        what: &str,
        expected: &str,
        found: &str,
        place: Option<(&str, Option<&str>)>,
    ) -> Result<(), StudyError> {
        note_change(self.setup, &self.store, &mut self.ledger, what, expected, found, place)
    }

    /// Runs every step.
    ///
    /// # Errors
    /// The first step that fails; what was done before stays.
    pub fn run(&mut self) -> Result<Value, StudyError> {
        self.search()?;
        self.calibrate()?;
        self.freeze(false)?;
        self.label()?;
        self.replay()?;
        self.finish()
    }

    /// Searches every training case that the ledger doesn't name.
    ///
    /// # Errors
    /// As [`search::search_all`].
    pub fn search(&mut self) -> Result<(), StudyError> {
        let basis = self.study.hash();
        let todo: Vec<Case> = self.study.set(CaseSet::Training).cloned().collect();
        self.measure(&todo, Kind::Search, "search", &basis, None)
    }

    /// Searches cases into a folder, with an entry each.
    fn measure(
        &mut self,
        cases: &[Case],
        kind: Kind,
        folder: &str,
        basis: &str,
        freeze: Option<&str>,
    ) -> Result<(), StudyError> {
        let todo: Vec<SearchTask<'_>> = cases
            .iter()
            .filter(|c| self.ledger.case(kind, &c.id, freeze).is_none())
            .map(|case| SearchTask { case, basis, folder, also: &[] })
            .collect();
        if todo.is_empty() {
            return Ok(());
        }
        let (store, ledger, study) = (&self.store, &mut self.ledger, &self.study);
        let scratch = scratch(store);
        let mut bench = Bench::new(self.setup, study, &self.machine, &scratch)?;
        search::search_all(&mut bench, store, &todo, &mut |task, file| {
            let name = format!("{folder}/{}.json", task.case.id);
            let sha256 = store.write_json(&name, &file)?;
            let mut body = json!({"case": task.case.id, "file": name, "sha256": sha256});
            if let Some(freeze) = freeze {
                body["freeze"] = json!(freeze);
            }
            ledger.append(store, kind, body).map(|_| ())
        })?;
        drop(bench);
        let _ = std::fs::remove_dir_all(scratch);
        Ok(())
    }

    /// The recorded searches of a set, in the order of the study.
    fn searches(
        &self,
        set: CaseSet,
        kind: Kind,
        freeze: Option<&str>,
    ) -> Result<Vec<SearchFile>, StudyError> {
        let mut files = Vec::new();
        for case in self.study.set(set) {
            let entry = self.ledger.case(kind, &case.id, freeze).ok_or_else(|| {
                StudyError::Order(format!("case {} hasn't been measured yet", case.id))
            })?;
            self.ledger.check_file(&self.store, entry)?;
            let file = entry.text("file").unwrap_or_default();
            files.push(self.store.read_json(file)?.0);
        }
        Ok(files)
    }

    /// Fits the profile, unless the ledger has one.
    ///
    /// # Errors
    /// A training case hasn't been searched, or fitting fails.
    pub fn calibrate(&mut self) -> Result<(), StudyError> {
        if self.ledger.of(Kind::Calibration).next().is_some() {
            return Ok(());
        }
        let searches = self.searches(CaseSet::Training, Kind::Search, None)?;
        let target = self.setup.device.target();
        let Calibrated { families, profile } = fit::calibrate(&searches, target)?;
        let mut entries = Vec::new();
        for family in &families {
            let file = format!("calibration/{}.json", family.family);
            let sha256 = self.store.write_json(&file, family)?;
            entries.push(json!({"family": family.family, "file": file, "sha256": sha256}));
        }
        let value: Value = serde_json::from_str(&profile.to_json())
            .map_err(|e| StudyError::record(&self.store.path(PROFILE), e.to_string()))?;
        let profile_sha256 = self.store.write_json(PROFILE, &value)?;
        let body = json!({"families": entries, "profile_sha256": profile_sha256});
        self.ledger.append(&self.store, Kind::Calibration, body)?;
        Ok(())
    }

    fn profile(&self) -> Result<(WholeLaunchProfile, String), StudyError> {
        let entry = self.ledger.of(Kind::Calibration).next_back().ok_or_else(|| {
            StudyError::Order("the record has no profile yet: calibrate first".to_string())
        })?;
        let path = self.store.path(PROFILE);
        let bytes = self.store.read(PROFILE)?;
        let sha256 = crate::canonical::sha256(&bytes);
        if entry.text("profile_sha256") != Some(&sha256) {
            return Err(StudyError::record(&path, "it isn't the profile that the ledger names"));
        }
        let text =
            String::from_utf8(bytes).map_err(|e| StudyError::record(&path, e.to_string()))?;
        match Profile::from_json(&text).map_err(|e| StudyError::record(&path, e.to_string()))? {
            Profile::WholeLaunch(profile) => Ok((profile, sha256)),
            _ => Err(StudyError::record(&path, "it is of another policy")),
        }
    }

    /// Freezes plans and protocol of the hold-out, unless that was done; `again` makes another
    /// freeze, after which labels and rounds of the one before are spent.
    ///
    /// # Errors
    /// There is no profile yet, a case can't be frozen, or training cases were disturbed while they
    /// were measured (which is recorded if the set-up says so).
    pub fn freeze(&mut self, again: bool) -> Result<(), StudyError> {
        let number = self.ledger.of(Kind::Freeze).count() as u64;
        if number > 0 && !again {
            return Ok(());
        }
        self.disturbed()?;
        let (profile, profile_sha256) = self.profile()?;
        let protocol = freeze::protocol(&self.study, &profile, &profile_sha256);
        let origin = Origin {
            identity_sha256: self.identity_sha256.clone(),
            tool: self.tool.clone(),
            profile_sha256: profile_sha256.clone(),
        };
        let number = number + 1;
        let folder = numbered("frozen", number);
        let scratch = scratch(&self.store);
        let mut bench = Bench::new(self.setup, &self.study, &self.machine, &scratch)?;
        let mut plans = Vec::new();
        let cases: Vec<&Case> = self.study.set(CaseSet::Holdout).collect();
        self.setup.progress.begin("freezing", cases.len());
        for case in cases {
            let frozen = freeze::freeze(&mut bench, case, &profile, &origin)?;
            for (hash, text) in &frozen.kernels {
                self.store.write(&format!("kernels/{hash}.txt"), text.as_bytes())?;
            }
            let file = format!("{folder}/{}.json", case.id);
            let sha256 = self.store.write_json(&file, &frozen.file)?;
            plans.push(json!({"case": case.id, "file": file, "sha256": sha256}));
            self.setup.progress.advance(&case.id);
        }
        self.setup.progress.end();
        drop(bench);
        let _ = std::fs::remove_dir_all(scratch);
        let protocol_sha256 = self.store.write_json(PROTOCOL, &protocol)?;
        let body = json!({
            "number": number, "protocol_sha256": protocol_sha256,
            "profile_sha256": profile_sha256, "plans": plans,
        });
        self.ledger.append(&self.store, Kind::Freeze, body)?;
        Ok(())
    }

    /// Stops, or records it, where the labels of training cases spread further than the protocol's
    /// limit after every further round.
    fn disturbed(&mut self) -> Result<(), StudyError> {
        let Some(further) = self.study.search.remeasure else { return Ok(()) };
        let mut cases = Vec::new();
        for file in self.searches(CaseSet::Training, Kind::Search, None)? {
            if let Some(spread) = search::case_spread(&file).filter(|s| *s > further.spread) {
                cases.push((file.case.id, spread, further.spread));
            }
        }
        if cases.is_empty() {
            return Ok(());
        }
        if !self.setup.record_changes {
            return Err(StudyError::Disturbed { cases });
        }
        for (case, spread, limit) in cases {
            let (expected, found) = (format!("at most {limit}"), spread.to_string());
            self.change("spread", &expected, &found, Some((&case, None)))?;
        }
        Ok(())
    }

    /// The last freeze: its hash and number.
    fn frozen(&self) -> Result<(String, u64), StudyError> {
        let entry = self
            .ledger
            .freeze()
            .ok_or_else(|| StudyError::Order("nothing is frozen yet: freeze first".to_string()))?;
        Ok((entry.hash.clone(), entry.number("number").unwrap_or(1)))
    }

    fn frozen_files(&self) -> Result<Vec<FrozenFile>, StudyError> {
        let path = self.store.path("ledger.jsonl");
        let entry = self
            .ledger
            .freeze()
            .ok_or_else(|| StudyError::Order("nothing is frozen yet: freeze first".to_string()))?;
        let plans = entry.body["plans"].as_array().cloned().unwrap_or_default();
        let mut files = Vec::new();
        for case in self.study.set(CaseSet::Holdout) {
            let plan = plans.iter().find(|p| p["case"] == json!(case.id)).ok_or_else(|| {
                StudyError::record(&path, format!("no frozen plan of {}", case.id))
            })?;
            let name = plan["file"].as_str().unwrap_or_default();
            let (file, sha256) = self.store.read_json::<FrozenFile>(name)?;
            if plan["sha256"] != json!(sha256) {
                let path = self.store.path(name);
                return Err(StudyError::record(&path, "it isn't the plan that was frozen"));
            }
            files.push(file);
        }
        Ok(files)
    }

    fn protocol(&self) -> Result<ProtocolFile, StudyError> {
        let (protocol, sha256) = self.store.read_json::<ProtocolFile>(PROTOCOL)?;
        let expected = self.ledger.freeze().and_then(|e| e.text("protocol_sha256"));
        if expected != Some(&sha256) {
            let path = self.store.path(PROTOCOL);
            return Err(StudyError::record(&path, "it isn't the protocol that was frozen"));
        }
        Ok(protocol)
    }

    /// Labels every hold-out case.
    ///
    /// # Errors
    /// Nothing is frozen, or as [`search::search_all`].
    pub fn label(&mut self) -> Result<(), StudyError> {
        let (freeze, number) = self.frozen()?;
        let cases: Vec<Case> = self.study.set(CaseSet::Holdout).cloned().collect();
        let folder = numbered("labels", number);
        self.measure(&cases, Kind::Labels, &folder, &freeze, Some(&freeze))
    }

    /// Measures every replay round that the ledger doesn't name.
    ///
    /// # Errors
    /// The hold-out hasn't been labelled; a kernel comes out different; as [`replay::round`].
    pub fn replay(&mut self) -> Result<(), StudyError> {
        let (freeze, number) = self.frozen()?;
        let protocol = self.protocol()?;
        let labels = self.searches(CaseSet::Holdout, Kind::Labels, Some(&freeze))?;
        let frozen = self.frozen_files()?;
        let tasks: Vec<ReplayTask> = frozen
            .into_iter()
            .zip(&labels)
            .map(|(frozen, labels)| ReplayTask {
                case: frozen.case.clone(),
                best: labels
                    .selection
                    .winner
                    .and_then(|w| labels.candidates.get(w))
                    .map(|c| c.plan),
                frozen,
            })
            .collect();
        let folder = numbered("replay", number);
        let scratch = scratch(&self.store);
        let (store, ledger, setup) = (&self.store, &mut self.ledger, self.setup);
        let mut bench = Bench::new(setup, &self.study, &self.machine, &scratch)?;
        for round in 0..protocol.replay.rounds {
            if ledger.round(round as u64, &freeze).is_some() {
                continue;
            }
            let mut differs = |d: &Difference| {
                let place = Some((d.case.as_str(), Some(d.path.as_str())));
                note_change(setup, store, ledger, "kernel", &d.expected, &d.found, place)
            };
            let file = replay::round(
                &mut bench,
                store,
                &folder,
                round,
                &freeze,
                &protocol,
                &tasks,
                &mut differs,
            )?;
            let unit = replay::unit(&folder, round);
            let name = format!("{unit}.json");
            let sha256 = store.write_json(&name, &file)?;
            let body = json!({"round": round, "file": name, "sha256": sha256, "freeze": freeze});
            ledger.append(store, Kind::Replay, body)?;
            store.forget(&unit)?;
        }
        drop(bench);
        let _ = std::fs::remove_dir_all(scratch);
        Ok(())
    }

    /// Derives the results and closes the record.
    ///
    /// # Errors
    /// A step is missing.
    pub fn finish(&mut self) -> Result<Value, StudyError> {
        let (freeze, _) = self.frozen()?;
        let protocol = self.protocol()?;
        let (profile, _) = self.profile()?;
        let searches = self.searches(CaseSet::Training, Kind::Search, None)?;
        let labels = self.searches(CaseSet::Holdout, Kind::Labels, Some(&freeze))?;
        let frozen = self.frozen_files()?;
        let mut rounds = Vec::new();
        for round in 0..protocol.replay.rounds {
            let entry = self.ledger.round(round as u64, &freeze).ok_or_else(|| {
                StudyError::Order(format!("replay round {} is missing: replay first", round + 1))
            })?;
            self.ledger.check_file(&self.store, entry)?;
            rounds.push(self.store.read_json(entry.text("file").unwrap_or_default())?.0);
        }
        let evidence = Evidence {
            protocol: &protocol,
            profile: &profile,
            freeze: &freeze,
            freezes: self.ledger.of(Kind::Freeze).count(),
            searches: &searches,
            frozen: &frozen,
            labels: &labels,
            rounds: &rounds,
        };
        let value = results(&evidence).ok_or_else(|| {
            StudyError::Order("the profile has no fit of a frozen case".to_string())
        })?;
        let text = canonical(&value)?;
        // All units are in the ledger: a journal that is left lost the race with a kill.
        self.store.remove_folder("journal")?;
        let last = self.ledger.entries().last();
        let known = last.is_some_and(|e| e.kind == Kind::Results)
            && self.store.has(RESULTS)
            && self.store.read(RESULTS)? == format!("{text}\n").as_bytes();
        if !known {
            let sha256 = self.store.write_json(RESULTS, &value)?;
            let body = json!({"file": RESULTS, "sha256": sha256});
            self.ledger.append(&self.store, Kind::Results, body)?;
        }
        Ok(value)
    }
}

/// The profile of a finished record, with what its hold-out says of it: the file to ship.
///
/// # Errors
/// The record isn't finished, a case of the hold-out is incomplete, or its times are simulated.
pub fn held_out_profile(dir: &Path) -> Result<WholeLaunchProfile, StudyError> {
    kept_study(dir)?;
    let store = Store::open(dir)?;
    let fault = |message: String| StudyError::record(dir, message);
    let ledger = Ledger::read(&store)?;
    let last = ledger.entries().last().filter(|e| e.kind == Kind::Results);
    let last = last.ok_or_else(|| {
        StudyError::Order("the record has no results yet: finish the study first".to_string())
    })?;
    ledger.check_file(&store, last)?;
    let (results, _) = store.read_json::<Value>(RESULTS)?;
    let (machine, _) = store.read_json::<Machine>(MACHINE)?;
    if machine.meter == crate::meter::MeterKind::Simulated {
        return Err(fault("its times are simulated and say nothing of a profile".to_string()));
    }
    let mut lost_every_round = Vec::new();
    let cases = results["cases"].as_array().cloned().unwrap_or_default();
    for case in &cases {
        let id = case["case"].as_str().unwrap_or_default();
        let Some(best) = case["gain"]["max"].as_f64() else {
            return Err(fault(format!("hold-out case {id} is incomplete")));
        };
        if best < 1.0 {
            lost_every_round.push(id.to_string());
        }
    }
    let bytes = store.read(PROFILE)?;
    let path = store.path(PROFILE);
    let stated = ledger.freeze().and_then(|e| e.text("profile_sha256"));
    if stated != Some(&crate::canonical::sha256(&bytes)) {
        return Err(StudyError::record(&path, "it isn't the profile that was frozen"));
    }
    let text = String::from_utf8_lossy(&bytes);
    let Ok(Profile::WholeLaunch(mut profile)) = Profile::from_json(&text) else {
        return Err(StudyError::record(&path, "it is no profile of whole-launch"));
    };
    profile.hold_out = Some(HoldOut {
        freeze: results["freeze"].as_str().unwrap_or_default().to_string(),
        target_sha256: machine.target.hash().to_string(),
        rounds: results["rounds"].as_u64().unwrap_or(0),
        cases: cases.len() as u64,
        lost_every_round,
    });
    Ok(profile)
}

/// The study that a record keeps.
///
/// # Errors
/// There is no record in the folder.
pub fn kept_study(dir: &Path) -> Result<Study, StudyError> {
    let path = dir.join(STUDY);
    let text = std::fs::read_to_string(&path).map_err(|e| StudyError::io("read", &path, e))?;
    let first = std::fs::read_to_string(dir.join(crate::ledger::FILE)).unwrap_or_default();
    let quick = first
        .lines()
        .next()
        .and_then(|line| serde_json::from_str::<Value>(line).ok())
        .is_some_and(|entry| entry["body"]["quick"] == json!(true));
    Study::parse(&text, quick)
        .map_err(|message| StudyError::File { file: STUDY.to_string(), message })
}

/// `name` for the first freeze, `name.2` for the second, and so on.
fn numbered(name: &str, number: u64) -> String {
    if number <= 1 { name.to_string() } else { format!("{name}.{number}") }
}

/// Records a difference once, or stops.
fn note_change(
    setup: &Setup<'_>,
    store: &Store,
    ledger: &mut Ledger,
    what: &str,
    expected: &str,
    found: &str,
    place: Option<(&str, Option<&str>)>,
) -> Result<(), StudyError> {
    let (case, path) = (place.map(|p| p.0), place.and_then(|p| p.1));
    if !setup.record_changes {
        let whose = match (case, path) {
            (Some(case), Some(path)) => format!(" of {case} ({path})"),
            (Some(case), None) => format!(" of {case}"),
            _ => String::new(),
        };
        return Err(StudyError::Changed {
            what: format!("the {what}{whose}"),
            expected: expected.to_string(),
            found: found.to_string(),
            hint: "; --record-changes records it and goes on".to_string(),
        });
    }
    let body = json!({
        "what": what, "expected": expected, "found": found, "case": case, "path": path,
    });
    let known = ledger.of(Kind::Change).any(|e| e.body == body);
    if !known {
        ledger.append(store, Kind::Change, body)?;
    }
    Ok(())
}

/// A folder in which a record is begun holds nothing, or what a beginning has left.
fn only_ours(store: &Store) -> Result<(), StudyError> {
    const OURS: [&str; 4] = [STUDY, MACHINE, crate::ledger::FILE, "journal"];
    let dir = store.dir();
    let entries = std::fs::read_dir(dir).map_err(|e| StudyError::io("read the folder", dir, e))?;
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().to_string();
        if !OURS.contains(&name.as_str()) {
            let message = format!("the folder holds `{name}`, which is no part of a record");
            return Err(StudyError::record(dir, message));
        }
    }
    Ok(())
}

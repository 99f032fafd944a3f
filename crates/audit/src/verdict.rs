//! Verdicts: one per rule, with a witness.

use serde::Serialize;

/// Witnesses that a rule keeps; further failures are only counted.
const WITNESSES: usize = 5;

/// What was audited.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The record of a study.
    Study,
    /// A Kernel Tuner cache file.
    KernelTunerCache,
    /// A Kernel Tuner T4 file.
    KernelTunerT4,
}

macro_rules! rules {
    ($($(#[$kind:ident])* $variant:ident $name:literal $text:literal)*) => {
        /// A rule of the audit.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum Rule {
            $(#[doc = $text] $variant,)*
        }

        impl Rule {
            /// Every rule, in the order of the output.
            pub const ALL: &'static [Rule] = &[$(Rule::$variant,)*];

            /// The name in the output.
            pub fn name(self) -> &'static str {
                match self { $(Rule::$variant => $name,)* }
            }

            /// What must hold.
            pub fn text(self) -> &'static str {
                match self { $(Rule::$variant => $text,)* }
            }
        }
    };
}

rules! {
    FilesRead "files.read" "Every file is a regular file of UTF-8 text within the limits of size and depth."
    FilesSchema "files.schema" "Every file has the fields of its format."
    FilesCanonical "files.canonical" "Every JSON file is canonical, so that its hash is the hash of its content."
    FilesNamed "files.named" "The ledger names every file of the record."
    FilesHash "files.hash" "Every file has the hash that the ledger states."
    NamesSafe "names.safe" "Names hold no markup and no control characters; file names and case ids are of a-z 0-9 - _ and dots."
    NamesPrivate "names.private" "The record holds no absolute path."
    LedgerChain "ledger.chain" "Entries are numbered from 0; each holds the hash of the one before and its own."
    LedgerEntries "ledger.entries" "Every entry is of a known kind and has its fields, without floats."
    LedgerOrder "ledger.order" "Searches come before the calibration, that before the freeze, and the freeze before every label and round that names it."
    LedgerFreezes "ledger.freezes" "Freezes are numbered from 1; labels and rounds name one of them."
    LedgerFinished "ledger.finished" "The record is finished: it has every step, and results are its last entry."
    MachineIdentity "machine.identity" "The identity has the hash that the ledger and the frozen plans state; differences are recorded as changes."
    StudyFile "study.file" "study.toml is a study: known fields of their types, shapes that are sizes, known acceptance rules."
    StudyCases "study.cases" "The cases are those of study.toml, in its order."
    StudyProtocol "study.protocol" "Space, protocols, metric, controls, acceptance rules and thresholds of verdicts are those of study.toml."
    CasesComplete "cases.complete" "Every case of the protocol has its file, numbered from 0 in order, and there is no other."
    CasesDisjoint "cases.disjoint" "No hold-out shape is a training shape, and only training rows were fitted."
    SearchSeeds "search.seeds" "Seeds of inputs and offsets of orders are derived from the study or the freeze."
    SearchSpace "search.space" "Every legal candidate was measured, or those of the cap or the shortlist; counts add up."
    SearchTrials "search.trials" "Every candidate has one trial, and every valid trial every round that was due."
    SearchSamples "search.samples" "Every round has every sample; no time is zero."
    SearchOrder "search.order" "Each round measured the candidates in its rotated or reversed order."
    SearchFurther "search.further" "After the planned rounds exactly those were measured again whose rounds spread beyond the limit, and the fastest of the planned rounds, up to the most rounds of either."
    SearchAlternate "search.alternate" "Where rounds of cases alternate, no case's round began before the round before it of any other."
    SearchDisturbed "search.disturbed" "No training case's rounds spread beyond the limit in the end, unless an entry says so."
    SearchOutputs "search.outputs" "Every output was compared whole with the oracle, guards intact and inputs unchanged, before a time counted."
    SearchFloor "search.floor" "The physical floor follows from the ceilings; labels under 0.9 of it are refused, no others."
    SearchLabels "search.labels" "Every label is the stated quantile (the median, if none is) over rounds of that quantile of their samples."
    SearchIncumbent "search.incumbent" "The incumbent has the smallest score of all legal candidates."
    SearchWinner "search.winner" "The winner is what the selection metric says, and was compiled, checked and measured afresh."
    SearchControls "search.controls" "Controls are measured as candidates are; one that is missing is missing in every case."
    CalibrationRows "calibration.rows" "The fit had every valid trial of every training case, with its label, and the hash of these rows."
    CalibrationFit "calibration.fit" "Every design is the nonnegative least-squares fit of the rows, near the stated prior where there is one, and the coefficients are the mean of the designs."
    CalibrationFolds "calibration.folds" "The regrets of every left-out shape follow from a fit without it, and so does the strength of a prior."
    CalibrationConfidence "calibration.confidence" "Interval, slack, margin and ranges follow from the training rows alone."
    CalibrationProfile "calibration.profile" "The profile holds what the calibration found."
    FrozenProtocol "frozen.protocol" "The protocol and every frozen plan have the hashes of the freeze, and are of this study, profile and machine."
    FrozenPredictions "frozen.predictions" "Every prediction follows from the profile and the candidate's inputs."
    FrozenChoices "frozen.choices" "Incumbent and challenger have the smallest score and the smallest prediction."
    FrozenAdvice "frozen.advice" "Interval, shortlist, abstention, predicted gain and acceptance follow from the predictions."
    FrozenLabels "frozen.labels" "The labels are of the candidates, the protocol and the kernels that were frozen."
    FrozenKernels "frozen.kernels" "Every frozen kernel's text is in the record and has its hash."
    ReplayRounds "replay.rounds" "Every round has every case and every path of the protocol."
    ReplayOrder "replay.order" "Cases and paths were measured in the order that the freeze derives."
    ReplayBalance "replay.balance" "Over every whole cycle of rounds each path had each position and preceded each other path equally often."
    ReplayKernels "replay.kernels" "Every path compiled to the frozen kernel, and the A/A path to the incumbent's; differences are recorded as changes."
    ReplaySamples "replay.samples" "Every valid run has every sample; no time is zero."
    ReplayOutputs "replay.outputs" "Every plan path was compared whole with the oracle in every round."
    ResultsRegret "results.regret" "Regrets follow from the labels."
    ResultsCoverage "results.coverage" "Coverage and widths of the intervals follow from the labels and the frozen intervals."
    ResultsRatios "results.ratios" "Times, paired ratios and gains follow from the rounds."
    ResultsVerdicts "results.verdicts" "Noise floors, sign tests and verdicts follow from the rounds."
    ResultsGuard "results.guard" "What the guard accepted, kept and lost follows from the frozen advice and the verdicts."
    ResultsSummary "results.summary" "Means, maxima and counts follow from the cases."
    ResultsGate "results.gate" "The gate applies every acceptance rule of the protocol."
    Interruptions "interruptions" "Every interruption is stated, and what was interrupted counts for nothing."
    ForeignRead "foreign.read" "The file is JSON (or gzip of it) within the limits of size and depth."
    ForeignFormat "foreign.format" "The file has the fields of its format."
    ForeignConfigurations "foreign.configurations" "Every configuration is one of the declared space, stands under its own key, and occurs once."
    ForeignSamples "foreign.samples" "Every valid row has as many samples as the others."
    ForeignLabels "foreign.labels" "Every label is the mean (or median, or minimum) of its own samples, by one rule in the whole file."
    ForeignRates "foreign.rates" "Rates times labels are one amount of work in the whole file."
    ForeignTimes "foreign.times" "No time is impossible: all are positive, and samples fit in the time that measuring them took."
    ForeignDrift "foreign.drift" "Within a row, the later half of the samples is as fast as the earlier half."
}

impl Rule {
    /// Whether the rule is about the kind of file.
    pub fn applies(self, kind: Kind) -> bool {
        (kind == Kind::Study) != (self >= Rule::ForeignRead)
    }
}

/// What a rule found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Everything that was checked holds.
    Pass,
    /// Something doesn't hold.
    Fail,
    /// There was nothing to check.
    NotApplicable,
}

/// One rule's verdict.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Verdict {
    /// Name of the rule.
    pub rule: &'static str,
    /// What it found.
    pub verdict: Outcome,
    /// Facts that were checked.
    pub checked: u64,
    /// Facts that don't hold.
    pub failures: u64,
    /// The first failures, each with its place; notes where there is none.
    pub witness: Vec<String>,
}

/// The verdicts on a record or file (`schemas/audit.schema.json`).
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Audit {
    schema: &'static str,
    /// What was audited.
    pub kind: Kind,
    /// `Pass` if no rule fails.
    pub verdict: Outcome,
    /// One verdict per rule.
    pub rules: Vec<Verdict>,
}

impl Audit {
    /// Whether no rule fails.
    pub fn passed(&self) -> bool {
        self.verdict == Outcome::Pass
    }

    /// Names of the rules that fail.
    pub fn failed(&self) -> Vec<&'static str> {
        let failed = self.rules.iter().filter(|r| r.verdict == Outcome::Fail);
        failed.map(|r| r.rule).collect()
    }
}

/// Verdicts being collected.
#[derive(Debug)]
pub struct Checks {
    kind: Kind,
    states: Vec<State>,
}

#[derive(Clone, Default, Debug)]
struct State {
    checked: u64,
    failures: u64,
    witness: Vec<String>,
    notes: Vec<String>,
}

impl Checks {
    /// Nothing checked yet.
    pub fn new(kind: Kind) -> Self {
        Checks { kind, states: vec![State::default(); Rule::ALL.len()] }
    }

    /// Sets what turned out to be audited.
    pub fn set_kind(&mut self, kind: Kind) {
        self.kind = kind;
    }

    fn state(&mut self, rule: Rule) -> Option<&mut State> {
        self.states.get_mut(rule as usize)
    }

    /// Counts a fact; where it doesn't hold, keeps the witness.
    pub fn that(&mut self, rule: Rule, holds: bool, witness: impl FnOnce() -> String) {
        let Some(state) = self.state(rule) else { return };
        state.checked += 1;
        if !holds {
            state.failures += 1;
            if state.witness.len() < WITNESSES {
                state.witness.push(clip(witness()));
            }
        }
    }

    /// Counts a fact that doesn't hold.
    pub fn fail(&mut self, rule: Rule, witness: impl Into<String>) {
        let witness = witness.into();
        self.that(rule, false, || witness);
    }

    /// A remark that is shown where the rule doesn't fail.
    pub fn note(&mut self, rule: Rule, note: impl Into<String>) {
        if let Some(state) = self.state(rule) {
            state.notes.push(clip(note.into()));
        }
    }

    /// The verdicts.
    pub fn finish(self) -> Audit {
        let kind = self.kind;
        let rules: Vec<Verdict> = Rule::ALL
            .iter()
            .zip(self.states)
            .filter(|(rule, state)| rule.applies(kind) || state.failures > 0)
            .map(|(rule, state)| {
                let verdict = match (state.failures, state.checked) {
                    (0, 0) => Outcome::NotApplicable,
                    (0, _) => Outcome::Pass,
                    _ => Outcome::Fail,
                };
                let mut witness = state.witness;
                if witness.is_empty() {
                    witness = state.notes;
                }
                if witness.is_empty() && verdict == Outcome::NotApplicable {
                    witness.push("there was nothing to check".to_string());
                }
                let (checked, failures) = (state.checked, state.failures);
                Verdict { rule: rule.name(), verdict, checked, failures, witness }
            })
            .collect();
        let failed = rules.iter().any(|r| r.verdict == Outcome::Fail);
        Audit {
            schema: "tilewright-audit-v1",
            kind,
            verdict: if failed { Outcome::Fail } else { Outcome::Pass },
            rules,
        }
    }
}

/// A witness as one line without control characters: it may quote what a file holds.
fn clip(text: String) -> String {
    const LONGEST: usize = 400;
    let mut out = String::new();
    for (i, c) in text.chars().enumerate() {
        if i == LONGEST {
            out.push('…');
            break;
        }
        out.push(if c.is_control() { '\u{fffd}' } else { c });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_counted_and_the_first_are_kept() {
        let mut checks = Checks::new(Kind::Study);
        for i in 0..9 {
            checks.that(Rule::SearchLabels, i < 2, || format!("label {i}\u{1b}[31m"));
        }
        checks.that(Rule::LedgerChain, true, String::new);
        let audit = checks.finish();
        assert!(!audit.passed());
        assert_eq!(audit.failed(), ["search.labels"]);
        let labels = audit.rules.iter().find(|r| r.rule == "search.labels").unwrap();
        assert_eq!((labels.checked, labels.failures, labels.witness.len()), (9, 7, WITNESSES));
        assert_eq!(labels.witness[0], "label 2\u{fffd}[31m");
        let chain = audit.rules.iter().find(|r| r.rule == "ledger.chain").unwrap();
        assert_eq!(chain.verdict, Outcome::Pass);
        assert!(audit.rules.iter().all(|r| !r.rule.starts_with("foreign.")));
    }

    #[test]
    fn rule_names_are_distinct() {
        let mut names: Vec<&str> = Rule::ALL.iter().map(|r| r.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Rule::ALL.len());
    }
}

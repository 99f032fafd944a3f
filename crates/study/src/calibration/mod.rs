//! The calibration report: a fit, what it is worth on shapes that it hasn't seen, and the rules
//! that it has to beat, all under the same protocol.

mod reference;
pub mod text;

use serde::Serialize;
use tilewright_plan::calibrate::guard::{self, GuardCase, GuardReport};
use tilewright_plan::calibrate::identify::{Identifiability, identify};
use tilewright_plan::calibrate::{
    DataError, Dataset, Evaluation, Pick, Split, Strategy, bands, code_hash, frozen, nested,
    nested_constant, whole_launch,
};
use tilewright_plan::hash::Hash256;
use tilewright_plan::policy::reduction_service::ReductionService;
use tilewright_plan::policy::whole_launch::{FamilyFit, WholeLaunch};
use tilewright_plan::profile::{FitOrigin, Profile, ServiceProfile, WholeLaunchProfile};

pub use reference::{CapacityReport, FoldReport, ReferenceReport};

use crate::import::record::SearchRecord;
use crate::import::replay_record::ReplayRecord;
use crate::import::{ImportError, Training};

/// The `schema` of the report.
pub const SCHEMA: &str = "tilewright-calibrate-v1";

/// What is always said: the features and the policy's other choices were made by people who had
/// seen the reference system's records.
pub const NOT_HELD_OUT: &str = "Coefficients, capacity and feature set take no part in the cases \
    that they are judged by, but the list of features itself was written after this record had \
    been seen: on it, nested figures aren't held out in the strict sense. Only fresh data can say \
    what the features are worth.";

/// Which fit is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Procedure {
    /// The reference system's: six features, one of six capacities by held-out regret.
    Reference,
    /// Ours: averaged feature sets and capacities.
    WholeLaunch,
}

/// How the cases of the report are held out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// One shape at a time.
    Shape,
    /// One operator at a time.
    Operator,
    /// A frozen list of shapes, once.
    Frozen(Vec<String>),
}

impl Protocol {
    /// In words.
    pub fn describe(&self) -> String {
        match self {
            Protocol::Shape => "nested leave-one-shape-out".to_string(),
            Protocol::Operator => "nested leave-one-operator-out".to_string(),
            Protocol::Frozen(shapes) => format!("frozen split, held out: {}", shapes.join(", ")),
        }
    }
}

/// What to report.
#[derive(Clone, PartialEq, Debug)]
pub struct Options {
    /// Which fit.
    pub procedure: Procedure,
    /// How cases are held out.
    pub protocol: Protocol,
    /// Draws of the bands from resampled labels; 0 for none.
    pub draws: usize,
}

/// Training data with what a search record adds to it.
#[derive(Clone, Debug)]
pub enum Source {
    /// Plain training rows.
    Training(Training),
    /// A search record of the reference system.
    Record(SearchRecord),
}

impl Source {
    /// The training rows.
    pub fn training(&self) -> &Training {
        match self {
            Source::Training(training) => training,
            Source::Record(record) => &record.training,
        }
    }
}

/// A 90 % range.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct BandReport {
    /// 5th percentile.
    pub low: f64,
    /// 95th percentile.
    pub high: f64,
}

impl From<bands::Band> for BandReport {
    fn from(band: bands::Band) -> Self {
        BandReport { low: band.low, high: band.high }
    }
}

/// A pick in one case.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PickReport {
    /// The case.
    pub case: String,
    /// The candidate picked.
    pub candidate: String,
    /// Its score: predicted microseconds where the procedure predicts times.
    pub score: f64,
    /// Its label in microseconds.
    pub label_us: f64,
    /// Smallest label of the case.
    pub best_us: f64,
    /// label/best − 1.
    pub regret: f64,
    /// The same when the three best-ranked are measured.
    pub top3_regret: f64,
}

/// One procedure's worth.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ComparisonReport {
    /// The procedure.
    pub name: String,
    /// How its cases were held out.
    pub protocol: String,
    /// Mean regret.
    pub mean: f64,
    /// Median regret.
    pub median: f64,
    /// Largest regret.
    pub max: f64,
    /// Mean regret when the three best-ranked are measured.
    pub top3: f64,
    /// 90 % range of the mean when every label is resampled from its samples, if asked for.
    pub mean_band: Option<BandReport>,
    /// The same of the largest regret.
    pub max_band: Option<BandReport>,
    /// The same of the top-3 mean.
    pub top3_band: Option<BandReport>,
    /// 90 % bootstrap interval of the mean over shapes.
    pub shapes_interval: Option<BandReport>,
    /// Why there is no such interval.
    pub shapes_note: Option<String>,
    /// Every case.
    pub cases: Vec<PickReport>,
}

/// A term of the fitted model.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct TermReport {
    /// Its name, with the capacity.
    pub term: String,
    /// Microseconds per unit.
    pub coefficient: f64,
    /// Unit in words.
    pub counts: String,
}

/// The fitted `whole-launch` model.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ModelReport {
    /// Its terms.
    pub terms: Vec<TermReport>,
    /// Share of labels that the interval is to cover.
    pub level: f64,
    /// The interval is prediction·low to prediction·high.
    pub low: f64,
    /// See `low`.
    pub high: f64,
    /// Share of held-out training labels inside an interval made without their own shape.
    pub covered: f64,
    /// Candidates within this factor of the best prediction are worth measuring.
    pub slack: f64,
    /// A challenger's predicted gain must exceed this.
    pub margin: f64,
}

/// What can be said of one coefficient.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CoefficientReport {
    /// The feature.
    pub feature: String,
    /// Its coefficient.
    pub coefficient: f64,
    /// Its range over the fits that each leave a shape out.
    pub range: [f64; 2],
    /// Mean share of the prediction.
    pub share: f64,
    /// What it means, in words.
    pub meaning: String,
}

/// Correlation and identifiability of one design.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct IdentifiabilityReport {
    /// The design.
    pub design: String,
    /// Condition number of its columns at unit norm; null where they are dependent.
    pub condition: Option<f64>,
    /// One entry a coefficient.
    pub coefficients: Vec<CoefficientReport>,
    /// Cosines between the columns that the fit sees.
    pub correlation: Vec<Vec<f64>>,
}

/// A case of the guard.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct GuardCaseReport {
    /// The case.
    pub case: String,
    /// Predicted gain, incumbent/challenger.
    pub predicted: f64,
    /// Measured gain.
    pub measured: f64,
    /// Whether the guard lets the challenger replace the incumbent.
    pub accepted: bool,
}

/// The guard on a replay.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ReplayReport {
    /// The model that predicts the gains.
    pub model: String,
    /// The margin, from training cases alone.
    pub margin: f64,
    /// Challengers accepted.
    pub accepted: usize,
    /// Accepted ones that were slower.
    pub accepted_losers: usize,
    /// Challengers that were faster.
    pub wins: usize,
    /// Faster ones that were accepted.
    pub wins_kept: usize,
    /// Geometric mean gain of guarding.
    pub mean_gain: f64,
    /// Geometric mean gain of always taking the challenger; of the incumbent it is 1.
    pub mean_gain_always: f64,
    /// Every case.
    pub cases: Vec<GuardCaseReport>,
}

/// The whole report.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: String,
    /// SHA-256 of the training file.
    pub data_sha256: String,
    /// SHA-256 of the fitting code.
    pub code_sha256: String,
    /// The family.
    pub family: String,
    /// The target.
    pub target: String,
    /// Training rows.
    pub rows: usize,
    /// Trials of the file that have no time.
    pub rejected: usize,
    /// Cases.
    pub cases: usize,
    /// Shapes.
    pub shapes: usize,
    /// The reference's procedure, for its own row record.
    pub reference: Option<ReferenceReport>,
    /// The fitted `whole-launch` model, if that is the procedure.
    pub model: Option<ModelReport>,
    /// Its designs looked at.
    pub identifiability: Vec<IdentifiabilityReport>,
    /// Procedures side by side.
    pub comparisons: Vec<ComparisonReport>,
    /// The guard on a replay, if one was given.
    pub replays: Vec<ReplayReport>,
    /// What a reader must know.
    pub notes: Vec<String>,
}

/// A report with the profile that it describes.
#[derive(Clone, PartialEq, Debug)]
pub struct Calibration {
    /// The report.
    pub report: Report,
    /// The profile.
    pub profile: Profile,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum CalibrationError {
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Import(#[from] ImportError),
    #[error("the reference's procedure needs the facts of its own row record")]
    Reference,
    #[error("a replay of row programs needs a fit of row programs on a GPU")]
    Replay,
}

/// Fits and reports.
///
/// # Errors
/// The data can't be fitted or held out as asked, or the procedure needs other data.
pub fn calibrate(
    source: &Source,
    file: &[u8],
    options: &Options,
    replay: Option<&ReplayRecord>,
) -> Result<Calibration, CalibrationError> {
    let training = source.training();
    let data = training.dataset()?;
    let all = data.all();
    let origin = |procedure: &str| FitOrigin {
        data_sha256: Hash256::of(file).to_string(),
        code_sha256: code_hash().to_string(),
        procedure: procedure.to_string(),
    };
    let mut report = Report {
        schema: SCHEMA.to_string(),
        data_sha256: Hash256::of(file).to_string(),
        code_sha256: code_hash().to_string(),
        family: training.family.name().to_string(),
        target: training.target.clone(),
        rows: training.rows.len(),
        rejected: match source {
            Source::Record(record) => record.rejected,
            Source::Training(_) => 0,
        },
        cases: data.cases(&all).len(),
        shapes: data.groups(&all, Split::Shape).len(),
        reference: None,
        model: None,
        identifiability: Vec::new(),
        comparisons: Vec::new(),
        replays: Vec::new(),
        notes: Vec::new(),
    };
    let service = match source {
        Source::Record(record) if !record.service.is_empty() => {
            Some(reference::dataset(&record.training, &record.service)?)
        }
        _ => None,
    };
    let profile = match (options.procedure, &service) {
        (Procedure::Reference, None) if options_scores(source).is_empty() => {
            return Err(CalibrationError::Reference);
        }
        (Procedure::Reference, Some(service)) => {
            let (reference, coefficients) = reference::fit(service)?;
            report.reference = Some(reference);
            Profile::Service(ServiceProfile {
                coefficients,
                target: Some(training.target.clone()),
                source: None,
                fit: Some(origin("service-v1, capacity by leave-one-shape-out regret")),
            })
        }
        // The matrix record has no fit of the reference's: its scores are compared below.
        _ => {
            let fit = whole_launch::fit_family(
                training.family,
                &data,
                &training.inputs(),
                &training.incumbents(),
            )?;
            report.model = Some(model(training, &data, &fit)?);
            for design in 0..data.designs().len() {
                report.identifiability.push(identifiability(identify(
                    &data,
                    design,
                    Split::Shape,
                )?));
            }
            Profile::WholeLaunch(WholeLaunchProfile {
                target: training.target.clone(),
                fits: vec![fit],
                source: None,
                fit: origin("whole-launch, feature sets and capacities averaged"),
                hold_out: None,
            })
        }
    };
    report.comparisons = comparisons(source, &data, service.as_ref(), options)?;
    if let Some(replay) = replay {
        report.replays = replays(training, &data, service.as_ref(), replay)?;
    }
    report.notes = notes(source, &data);
    Ok(Calibration { report, profile })
}

fn options_scores(source: &Source) -> &[(&'static str, Vec<f64>)] {
    match source {
        Source::Record(record) => &record.scores,
        Source::Training(_) => &[],
    }
}

fn notes(source: &Source, data: &Dataset) -> Vec<String> {
    let mut notes = Vec::new();
    if let Source::Record(record) = source {
        notes.push(NOT_HELD_OUT.to_string());
        if record.service.is_empty() {
            notes.push(
                "The published regrets of matrix-mpp-v1 come from an earlier search whose times \
                 aren't in this file; the ones here are of its published picks on these times."
                    .to_string(),
            );
        }
    }
    notes.push(
        "A rule chosen on all rows has seen every label that it is judged by; the same rule \
         chosen without the held-out shape is the fair comparison."
            .to_string(),
    );
    let few = data.samples().iter().map(|s| s.samples.len()).min().unwrap_or(0);
    notes.push(format!(
        "Bands resample each label from its samples ({few} or more a trial): they show how far \
         noise of the labels carries, not how other shapes would do."
    ));
    notes
}

/// Held-out picks of a strategy under a protocol.
fn held_out(
    name: &str,
    data: &Dataset,
    protocol: &Protocol,
    strategy: Strategy,
) -> Result<Evaluation, DataError> {
    let folds = match protocol {
        Protocol::Shape => nested(data, Split::Shape, strategy)?,
        Protocol::Operator => nested(data, Split::Operator, strategy)?,
        Protocol::Frozen(shapes) => vec![frozen(data, shapes, strategy)?],
    };
    Ok(Evaluation::of_folds(name, &folds))
}

/// Keeps the cases that the protocol holds out.
fn among(mut evaluation: Evaluation, data: &Dataset, protocol: &Protocol) -> Evaluation {
    if let Protocol::Frozen(shapes) = protocol {
        evaluation.picks.retain(|p| shapes.contains(&data.samples()[p.row].shape));
    }
    evaluation
}

const SEED: u64 = 1;
const SHAPE_DRAWS: usize = 2000;

fn comparisons(
    source: &Source,
    data: &Dataset,
    service: Option<&Dataset>,
    options: &Options,
) -> Result<Vec<ComparisonReport>, CalibrationError> {
    let protocol = &options.protocol;
    let words = protocol.describe();
    let mut out = Vec::new();
    let mut add = |data: &Dataset,
                   words: &str,
                   procedure: &dyn Fn(&Dataset) -> Result<Evaluation, DataError>|
     -> Result<(), DataError> {
        let evaluation = procedure(data)?;
        let bands = match options.draws {
            0 => None,
            draws => Some(bands::of_labels(data, draws, SEED, procedure)?),
        };
        out.push(comparison(data, &evaluation, words, bands));
        Ok(())
    };
    add(data, &words, &|d| held_out("whole-launch, averaged", d, protocol, Strategy::Average))?;
    if data.groups(&data.all(), Split::Shape).len() > 2 {
        add(data, &words, &|d| held_out("whole-launch, selected", d, protocol, Strategy::Select))?;
    }
    if let Some(service) = service {
        add(service, &words, &|d| {
            held_out("reference (service-v1), capacity selected", d, protocol, Strategy::Select)
        })?;
    }
    if *protocol != Protocol::Operator {
        add(data, &words, &|d| Ok(among(nested_constant(d, Split::Shape)?, d, protocol)))?;
    }
    add(data, "chosen on all rows", &|d| Ok(among(Evaluation::of_constant(d), d, protocol)))?;
    for (name, scores) in options_scores(source) {
        add(data, "no fit", &|d| Ok(among(Evaluation::of_scores(name, d, scores), d, protocol)))?;
    }
    Ok(out)
}

fn comparison(
    data: &Dataset,
    evaluation: &Evaluation,
    protocol: &str,
    bands: Option<[bands::Band; 3]>,
) -> ComparisonReport {
    let interval = bands::of_shapes(data, evaluation, SHAPE_DRAWS, SEED);
    let band = |i: usize| bands.map(|b| BandReport::from(b[i]));
    ComparisonReport {
        name: evaluation.name.clone(),
        protocol: protocol.to_string(),
        mean: evaluation.mean(),
        median: evaluation.median(),
        max: evaluation.max(),
        top3: evaluation.top3(),
        mean_band: band(0),
        max_band: band(1),
        top3_band: band(2),
        shapes_interval: interval.ok().map(BandReport::from),
        shapes_note: interval.err().map(|e| e.to_string()),
        cases: evaluation.picks.iter().map(|p| pick(data, p)).collect(),
    }
}

fn pick(data: &Dataset, pick: &Pick) -> PickReport {
    PickReport {
        case: pick.case.clone(),
        candidate: data.samples()[pick.row].candidate.clone(),
        score: pick.prediction,
        label_us: pick.label,
        best_us: pick.best,
        regret: pick.regret(),
        top3_regret: pick.top3_regret(),
    }
}

fn model(training: &Training, data: &Dataset, fit: &FamilyFit) -> Result<ModelReport, DataError> {
    let folds = nested(data, Split::Shape, Strategy::Average)?;
    let infos = training.family.terms();
    let terms = fit.model.terms().iter().map(|t| TermReport {
        term: fit.model.label(t),
        coefficient: t.coefficient,
        counts: infos.get(t.term).map_or(String::new(), |i| i.what.to_string()),
    });
    Ok(ModelReport {
        terms: terms.collect(),
        level: fit.confidence.level,
        low: fit.confidence.low,
        high: fit.confidence.high,
        covered: whole_launch::coverage(data, &folds),
        slack: fit.confidence.slack,
        margin: fit.confidence.margin,
    })
}

fn identifiability(found: Identifiability) -> IdentifiabilityReport {
    let coefficients = found.coefficients.into_iter().map(|c| CoefficientReport {
        meaning: c.meaning.describe(),
        feature: c.feature,
        coefficient: c.coefficient,
        range: c.range,
        share: c.share,
    });
    IdentifiabilityReport {
        design: found.design,
        condition: found.condition.is_finite().then_some(found.condition),
        coefficients: coefficients.collect(),
        correlation: found.correlation,
    }
}

/// The guard on a replay: with the fit that picked the replay's challengers (the reference's), and
/// with ours as the judge of the same challengers.
fn replays(
    training: &Training,
    data: &Dataset,
    service: Option<&Dataset>,
    replay: &ReplayRecord,
) -> Result<Vec<ReplayReport>, CalibrationError> {
    let incumbents = training.incumbents();
    let mut out = Vec::new();
    if let Some(service) = service {
        let (reference, coefficients) = reference::fit(service)?;
        let folds = reference::folds_of(service, reference.chosen)?;
        let cases = guard::training_cases(service, &folds, &incumbents);
        let policy = ReductionService::new(coefficients).map_err(|_| CalibrationError::Replay)?;
        let name = format!("reference (service-v1), capacity {}", reference.chosen);
        out.push(guarded(&name, &cases, replay.guard_cases(&policy)?));
    }
    let folds = nested(data, Split::Shape, Strategy::Average)?;
    let mut predictions = vec![0.0; data.samples().len()];
    for (row, prediction) in folds.iter().flat_map(|f| &f.predictions) {
        predictions[*row] = *prediction;
    }
    let cases = guard::training_cases(data, &predictions, &incumbents);
    let fit = whole_launch::fit_family(training.family, data, &training.inputs(), &incumbents)?;
    let policy = WholeLaunch::new(&training.target, vec![fit]);
    out.push(guarded("whole-launch, averaged", &cases, replay.guard_cases(&policy)?));
    Ok(out)
}

fn guarded(model: &str, training: &[GuardCase], cases: Vec<GuardCase>) -> ReplayReport {
    let report = GuardReport::new(guard::margin(training), cases);
    ReplayReport {
        model: model.to_string(),
        margin: report.margin,
        accepted: report.accepted(),
        accepted_losers: report.accepted_losers(),
        wins: report.wins(),
        wins_kept: report.wins_kept(),
        mean_gain: report.mean_gain(),
        mean_gain_always: report.mean_gain_always(),
        cases: report
            .decisions
            .into_iter()
            .map(|d| GuardCaseReport {
                case: d.case.case,
                predicted: d.case.predicted,
                measured: d.case.measured,
                accepted: d.accepted,
            })
            .collect(),
    }
}

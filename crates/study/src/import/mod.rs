//! Measurements from outside.
//!
//! | format | read by | gives |
//! |---|---|---|
//! | Kernel Tuner cache | [`kernel_tuner`] | [`Space`] |
//! | T4 results | [`t4`] | [`Space`] |
//! | Triton `*.autotune.json` | [`triton`] | [`Space`] |
//! | PyTorch AutoHeuristic text | [`autoheuristic`] | one [`Space`] a problem |
//! | our training CSV | [`training_csv`] | [`Training`] |
//! | search and replay records of the reference system | [`record`], [`replay_record`] | [`Training`] |
//!
//! Every reader takes bytes from [`file::read`], which unpacks gzip and refuses what is too large
//! or too deep before anything is built from it. Names from files stay as they are; what prints
//! them uses [`names::printable`].

pub mod autoheuristic;
pub mod file;
pub mod kernel_tuner;
pub mod names;
pub mod record;
pub mod replay_record;
pub mod space;
pub mod t4;
pub mod training;
pub mod training_csv;
pub mod transfer;
pub mod triton;

pub use file::{Limits, read};
pub use space::{Failure, ParamValue, Space, TimeUnit, Trial};
pub use training::{Training, TrainingRow};

/// Why a file can't be imported.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum ImportError {
    /// The operating system failed.
    #[error("can't read {path}: {error}")]
    Io { path: String, error: std::io::Error },
    /// More bytes than the limit.
    #[error("{what} has more than {limit} bytes")]
    TooLarge { what: &'static str, limit: u64 },
    /// Nested deeper than the limit.
    #[error("nested deeper than {limit} levels at byte {offset}")]
    TooDeep { limit: usize, offset: usize },
    /// More entries than the limit.
    #[error("more than {limit} {what}")]
    TooMany { what: &'static str, limit: usize },
    /// Not text.
    #[error("not UTF-8 text")]
    NotText,
    /// A damaged gzip stream.
    #[error("damaged gzip data: {0}")]
    Gzip(String),
    /// Not JSON.
    #[error("not JSON: {0}")]
    Json(String),
    /// JSON or text, but not of the format.
    #[error("{place}: {problem}")]
    Format { place: String, problem: String },
    /// A format that nothing here reads.
    #[error("no known format: {0}")]
    Unknown(String),
    /// A fact of the file contradicts what the planner counts for the same schedule.
    #[error("{place}: {fact} is {found} in the file, {expected} by the planner's count")]
    Fact { place: String, fact: String, found: String, expected: String },
    /// Planning the record's problems failed.
    #[error("{place}: {error}")]
    Plan { place: String, error: tilewright_plan::PlanError },
    /// The rows make no training data.
    #[error(transparent)]
    Data(#[from] tilewright_plan::calibrate::DataError),
}

impl ImportError {
    pub(crate) fn format(place: impl Into<String>, problem: impl Into<String>) -> Self {
        ImportError::Format { place: place.into(), problem: problem.into() }
    }
}

/// Any file that [`detect`] knows.
#[derive(Debug)]
pub enum Imported {
    /// A space of measured configurations of one kernel; AutoHeuristic text gives several.
    Spaces(Vec<Space>),
    /// Training rows with the inputs of a cost model.
    Training(Box<Training>),
    /// A search record of the reference system.
    Record(Box<record::SearchRecord>),
    /// A replay record of the reference system.
    Replay(replay_record::ReplayRecord),
}

/// Reads bytes of any known format.
///
/// # Errors
/// The format isn't known, or the reader of the format refuses the content.
pub fn detect(bytes: &[u8], limits: &Limits) -> Result<Imported, ImportError> {
    let text = std::str::from_utf8(bytes).map_err(|_| ImportError::NotText)?;
    if text.starts_with(training_csv::MAGIC) {
        return Ok(Imported::Training(Box::new(training_csv::parse(text, limits)?)));
    }
    if autoheuristic::looks_like(text) {
        return Ok(Imported::Spaces(autoheuristic::parse(text, limits)?));
    }
    let value = match (file::json(bytes, limits), kernel_tuner::closed(bytes)) {
        (Err(ImportError::Json(_)), Some(closed)) => file::json(&closed, limits)?,
        (parsed, _) => parsed?,
    };
    let has = |key: &str| value.get(key).is_some();
    if has("cache") && has("tune_params_keys") {
        Ok(Imported::Spaces(vec![kernel_tuner::parse(&value, limits)?]))
    } else if has("schema_version") && has("results") {
        Ok(Imported::Spaces(vec![t4::parse(&value, limits)?]))
    } else if has("configs_timings") {
        Ok(Imported::Spaces(vec![triton::parse(&value, limits)?]))
    } else if has("trials") && has("meta") {
        Ok(Imported::Record(Box::new(record::parse(&value)?)))
    } else if has("cases") && has("rounds") {
        Ok(Imported::Replay(replay_record::parse(&value)?))
    } else {
        Err(ImportError::Unknown(
            "expected a Kernel Tuner cache, T4 results, a Triton autotune file, AutoHeuristic \
             text, a training CSV, or a search record"
                .to_string(),
        ))
    }
}

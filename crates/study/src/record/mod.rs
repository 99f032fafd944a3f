//! The files of a record, as `docs/formats/record.md` describes them.

mod machine;
mod measured;
mod plans;

pub use machine::{BytesPerSecond, Ceilings, ControlEntry, FlopsPerSecond, Machine, State};
pub use measured::{
    Check, Fault, Floor, Outcome, ReplayCase, ReplayRound, Run, SearchCandidate, SearchControl,
    SearchFile, SearchRound, Selection, SpaceCounts, Trial, label,
};
pub use plans::{
    Advice, CalibrationFile, CalibrationRow, DesignFit, FamilyPlans, Fold, FrozenCandidate,
    FrozenFile, FrozenPlan, GuardRule, Prior, ProtocolFile, Tool,
};

/// `schema` of search/ and labels/ files.
pub const SEARCH: &str = "tilewright-search-v1";
/// `schema` of calibration/ files.
pub const CALIBRATION: &str = "tilewright-calibration-v1";
/// `schema` of protocol.json.
pub const PROTOCOL: &str = "tilewright-protocol-v1";
/// `schema` of frozen/ files.
pub const FROZEN: &str = "tilewright-frozen-v1";
/// `schema` of replay/ files.
pub const REPLAY: &str = "tilewright-replay-v1";
/// `schema` of machine.json.
pub const MACHINE: &str = "tilewright-machine-v1";
/// `schema` of results.json.
pub const RESULTS: &str = "tilewright-results-v1";
/// Version of the format as a whole.
pub const FORMAT: u64 = 1;

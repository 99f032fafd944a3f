//! Studies: search, freeze, replay, and the record from which everything can be derived again.
//!
//! The record's format is described in `docs/formats/record.md`.

pub mod ablate;
pub mod adhoc;
mod alternate;
mod assembly;
pub mod bench;
pub mod calibration;
pub mod canonical;
pub mod case;
pub mod error;
pub mod export;
pub mod fit;
pub mod freeze;
pub mod gpu_state;
pub mod import;
pub mod ledger;
pub mod machine;
pub mod meter;
pub mod order;
pub mod protocol;
pub mod record;
pub mod replay;
pub mod results;
pub mod run;
pub mod search;
pub mod simulate;
pub mod spec;
pub mod stats;
pub mod store;
pub mod subject;
pub mod worker;

pub use error::StudyError;

//! The files of a record as `docs/formats/record.md` describes them, and reading them.

mod load;
pub mod study;
mod types;

pub use load::{Record, named_files, safe_id, safe_path};
pub use types::*;

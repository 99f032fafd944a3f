//! Searches and ablations of one case, without a record.

use crate::bench::{Bench, Setup};
use crate::case::CaseSet;
use crate::error::StudyError;
use crate::machine;
use crate::record::{Machine, SearchFile};
use crate::search::{self, SearchTask};
use crate::spec::Study;
use crate::store::Store;
use std::path::PathBuf;

/// A folder for the time of a measurement.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What a measurement without a record works with.
///
/// # Errors
/// The folder for it can't be made, or the study names an unknown control.
pub fn with_bench<T>(
    setup: &Setup<'_>,
    study: &Study,
    work: impl FnOnce(&mut Bench<'_>, &Store) -> Result<T, StudyError>,
) -> Result<T, StudyError> {
    let dir = std::env::temp_dir().join(format!("tilewright-search-{}", std::process::id()));
    let scratch = Scratch(dir);
    let store = Store::open(&scratch.0)?;
    let machine: Machine = machine::machine(&setup.device, setup.meter, study, &setup.worker)?;
    let mut bench = Bench::new(setup, study, &machine, &store.path("journal/scratch"))?;
    work(&mut bench, &store)
}

/// Searches the only training case of a study.
///
/// # Errors
/// As [`search::search`].
pub fn search(setup: &Setup<'_>, study: &Study) -> Result<SearchFile, StudyError> {
    let case = study
        .set(CaseSet::Training)
        .next()
        .ok_or_else(|| StudyError::Order("there is no case to search".to_string()))?
        .clone();
    let basis = study.hash();
    with_bench(setup, study, |bench, store| {
        let task = SearchTask { case: &case, basis: &basis, folder: "search", also: &[] };
        search::search(bench, store, &task)
    })
}

//! Calibration: from measured candidates to coefficients.
//!
//! [`Dataset`] holds labelled candidates and one or more [`Design`]s (feature sets at a value of
//! their hyperparameter). [`fit`] is nonnegative least squares on the relative error;
//! [`select`] chooses a design by held-out regret; [`nested`] reports what that choice is worth
//! on groups that took no part in it.

mod data;
mod fit;
pub mod lstsq;
pub mod nnls;
pub mod service;

pub use data::{DataError, Dataset, Design, Sample, Split};
pub use fit::{
    Fitted, OuterFold, Pick, Strategy, fit, leave_one_out, mean, nested, picks, select, train,
};

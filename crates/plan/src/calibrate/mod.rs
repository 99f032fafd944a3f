//! Calibration: from measured candidates to coefficients.
//!
//! [`Dataset`] holds labelled candidates and one or more [`Design`]s (feature sets at a value of
//! their hyperparameter). [`fit`] is nonnegative least squares on the relative error;
//! [`select`] chooses a design by held-out regret, [`Strategy::Average`] takes the mean of all;
//! fits of terms that have prices already stay near those ([`anchor`]);
//! [`nested`] reports what either is worth on groups that took no part in it, [`frozen`] on a
//! stated hold-out. [`whole_launch`] makes designs and models of the policy of that name,
//! [`guard`] decides when a challenger replaces an incumbent, [`bands`] say how far labels and
//! shapes carry a figure, and [`identify`] says which coefficients mean nothing.
//!
//! Features that were chosen after a record was seen aren't held out on that record, whatever the
//! protocol; only fresh data can say what they are worth.

pub mod anchor;
pub mod bands;
mod code;
mod data;
mod evaluation;
mod fit;
pub mod guard;
pub mod identify;
pub mod lstsq;
pub mod nnls;
pub mod service;
pub mod whole_launch;

pub use code::code_hash;
pub use data::{DataError, Dataset, Design, STEADY, Sample, Split, weight};
pub use evaluation::{Evaluation, nested_constant, preference};
pub use fit::{
    Fitted, OuterFold, Pick, Strategy, fit, frozen, leave_one_out, mean, nested, picks, picks_by,
    predict, select, train,
};

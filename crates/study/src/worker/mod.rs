//! Worker processes. Candidates and controls run in processes of their own, so that a crash or a
//! hang costs a recorded trial and not the study. Requests and replies are JSON, one a line.

pub mod control;
pub mod message;
pub mod process;
pub mod serve;
pub mod tensors;

pub use message::{Reply, Request};
pub use process::{Failure, Launch, Process};

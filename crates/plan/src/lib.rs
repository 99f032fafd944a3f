//! Targets, candidate spaces, legality rules and cost policies.
pub mod mapping;
pub mod calibrate;

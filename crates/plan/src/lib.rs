//! Targets, candidate spaces, legality rules and cost policies.
//!
//! ```text
//! Facts + sizes ──► problem ──► space ──► legality ──► policy ──► ranking
//! ```
//!
//! [`plan`] is a pure function of (program, facts, sizes, options, target, policy): the same
//! inputs give the same ranking on every machine.

pub mod calibrate;
pub mod coupled;
pub mod guarded;
pub mod hash;
pub mod json;
pub mod legality;
pub mod mapping;
pub mod matrix;
pub mod policy;
pub mod problem;
pub mod profile;
pub mod ranking;
pub mod request;
pub mod resources;
pub mod rows;
pub mod space;
pub mod target;

pub use hash::Hash256;
pub use legality::{Rejection, Rule};
pub use policy::{Policy, PolicyError, Score};
pub use profile::Profile;
pub use ranking::{Candidate, Ranking, plan};
pub use request::{PlanError, Request, SpaceOptions};
pub use resources::{KernelResources, ResourceTable};
pub use target::Target;

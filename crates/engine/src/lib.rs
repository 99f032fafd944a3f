//! The one road from a program to a running kernel: plan, lower, compile, launch, check, time.

mod bound;
pub mod check;
pub mod compile;
pub mod error;
pub mod handle;
pub mod inputs;
pub mod launch_error;
pub mod plan;
pub mod resources;
mod scratch;
pub mod signature;
mod staging;
pub mod task;
pub mod tensor;
pub mod timing;
pub mod tolerance;

pub use bound::Bound;
pub use compile::{Compiled, Engine};
pub use error::{EngineError, RejectedPlan};
pub use handle::{Handle, LaunchOptions};
pub use launch_error::LaunchError;
pub use plan::{Plan, PlanOptions};
pub use resources::{Resources, Use};
pub use signature::Signature;
pub use task::{Planned, Task};
pub use tensor::{DeviceView, DeviceViewMut, Input, Output, TensorArg, View, ViewMut};

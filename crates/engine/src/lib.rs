//! The one road from a program to a running kernel: plan, lower, compile, launch, check, time.

pub mod handle;
pub mod launch_error;
pub mod magnitude;
pub mod signature;
pub mod tensor;
pub mod timing;
pub mod tolerance;

pub use handle::{Bound, Handle, LaunchOptions};
pub use launch_error::LaunchError;
pub use signature::Signature;
pub use tensor::{Input, Output, TensorArg, View, ViewMut};

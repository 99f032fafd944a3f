//! The libraries that Tilewright is compared with.

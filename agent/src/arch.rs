//! Assembly for what Rust cannot express: thread-local state without a call, the caller's
//! registers, and entry points without a stack frame.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;

use crate::local::Local;

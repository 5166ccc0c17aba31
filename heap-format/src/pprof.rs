//! pprof's `profile.proto`, gzipped or not.

mod read;
mod wire;
mod write;

pub(crate) use read::{looks_like, read};
pub use write::write;

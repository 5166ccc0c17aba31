//! pprof's `profile.proto`, gzipped or not.

mod read;
mod wire;
mod write;

pub(crate) use read::{looks_like, read};
pub(crate) use wire::{put_bytes, put_fixed, put_number, put_numbers};
pub use write::write;

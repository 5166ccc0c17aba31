//! The owner's words: by them the threads of a segment's process, and copies of the process,
//! agree on what may be written, and by whom.
//!
//! Here is what is shared and in which order it changes; no system call is made here, and no
//! memory is mapped. The words themselves are the agent's statics, and the segment's. So the
//! model checker runs the very code that the agent does (`owner/model`).

mod life;
mod mapping;
#[cfg(all(test, loom))]
mod model;
mod sessions;
mod setting;

pub use life::{LEAVING, Life, MAKING, Mark, NONE, OWN, WAITING};
pub use mapping::Mapping;
pub use sessions::Sessions;
pub use setting::{Met, Setting, appear, meet};

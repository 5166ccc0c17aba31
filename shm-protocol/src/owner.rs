//! State words of the segment's owner. With them, the threads of its process, and copies of the
//! process, agree on who may write to the segment.
//!
//! This module defines the shared state and the order in which it changes. It makes no system call
//! and maps no memory, so the model checker runs the same code as the agent (`owner/model`). The
//! words themselves are statics of the agent, or in the segment.

mod life;
mod mapping;
#[cfg(all(test, loom))]
mod model;
mod sessions;
mod setting;

pub use life::{LEAVING, MAKING, Mark, NONE, OWN, SegmentState, WAITING};
pub use mapping::Mapping;
pub use sessions::Sessions;
pub use setting::{EnteredSession, Setting, enter, publish};

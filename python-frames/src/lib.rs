//! Frames of a Python interpreter (CPython 3.8 to 3.15), read from its own data when a sample is
//! taken, in the thread that runs them.
//!
//! # Guarantees
//! - No call into the interpreter, no GIL, no lock, no allocation: a sample reads the state of the
//!   thread, the frames that it points to, and a few words of their code objects.
//! - The offsets of the data are not trusted: the types and names of the first frames are checked,
//!   and the [`Host`] learns whether a stack could be read.
//! - No unmapped memory is read. What the thread's own frames point to stays mapped while they hold
//!   it, and each address is probed before it is followed for the first time. A corrupt frame costs
//!   the Python part of one stack.
//! - A thread that a signal interrupted may be in the middle of changing its data. There, no result
//!   of an earlier walk is used, and none is kept for the next.
//!
//! # Callers must
//! - keep one [`Frames`] for each thread and call it in that thread only;
//! - keep the library of the [`Runtime`] loaded during a call;
//! - end with [`Frames::forget_interrupted`] after [`Frames::read_interrupted`].
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | `session` | the interpreter, the session that its code objects are recorded in, and the process |
//! | `memory` | memory that is known to be readable |
//! | `state` | states (`PyThreadState`) of the running thread |
//! | `frames` | frames of the running thread, for the stack walker |
//! | `frame` | words of a frame |
//! | `walk` | context of one walk |
//! | `cached_frame` | entry of the cache |
//! | `frame_cache` | frames of the last walk |
//! | `instruction` | position of a frame within its code object |
//! | `quick_check` | first check that a cached frame is unchanged |
//! | `compare` | comparison of words in pairs |
//! | `function` | version of a function, which is cheaper to check than a tag |
//! | `tag` | version tag, which tells a code object from a later one at the same address |
//! | `objects` | strings and code objects |
//! | `codes` | writing code objects to the segment; their numbers there |

// Decision 46: Python's frames are read from the interpreter's data.
#![no_std]

#[cfg(test)]
extern crate std;

mod cached_frame;
mod codes;
mod compare;
mod frame;
mod frame_cache;
mod frames;
mod function;
mod instruction;
mod memory;
mod objects;
mod quick_check;
mod session;
mod state;
mod tag;
mod walk;

use cpython::layout;

pub use frames::Frames;
pub use session::{Code, Host, Runtime, Session};

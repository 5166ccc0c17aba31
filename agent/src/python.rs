//! The frames of a Python interpreter (CPython 3.8 to 3.15), read from its own data when a sample
//! is taken.
//!
//! # Promises
//! - No call into the interpreter, no GIL, no lock, no allocation: a sample reads the thread's
//!   state, the frames that it leads to, and a few words of their code objects.
//! - The location of the data is taken from the interpreter itself (`_Py_DebugOffsets`, from 3.13
//!   on) or from its version, and is not trusted: the first frames are checked against the types
//!   and names that they must have, and an interpreter that differs is left alone.
//! - No memory is read that may not be there. What the thread's own frames lead to is held by them,
//!   and stays mapped; each address is probed when it is first met, and never followed without
//!   having been probed. A wrong frame costs the Python part of a stack.
//! - Where a signal has interrupted the thread, its data may be in the middle of a change: nothing
//!   is trusted that was found in an earlier walk, and what is found is forgotten after it.
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! //! | `runtime` | the interpreter of this process: found at start-up, checked when it runs |
//! | `memory` | which memory may be read |
//! | `state` | the state of the running thread |
//! | `frames` | its frames, for the walker |
//! | `frame` | what is read of a frame, and what of that is kept |
//! | `memo` | the frames of its last walk |
//! | `place` | where in its code object a frame is |
//! | `plain` | the minimum check that one of them is what it was |
//! | `pair` | words that are compared two at a time |
//! | `function` | a cheaper check that a code object is what it was |
//! | `mark` | what distinguishes a code object from another one at its address |
//! | `objects` | strings, code objects |
//! | `options` | its command line, for what that says of its environment |
//! | `codes` | code objects in the segment, each once |

// Decision 46: Python's frames are read from the interpreter's data.
mod codes;
mod frame;
mod frames;
mod function;
mod mark;
mod memo;
mod memory;
mod objects;
mod options;
mod pair;
mod place;
mod plain;
mod runtime;
mod state;

use cpython::layout;

pub use frames::Frames;
pub use options::CommandLine;
pub use runtime::{leave, meet, publish, start};

/// Whether this process runs an interpreter whose frames can be read.
#[inline]
pub fn is_known() -> bool {
    runtime::known().is_some()
}

/// Whether its frames are found without the native ones that run them.
#[inline]
pub fn is_found_by_stack() -> bool {
    runtime::known().is_some_and(|runtime| runtime.layout.style != layout::Style::Objects)
}

//! The agent's readers of an interpreter's memory, as they are, and what they use of the agent.

pub use cpython::layout;

#[path = "../../agent/src/python/cached_frame.rs"]
mod cached_frame;
#[path = "../../agent/src/python/codes.rs"]
mod codes;
#[path = "../../agent/src/python/compare.rs"]
mod compare;
#[path = "../../agent/src/python/frame.rs"]
mod frame;
#[path = "../../agent/src/python/frame_cache.rs"]
mod frame_cache;
#[path = "../../agent/src/python/frames.rs"]
pub mod frames;
#[path = "../../agent/src/python/function.rs"]
mod function;
#[path = "../../agent/src/python/instruction.rs"]
mod instruction;
#[path = "../../agent/src/python/memory.rs"]
mod memory;
#[path = "../../agent/src/python/objects.rs"]
mod objects;
#[path = "../../agent/src/python/quick_check.rs"]
mod quick_check;
#[path = "../../agent/src/python/state.rs"]
mod state;
#[path = "../../agent/src/python/tag.rs"]
mod tag;
#[path = "../../agent/src/python/walk.rs"]
mod walk;

/// The interpreter of an input.
pub mod runtime {
    use super::layout::Layout;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Addresses where the machine code of a function begins and ends.
    #[derive(Clone, Copy)]
    pub struct Code {
        /// First address.
        pub start: u64,
        /// One past the last address.
        pub end: u64,
    }

    /// Interpreter, with the fields of the agent's.
    #[derive(Clone, Copy)]
    pub struct Runtime {
        /// Address of `_PyRuntime`.
        pub at: u64,
        /// Offsets of its data.
        pub layout: Layout,
        /// Evaluation loop.
        pub evaluation: Code,
        /// True if its library may be unloaded.
        pub may_unload: bool,
    }

    static ALL: OnceLock<Vec<Runtime>> = OnceLock::new();
    static CHOSEN: AtomicUsize = AtomicUsize::new(0);

    /// Makes all that there are, once, and chooses one.
    pub fn choose(number: usize, make: impl FnOnce() -> Vec<Runtime>) {
        let all = ALL.get_or_init(make);
        CHOSEN.store(number % all.len(), Ordering::Relaxed);
    }

    /// The one that was chosen.
    pub fn known() -> Option<&'static Runtime> {
        ALL.get()?.get(CHOSEN.load(Ordering::Relaxed))
    }

    pub(super) fn record_success() {}

    pub(super) fn record_failure() {}
}

//! The agent's readers of an interpreter's memory, as they are, and what they use of the agent.

pub use cpython::layout;

#[path = "../../agent/src/python/codes.rs"]
mod codes;
#[path = "../../agent/src/python/frame.rs"]
mod frame;
#[path = "../../agent/src/python/frames.rs"]
pub mod frames;
#[path = "../../agent/src/python/function.rs"]
mod function;
#[path = "../../agent/src/python/mark.rs"]
mod mark;
#[path = "../../agent/src/python/memo.rs"]
mod memo;
#[path = "../../agent/src/python/memory.rs"]
mod memory;
#[path = "../../agent/src/python/objects.rs"]
mod objects;
#[path = "../../agent/src/python/pair.rs"]
mod pair;
#[path = "../../agent/src/python/place.rs"]
mod place;
#[path = "../../agent/src/python/plain.rs"]
mod plain;
#[path = "../../agent/src/python/state.rs"]
mod state;

/// The interpreter of an input.
pub mod runtime {
    use super::layout::Layout;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// As the agent has it.
    #[derive(Clone, Copy)]
    pub struct Runtime {
        /// Address of `_PyRuntime`.
        pub at: u64,
        /// Where its data are.
        pub layout: Layout,
        /// Where its evaluation loop is.
        pub loop_at: (u64, u64),
        /// Whether its library may be unloaded.
        pub may_go: bool,
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

    pub(super) fn confirm() {}

    pub(super) fn doubt() {}
}

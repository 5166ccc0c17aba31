//! Tables of modules, unwind rules, and stacks seen. Mapped when the first session begins: a
//! process that is never profiled does not pay for them, not even in address space.

use super::Slot;
use crate::own;
use core::mem::size_of;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};
use unwind::cache::RuleCache;
use unwind::seen::SeenStacks;

/// Maximum number of modules that are registered. Further ones are looked up each time.
pub const CAPACITY: usize = 1024;

/// All tables. All zeros is empty.
pub struct Tables {
    /// Rules of all modules, by return address.
    pub rules: RuleCache,
    /// Modules that have been on a stack.
    pub slots: [Slot; CAPACITY],
    /// Leaf nodes of the stacks seen so far.
    pub seen: SeenStacks,
}

/// Null before the first session.
static TABLES: AtomicPtr<Tables> = AtomicPtr::new(null_mut());

/// Returns the tables, or `None` before [`map`].
#[inline]
pub fn tables() -> Option<&'static Tables> {
    // SAFETY: null, or a mapping that is never unmapped.
    unsafe { TABLES.load(Ordering::Acquire).as_ref() }
}

/// Maps the tables unless they are mapped. Returns false if that fails, with the reason in `errno`.
pub fn map() -> bool {
    if tables().is_some() {
        return true;
    }
    let bytes = size_of::<Tables>();
    let mapping = own::map(bytes);
    if mapping.is_null() {
        return false;
    }
    let none = null_mut();
    let previous =
        TABLES.compare_exchange(none, mapping.cast(), Ordering::AcqRel, Ordering::Relaxed);
    if previous.is_err() {
        // SAFETY: just mapped, and no other thread has its address.
        unsafe { own::unmap(mapping, bytes) };
    }
    true
}

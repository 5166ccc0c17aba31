//! Tables of modules, their rules, and the stacks seen. Mapped when the first session begins: a process
//! that is never profiled does not pay for it, not even in address space.

use super::Slot;
use crate::own;
use core::mem::size_of;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};
use unwind::cache::RuleCache;
use unwind::seen::Seen;

/// Maximum number of modules that are kept apart. Beyond, modules are looked up each time.
pub const CAPACITY: usize = 1024;

/// Zeroed memory is an empty one.
pub struct Tables {
    /// Rules of all modules, by return address.
    pub rules: RuleCache,
    /// Modules that have been on a stack.
    pub slots: [Slot; CAPACITY],
    /// Leaves of the stacks that were seen.
    pub seen: Seen,
}

/// Null before the first session.
static TABLES: AtomicPtr<Tables> = AtomicPtr::new(null_mut());

/// The tables; `None` before [`map`] has made them.
#[inline]
pub fn tables() -> Option<&'static Tables> {
    // SAFETY: null, or the mapping that `map` made and nobody unmaps.
    unsafe { TABLES.load(Ordering::Acquire).as_ref() }
}

/// Makes them if they are not there yet. Whether they are; if not, `errno` says why.
pub fn map() -> bool {
    if tables().is_some() {
        return true;
    }
    let bytes = size_of::<Tables>();
    let made = own::map(bytes);
    if made.is_null() {
        return false;
    }
    let none = null_mut();
    let first = TABLES.compare_exchange(none, made.cast(), Ordering::AcqRel, Ordering::Relaxed);
    if first.is_err() {
        // SAFETY: the mapping just made, which nobody else knows.
        unsafe { own::unmap(made, bytes) };
    }
    true
}

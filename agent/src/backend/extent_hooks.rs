//! Extent hooks of jemalloc's arenas.
//!
//! A program may give an arena hooks of its own (`arenas.create`, `arena.<i>.extent_hooks`), so
//! that its memory is a file, is shared with another process, or consists of huge pages. Such
//! memory must be neither replaced by new pages nor moved, since only the hooks know what it is.

use super::extent_map;
use super::jemalloc::{self, ARENAS, DEFAULT_HOOKS};
use core::ffi::c_void;
use core::ptr::{self, null_mut};
use core::sync::atomic::{AtomicPtr, Ordering};

/// Head of jemalloc's `ehooks_t`. Each arena has one.
///
/// Source: jemalloc 5.3.1, `ehooks.h`.
#[repr(C)]
struct Hooks {
    _arena: u32,
    table: AtomicPtr<c_void>,
}

/// Hooks of the agent's own arena.
static AGENT_HOOKS: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Records the hooks of the agent's own arena.
pub fn register(table: *const jemalloc::extent_hooks_t) {
    AGENT_HOOKS.store(table.cast_mut().cast(), Ordering::Relaxed);
}

/// Returns true if hooks were set by the program.
///
/// # Safety
/// `hooks` is an arena's `ehooks_t`.
pub unsafe fn are_custom(hooks: *const c_void) -> bool {
    // SAFETY: an `ehooks_t`, which exists as long as its arena.
    let table = unsafe { &(*hooks.cast::<Hooks>()).table }.load(Ordering::Acquire);
    !ptr::addr_eq(table, &raw const DEFAULT_HOOKS) && table != AGENT_HOOKS.load(Ordering::Relaxed)
}

/// Returns true if an arena has hooks that the program has set.
///
/// # Safety
/// `arena` exists.
pub unsafe fn has_custom_hooks(arena: *mut jemalloc::Arena) -> bool {
    // SAFETY: the arena exists.
    unsafe { are_custom(jemalloc::hooks_of(arena)) }
}

/// Returns true if an object lies in memory that the program's own hooks have allocated.
///
/// # Safety
/// `p` is the address of a live object that belongs to the caller.
pub unsafe fn has_custom_extent(p: *const u8) -> bool {
    // SAFETY: no other thread frees the extent of the caller's live object, and its arena exists.
    unsafe {
        let Some(extent) = extent_map::descriptor(p) else {
            return false;
        };
        let arena = ARENAS.get(extent_map::origin(extent).arena as usize);
        let arena = arena.map_or(null_mut(), |arena| arena.load(Ordering::Acquire));
        !arena.is_null() && has_custom_hooks(arena)
    }
}

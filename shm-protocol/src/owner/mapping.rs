//! Address at which the whole segment is mapped.

// Decision 54: a table takes memory as stacks are added.
use crate::sync::{AtomicPtr, Ordering};
use core::ptr::null_mut;

/// Address of the mapping of the whole segment; null if it is not mapped yet.
pub struct Mapping(AtomicPtr<u8>);

impl Mapping {
    /// Creates the word; the segment is not mapped.
    #[cfg(not(loom))]
    #[must_use]
    #[expect(clippy::new_without_default, reason = "for a static")]
    pub const fn new() -> Self {
        Self(AtomicPtr::new(null_mut()))
    }

    #[cfg(loom)]
    pub(super) fn new() -> Self {
        Self(AtomicPtr::new(null_mut()))
    }

    /// Returns the address, or `None` if not mapped.
    #[inline]
    #[must_use]
    pub fn get(&self) -> Option<*mut u8> {
        Some(self.0.load(Ordering::Acquire)).filter(|base| !base.is_null())
    }

    /// Offers a mapping that the caller has made. Threads that notice a session at the same time
    /// all make one, so that none has to wait for another that may be preempted. Only the first
    /// mapping is kept.
    ///
    /// # Errors
    /// The address of the mapping that is kept.
    pub fn offer(&self, made: *mut u8) -> Result<(), *mut u8> {
        self.0
            .compare_exchange(null_mut(), made, Ordering::AcqRel, Ordering::Acquire)
            .map(|_| ())
    }

    /// Sets the address. Must be called only by the thread that creates the segment.
    pub fn set(&self, base: *mut u8) {
        self.0.store(base, Ordering::Release);
    }

    /// Clears the address and returns it. Must be called only by the thread that leaves the
    /// segment.
    #[inline]
    pub fn take(&self) -> Option<*mut u8> {
        let base = self.get()?;
        self.0.store(null_mut(), Ordering::Release);
        Some(base)
    }
}

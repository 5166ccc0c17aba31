//! Where the whole segment is mapped.

// Decision 54: a table takes memory as stacks are added.
use crate::sync::{AtomicPtr, Ordering};
use core::ptr::null_mut;

/// Address of the whole segment; null: not mapped yet.
pub struct Mapping(AtomicPtr<u8>);

impl Mapping {
    /// Not mapped.
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

    /// The address.
    #[inline]
    #[must_use]
    pub fn get(&self) -> Option<*mut u8> {
        Some(self.0.load(Ordering::Acquire)).filter(|base| !base.is_null())
    }

    /// Offers a mapping that the caller has made. Threads that notice a session at the same time
    /// all make one, so none has to wait for another that may be preempted; only one mapping stays.
    /// `Err`: another one stays, and no other thread knows the caller's.
    ///
    /// # Errors
    /// The address that stays.
    pub fn offer(&self, made: *mut u8) -> Result<(), *mut u8> {
        self.0
            .compare_exchange(null_mut(), made, Ordering::AcqRel, Ordering::Acquire)
            .map(|_| ())
    }

    /// Sets the address; called by the only thread that may.
    pub fn set(&self, base: *mut u8) {
        self.0.store(base, Ordering::Release);
    }

    /// Forgets the address and returns it; called by the only thread that may.
    #[inline]
    pub fn take(&self) -> Option<*mut u8> {
        let base = self.get()?;
        self.0.store(null_mut(), Ordering::Release);
        Some(base)
    }
}

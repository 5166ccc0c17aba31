//! Coordinates threads that read the memory of modules with those about to unload one.
//!
//! Reading a module's unwind tables is sound while the module is mapped. A misread return
//! address may lie in any module, including one that another thread unloads. So readers enter
//! and leave; a thread that unloads announces it, waits until no reader is inside, unloads, and
//! withdraws the announcement. A reader that arrives in the meantime is refused.
//! Readers never wait, and nothing here blocks.
//!
//! Entering and leaving cost two atomic additions and a fence.

// Decision 19: `dlclose` waits for readers.
#[cfg(not(loom))]
use core::sync::atomic::{AtomicU32, Ordering, fence};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, Ordering, fence};

/// See above. All zero: no reader inside, nothing announced.
pub struct Readers {
    inside: AtomicU32,
    closing: AtomicU32,
}

/// A reader inside; it leaves with this value.
pub struct Reading<'a>(&'a Readers);

impl Readers {
    /// No reader inside, nothing announced.
    #[cfg(not(loom))]
    #[must_use]
    #[expect(clippy::new_without_default, reason = "for a static")]
    pub const fn new() -> Self {
        Self {
            inside: AtomicU32::new(0),
            closing: AtomicU32::new(0),
        }
    }

    #[cfg(loom)]
    fn new() -> Self {
        Self {
            inside: AtomicU32::new(0),
            closing: AtomicU32::new(0),
        }
    }

    /// Comes in. Until the value is dropped no module is unloaded by who announces it;
    /// `None`: one is being unloaded.
    #[must_use]
    pub fn enter(&self) -> Option<Reading<'_>> {
        if self.closing.load(Ordering::Relaxed) != 0 {
            // So that who waits is not kept waiting by those that are refused.
            return None;
        }
        self.inside.fetch_add(1, Ordering::Relaxed);
        let reading = Reading(self);
        // Either we see the announcement, or who announced sees us.
        fence(Ordering::SeqCst);
        (self.closing.load(Ordering::Acquire) == 0).then_some(reading)
    }

    /// Announces that something is going to be unloaded: it may be once no reader [`is_inside`].
    ///
    /// [`is_inside`]: Self::is_inside
    pub fn announce(&self) {
        self.closing.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Whether readers are inside that came before the announcement, or are about to see it.
    #[must_use]
    pub fn is_inside(&self) -> bool {
        self.inside.load(Ordering::Acquire) > 0
    }

    /// Ends an announcement: what was unloaded is gone, and known to be gone.
    pub fn end(&self) {
        // In a forked child the announcement may have been forgotten meanwhile.
        let less = |count: u32| count.checked_sub(1);
        let _ = self
            .closing
            .fetch_update(Ordering::Release, Ordering::Relaxed, less);
    }

    /// In a forked child: only the calling thread is left, which is inside or is not.
    pub fn forget_others(&self, is_inside: bool) {
        for (count, now) in [(&self.inside, u32::from(is_inside)), (&self.closing, 0)] {
            // Only where it is needed: each page that a child writes to is copied for it.
            if count.load(Ordering::Relaxed) != now {
                count.store(now, Ordering::Release);
            }
        }
    }

    /// The number of readers inside, to wait for a change of (`futex`).
    #[cfg(not(loom))]
    #[must_use]
    pub fn inside(&self) -> &AtomicU32 {
        &self.inside
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    struct Shared {
        readers: Readers,
        /// Whether the module is mapped. Loom notices who reads it while it is written.
        mapped: UnsafeCell<bool>,
    }

    // SAFETY: what the model is to prove.
    unsafe impl Sync for Shared {}

    fn shared() -> Arc<Shared> {
        Arc::new(Shared {
            readers: Readers::new(),
            mapped: UnsafeCell::new(true),
        })
    }

    fn map(shared: &Shared, mapped: bool) {
        // SAFETY: loom reports every access that is not ordered with this one.
        shared.mapped.with_mut(|at| unsafe { *at = mapped });
    }

    /// Reads if it may: within, what is mapped stays so.
    fn read(shared: &Shared) -> Option<bool> {
        let _reading = shared.readers.enter()?;
        // SAFETY: as above.
        let seen = || shared.mapped.with(|at| unsafe { *at });
        let first = seen();
        assert_eq!(first, seen(), "unloaded while it was read");
        Some(first)
    }

    fn unload(shared: &Shared) {
        shared.readers.announce();
        while shared.readers.is_inside() {
            thread::yield_now();
        }
        map(shared, false);
        shared.readers.end();
    }

    #[test]
    fn nothing_is_unloaded_while_it_is_read() {
        loom::model(|| {
            let shared = shared();
            let other = Arc::clone(&shared);
            let reader = thread::spawn(move || (read(&other), read(&other)));
            unload(&shared);
            reader.join().unwrap();
            assert_eq!(read(&shared), Some(false), "later readers are let in");
        });
    }

    #[test]
    fn two_may_unload_at_once() {
        loom::model(|| {
            let shared = shared();
            let other = Arc::clone(&shared);
            let closer = thread::spawn(move || {
                // As the loader does under its lock: here, one after the other.
                other.readers.announce();
                while other.readers.is_inside() {
                    thread::yield_now();
                }
                other.readers.end();
            });
            unload(&shared);
            closer.join().unwrap();
            assert_eq!(read(&shared), Some(false));
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn readers_are_refused_while_something_is_unloaded() {
        let readers = Readers::new();
        let reading = readers.enter();
        assert!(reading.is_some() && readers.is_inside());
        readers.announce();
        assert!(readers.enter().is_none());
        drop(reading);
        assert!(!readers.is_inside());
        readers.end();
        assert!(readers.enter().is_some());
    }

    #[test]
    fn a_forked_child_knows_nothing_of_the_others() {
        let readers = Readers::new();
        core::mem::forget(readers.enter());
        readers.announce();
        readers.forget_others(false);
        assert!(readers.enter().is_some() && !readers.is_inside());
        readers.end();
        assert!(readers.enter().is_some(), "an end without a beginning");
    }

    #[test]
    fn a_reader_that_is_forked_leaves_in_the_child_as_well() {
        let readers = Readers::new();
        core::mem::forget(readers.enter());
        let reading = readers.enter();
        readers.forget_others(true);
        assert!(readers.is_inside());
        drop(reading);
        assert!(!readers.is_inside());
    }
}

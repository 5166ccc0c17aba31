//! Coordinates threads that read modules' memory with threads that unload modules.
//!
//! Unwind tables may be read only while their module is mapped. A misread return address may lie in
//! any module, including one that another thread is unloading. So readers register while they read.
//! A thread that unloads a module announces it, waits until no reader is registered, unloads, and
//! ends the announcement. A reader that arrives in between is refused. Readers never wait. Waiting
//! for them is up to the unloading thread: no function here blocks.
//!
//! A read costs two atomic additions and a fence.

// Decision 19: `dlclose` waits for readers.
#[cfg(not(loom))]
use core::sync::atomic::{AtomicU32, Ordering, fence};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, Ordering, fence};

/// Counts of registered readers and of announced unloads. Zeroed: none.
pub struct Readers {
    count: AtomicU32,
    announcements: AtomicU32,
}

/// Registration of a reader, which ends when this is dropped.
pub struct Reading<'a>(&'a Readers);

impl Readers {
    /// Creates counts of zero.
    #[cfg(not(loom))]
    #[must_use]
    #[expect(clippy::new_without_default, reason = "for a static")]
    pub const fn new() -> Self {
        Self {
            count: AtomicU32::new(0),
            announcements: AtomicU32::new(0),
        }
    }

    #[cfg(loom)]
    fn new() -> Self {
        Self {
            count: AtomicU32::new(0),
            announcements: AtomicU32::new(0),
        }
    }

    /// Registers a reader. While the returned value lives, threads that [`announce`] an unload do
    /// not unload. Returns `None` if a module is being unloaded.
    ///
    /// [`announce`]: Self::announce
    #[must_use]
    pub fn enter(&self) -> Option<Reading<'_>> {
        if self.announcements.load(Ordering::Relaxed) != 0 {
            // Refused readers must not prolong the wait of the unloading thread.
            return None;
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        let reading = Reading(self);
        // Either this thread sees the announcement, or the announcing thread sees this reader.
        fence(Ordering::SeqCst);
        (self.announcements.load(Ordering::Acquire) == 0).then_some(reading)
    }

    /// Announces that a module will be unloaded, which may happen once [`has_readers`] returns
    /// false.
    ///
    /// [`has_readers`]: Self::has_readers
    pub fn announce(&self) {
        self.announcements.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Returns true if a reader is registered, or is about to be refused.
    #[must_use]
    pub fn has_readers(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Ends an announcement, after the module was unloaded and its entries were removed from all
    /// caches.
    pub fn end(&self) {
        // In a forked child, `reset_after_fork` may have cleared the announcement.
        let less = |count: u32| count.checked_sub(1);
        let _ = self
            .announcements
            .fetch_update(Ordering::Release, Ordering::Relaxed, less);
    }

    /// Resets the counts in a forked child, where only the calling thread is left. `is_reader` is
    /// true if that thread is registered.
    pub fn reset_after_fork(&self, is_reader: bool) {
        for (count, now) in [
            (&self.count, u32::from(is_reader)),
            (&self.announcements, 0),
        ] {
            // Writes only if needed, since each page that a child writes to is copied.
            if count.load(Ordering::Relaxed) != now {
                count.store(now, Ordering::Release);
            }
        }
    }

    /// Returns the number of registered readers, as a word to wait on (`futex`).
    #[cfg(not(loom))]
    #[must_use]
    pub fn count(&self) -> &AtomicU32 {
        &self.count
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::Release);
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
        /// True if the module is mapped. Loom reports reads that race with a write.
        mapped: UnsafeCell<bool>,
    }

    // SAFETY: the model proves that no reader is registered now.
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

    /// Reads if the reader is not refused. The module must stay mapped during the read.
    fn read(shared: &Shared) -> Option<bool> {
        let _reading = shared.readers.enter()?;
        // SAFETY: loom reports every access that is not ordered with this one.
        let seen = || shared.mapped.with(|at| unsafe { *at });
        let first = seen();
        assert_eq!(first, seen(), "unloaded while it was read");
        Some(first)
    }

    fn unload(shared: &Shared) {
        shared.readers.announce();
        while shared.readers.has_readers() {
            thread::yield_now();
        }
        map(shared, false);
        shared.readers.end();
    }

    #[test]
    fn nothing_is_unloaded_during_a_read() {
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
    fn two_threads_may_unload_at_once() {
        loom::model(|| {
            let shared = shared();
            let other = Arc::clone(&shared);
            let closer = thread::spawn(move || {
                // The loader's lock serialises unloading; here, the two threads take turns.
                other.readers.announce();
                while other.readers.has_readers() {
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
    fn readers_are_refused_during_an_unload() {
        let readers = Readers::new();
        let reading = readers.enter();
        assert!(reading.is_some() && readers.has_readers());
        readers.announce();
        assert!(readers.enter().is_none());
        drop(reading);
        assert!(!readers.has_readers());
        readers.end();
        assert!(readers.enter().is_some());
    }

    #[test]
    fn a_forked_child_ignores_readers_of_the_parent() {
        let readers = Readers::new();
        core::mem::forget(readers.enter());
        readers.announce();
        readers.reset_after_fork(false);
        assert!(readers.enter().is_some() && !readers.has_readers());
        readers.end();
        assert!(readers.enter().is_some(), "an end without a beginning");
    }

    #[test]
    fn a_reader_can_leave_in_a_forked_child() {
        let readers = Readers::new();
        core::mem::forget(readers.enter());
        let reading = readers.enter();
        readers.reset_after_fork(true);
        assert!(readers.has_readers());
        drop(reading);
        assert!(!readers.has_readers());
    }
}

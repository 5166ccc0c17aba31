//! Ownership of the segment in a process's view, and how a copy of the process leaves its parent's
//! segment.
//!
//! ```text
//!          leave            claim_making           own
//! OWN ──► LEAVING ──► WAITING ─────────► MAKING ─────► OWN
//!               └───────────┴──────► NONE ◄─┘
//! ```

use crate::sync::{AtomicU8, AtomicU32, Ordering, fence};

/// No segment, now or later.
pub const NONE: u8 = 0;
/// Segment of this process; or, in a copy that has not noticed yet, of its parent.
pub const OWN: u8 = 1;
/// No segment yet, in a forked child. A private page counts what the child allocates.
pub const WAITING: u8 = 2;
/// No segment yet, in a forked child or a starting process, while one of its threads makes it.
pub const MAKING: u8 = 3;
/// Segment of the parent, while a thread makes the process leave it.
pub const LEAVING: u8 = 4;

/// Owner of the segment in view: one of the constants here.
pub struct Life(pub(super) AtomicU8);

impl Life {
    /// Creates the state [`NONE`].
    #[cfg(not(loom))]
    #[must_use]
    #[expect(clippy::new_without_default, reason = "for a static")]
    pub const fn new() -> Self {
        Self(AtomicU8::new(NONE))
    }

    /// Returns the state.
    #[inline(always)]
    #[must_use]
    pub fn get(&self) -> u8 {
        self.0.load(Ordering::Acquire)
    }

    /// Returns the state, for a thread that has read an epoch: at least as recent as the epoch.
    #[must_use]
    pub fn since_epoch(&self) -> u8 {
        fence(Ordering::Acquire);
        self.get()
    }

    /// Returns true if this process has a segment of its own. Also true in a copy that has not
    /// noticed yet.
    #[inline(always)]
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.get() == OWN
    }

    /// Returns true if this process is a copy that has yet to leave its parent's segment. Costs
    /// three loads. Copies of a waiting child share nothing with it.
    #[inline]
    #[must_use]
    pub fn is_copy<'a>(&self, mark: impl FnOnce() -> Option<&'a Mark>) -> bool {
        match self.get() {
            OWN => mark().is_some_and(|mark| !mark.is_ours()),
            state => state == LEAVING,
        }
    }

    /// Elects the thread that makes a copy, which `fork`'s handlers did not see, leave its parent's
    /// segment. Returns true for that thread.
    pub fn claim_leaving(&self, mark: Option<&Mark>) -> bool {
        // A signal handler that interrupts `leave` itself is not elected.
        self.is_own() && mark.is_some_and(Mark::claim)
    }

    /// Makes a copy leave its parent's segment. Must be called only by the elected thread. Returns
    /// true if the copy waits now.
    ///
    /// `remember` saves the parent's session. `forget` drops all knowledge of its sessions. `cover`
    /// maps private memory over the mapped part of the segment, and returns true on success. `wait`
    /// then records there that the copy waits.
    #[inline(always)]
    pub fn leave(
        &self,
        remember: impl FnOnce(),
        forget: impl FnOnce(),
        cover: impl FnOnce() -> bool,
        wait: impl FnOnce(),
    ) -> bool {
        let was = self.get();
        if was == OWN {
            self.0.store(LEAVING, Ordering::Relaxed);
            remember();
        }
        let left = match was {
            NONE => return false,
            // The view is private, so it was copied with the rest.
            WAITING => true,
            // If a thread of the waiting parent was making a segment, that may already be in view.
            // State that a thread of another copy had started to save is void.
            state => {
                forget();
                cover() && state != LEAVING
            }
        };
        if left {
            wait();
        }
        // Last, since other threads of the copy wait for it.
        let now = if left { WAITING } else { NONE };
        self.0.store(now, Ordering::Release);
        left
    }

    /// Starts making the first segment. Must be called only by the initial thread, at start-up.
    pub fn make(&self) {
        self.0.store(MAKING, Ordering::Release);
    }

    /// Elects the thread of a waiting child that makes its segment. Returns true for that thread.
    pub fn claim_making(&self) -> bool {
        let taken = self
            .0
            .compare_exchange(WAITING, MAKING, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok()
    }

    /// Records that the segment in view is this process's own from now on.
    pub fn own(&self, mark: Option<&Mark>) {
        if let Some(mark) = mark {
            mark.sign();
        }
        self.0.store(OWN, Ordering::Release);
    }

    /// Records that there will be no segment.
    pub fn end(&self) {
        self.0.store(NONE, Ordering::Release);
    }
}

/// Word that distinguishes a process from its copies. It is in a page that the kernel clears in
/// every copy, however it was made.
#[repr(transparent)]
pub struct Mark(pub(super) AtomicU32);

/// Value in a new copy.
const WIPED: u32 = 0;
const OURS: u32 = 1;
const TAKEN: u32 = 2;

impl Mark {
    /// Returns true if this process is the one that signed the word.
    #[inline(always)]
    fn is_ours(&self) -> bool {
        // Acquire: suppose that a thread read the state before another thread made the copy leave
        // its parent's segment, and the mark after. It must not use what it knew of that segment.
        self.0.load(Ordering::Acquire) == OURS
    }

    fn sign(&self) {
        self.0.store(OURS, Ordering::Release);
    }

    fn claim(&self) -> bool {
        let taken = self
            .0
            .compare_exchange(WIPED, TAKEN, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok()
    }
}

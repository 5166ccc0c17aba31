//! Whose segment is in a process's view, and how a copy of the process leaves its parent's.
//!
//! ```text
//!          leave            claim_making           own
//! OWN ──► LEAVING ──► WAITING ─────────► MAKING ─────► OWN
//!               └───────────┴──────► NONE ◄─┘
//! ```

use crate::sync::{AtomicU8, AtomicU32, Ordering, fence};

/// No segment: there is none, and there will be none.
pub const NONE: u8 = 0;
/// This process's; or, in a copy that has not noticed yet, its parent's.
pub const OWN: u8 = 1;
/// A forked child that has no segment yet: a private page counts what the child allocates.
pub const WAITING: u8 = 2;
/// As [`WAITING`], or a starting process, while one of its threads makes the segment.
pub const MAKING: u8 = 3;
/// The parent's segment, while a thread takes the process out of it.
pub const LEAVING: u8 = 4;

/// Whose segment is in view: one of the constants here.
pub struct Life(pub(super) AtomicU8);

impl Life {
    /// [`NONE`].
    #[cfg(not(loom))]
    #[must_use]
    #[expect(clippy::new_without_default, reason = "for a static")]
    pub const fn new() -> Self {
        Self(AtomicU8::new(NONE))
    }

    /// The state.
    #[inline(always)]
    #[must_use]
    pub fn get(&self) -> u8 {
        self.0.load(Ordering::Acquire)
    }

    /// The state, for a thread that comes because of an epoch: at least as recent as the epoch.
    #[must_use]
    pub fn since_epoch(&self) -> u8 {
        fence(Ordering::Acquire);
        self.get()
    }

    /// Whether there is a segment of this process's own. Also true in a copy that has not noticed
    /// yet.
    #[inline(always)]
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.get() == OWN
    }

    /// Whether this process is a copy that has yet to leave its parent's segment. Three loads.
    /// Copies of a waiting child share nothing with it.
    #[inline]
    #[must_use]
    pub fn is_copy<'a>(&self, mark: impl FnOnce() -> Option<&'a Mark>) -> bool {
        match self.get() {
            OWN => mark().is_some_and(|mark| !mark.is_ours()),
            state => state == LEAVING,
        }
    }

    /// Makes one thread take a copy that `fork`'s handlers did not see out of its parent's segment.
    /// Returns whether the calling thread is that one.
    pub fn claim_leaving(&self, mark: Option<&Mark>) -> bool {
        // Not in a signal handler that interrupts `leave` itself.
        self.is_own() && mark.is_some_and(Mark::claim)
    }

    /// Takes a copy out of its parent's segment; called by the only thread that may. `remember`
    /// saves the parent's session; `forget` drops all knowledge of its sessions; `cover` puts
    /// private memory over the mapped part of the segment, and returns whether it succeeded; `wait`
    /// then records there that the copy waits. Returns whether the copy waits now.
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
            // Its view is private, and copied with the rest.
            WAITING => true,
            // If a thread of the waiting parent was making a segment, that may be in view
            // already. Whatever a thread of another copy had begun to save is void.
            state => {
                forget();
                cover() && state != LEAVING
            }
        };
        if left {
            wait();
        }
        // Last: other threads of the copy keep away until then.
        let now = if left { WAITING } else { NONE };
        self.0.store(now, Ordering::Release);
        left
    }

    /// Begins making the first segment; called at start-up by the only thread that may.
    pub fn make(&self) {
        self.0.store(MAKING, Ordering::Release);
    }

    /// Makes one thread of a waiting child make its segment. Returns whether the calling thread is
    /// that one.
    pub fn claim_making(&self) -> bool {
        let taken = self
            .0
            .compare_exchange(WAITING, MAKING, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok()
    }

    /// The segment in view is this process's from here on.
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

/// The word that distinguishes a process from its copies: it lies in a page that the kernel clears
/// in every copy, however it was made.
#[repr(transparent)]
pub struct Mark(pub(super) AtomicU32);

/// Values of the word.
const WIPED: u32 = 0;
const OURS: u32 = 1;
const TAKEN: u32 = 2;

impl Mark {
    /// Whether this process is the one that signed.
    #[inline(always)]
    fn is_ours(&self) -> bool {
        // Acquire: a thread that read the state before another thread took the copy out of its
        // parent's segment, and the mark after, must not use what it knew of that segment.
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

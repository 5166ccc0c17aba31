//! State of the segment that a process sees: whose it is, and how a copy of the process leaves its
//! parent's segment.
//!
//! ```text
//!          leave            claim_making           own
//! OWN ──► LEAVING ──► WAITING ─────────► MAKING ─────► OWN
//!               └───────────┴──────► NONE ◄─┘
//! ```

use crate::sync::{AtomicU8, AtomicU32, Ordering, fence};

/// No segment, and there will be none.
pub const NONE: u8 = 0;
/// Segment of this process. A copy inherits this state, and keeps it until it notices that the
/// segment is its parent's.
pub const OWN: u8 = 1;
/// No segment yet, in a forked child. Until it creates one, it counts its allocations in a private
/// page.
pub const WAITING: u8 = 2;
/// No segment yet, in a forked child or a starting process, while one of its threads creates it.
pub const MAKING: u8 = 3;
/// Segment of the parent, while a thread makes the process leave it.
pub const LEAVING: u8 = 4;

/// State of the segment that the process sees: one of the constants above.
pub struct SegmentState(pub(super) AtomicU8);

impl SegmentState {
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
    /// three loads. False for copies of a waiting child, which share no memory with it.
    #[inline]
    #[must_use]
    pub fn is_copy<'a>(&self, mark: impl FnOnce() -> Option<&'a Mark>) -> bool {
        match self.get() {
            OWN => mark().is_some_and(|mark| !mark.is_ours()),
            state => state == LEAVING,
        }
    }

    /// Elects the thread that makes a copy leave its parent's segment, if `fork`'s handlers did not
    /// run for the copy. Returns true for that thread.
    pub fn claim_leaving(&self, mark: Option<&Mark>) -> bool {
        // A signal handler that interrupts `leave` itself is not elected.
        self.is_own() && mark.is_some_and(Mark::claim)
    }

    /// Makes a copy leave its parent's segment. Must be called only by the elected thread. Returns
    /// true if the copy's state is [`WAITING`] afterwards.
    ///
    /// `remember` saves the parent's session. `forget` drops all knowledge of its sessions. `cover`
    /// maps private memory over the mapped part of the segment, and returns true on success.
    /// `record_waiting` then records there that the copy waits.
    #[inline(always)]
    pub fn leave(
        &self,
        remember: impl FnOnce(),
        forget: impl FnOnce(),
        cover: impl FnOnce() -> bool,
        record_waiting: impl FnOnce(),
    ) -> bool {
        let before = self.get();
        if before == OWN {
            self.0.store(LEAVING, Ordering::Relaxed);
            remember();
        }
        let has_left = match before {
            NONE => return false,
            // The mapped memory is private, so the copy has its own.
            WAITING => true,
            // MAKING: if a thread of the waiting parent was creating a segment, that may already be
            // mapped. LEAVING: if the parent was itself a copy that was leaving, what its thread
            // had begun to save is incomplete and is discarded.
            state => {
                forget();
                cover() && state != LEAVING
            }
        };
        if has_left {
            record_waiting();
        }
        // The state is set last, since other threads of the copy wait for it.
        let after = if has_left { WAITING } else { NONE };
        self.0.store(after, Ordering::Release);
        has_left
    }

    /// Records that the first segment is being created. Must be called only by the main thread, at
    /// start-up.
    pub fn make(&self) {
        self.0.store(MAKING, Ordering::Release);
    }

    /// Elects the thread of a waiting child that creates its segment. Returns true for that thread.
    pub fn claim_making(&self) -> bool {
        let claim = self
            .0
            .compare_exchange(WAITING, MAKING, Ordering::Acquire, Ordering::Relaxed);
        claim.is_ok()
    }

    /// Records that the mapped segment belongs to this process from now on.
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

/// Value in a new copy, whose page the kernel has cleared.
const WIPED: u32 = 0;
const OURS: u32 = 1;
const CLAIMED: u32 = 2;

impl Mark {
    /// Returns true if this process is the one that signed the word.
    #[inline(always)]
    fn is_ours(&self) -> bool {
        // Acquire: between a thread's reads of the state and of this word, another thread may make
        // the copy leave its parent's segment. Then the first thread must not use what it read
        // about that segment earlier.
        self.0.load(Ordering::Acquire) == OURS
    }

    fn sign(&self) {
        self.0.store(OURS, Ordering::Release);
    }

    fn claim(&self) -> bool {
        let claim = self
            .0
            .compare_exchange(WIPED, CLAIMED, Ordering::Acquire, Ordering::Relaxed);
        claim.is_ok()
    }
}

//! Samples of objects for which the range has no room, and which the underlying allocator places
//! elsewhere.
//!
//! Such a sample is counted after the allocation, which may fail. It is also counted as freed
//! immediately, because the object's free cannot be observed.

use super::*;
use crate::thread::Untracked;

/// Stores a sample, which [`count_if_postponed`] counts after the allocation.
pub(super) fn postpone(thread: &mut Thread, sample: NewSample, reason: OutsideRange) {
    thread.untracked = Untracked { sample, reason };
}

/// Counts the sample that the calling thread has [postponed](postpone), if the allocation
/// succeeded.
///
/// # Safety
/// `registers` belong to the caller of the allocation function.
#[inline]
pub(super) unsafe fn count_if_postponed(registers: &Registers, has_succeeded: bool) {
    // SAFETY: the thread's own state, which nothing else borrows here. Its memory is null or mapped
    // until the thread exits.
    let has_postponed = unsafe {
        let thread = thread::state_of(&*arch::local());
        !thread.is_null() && (*thread).untracked.sample.weight != 0.0
    };
    if has_postponed {
        // SAFETY: the thread has memory, and `registers` belong to the allocation function's
        // caller.
        unsafe { count_guarded(registers, has_succeeded) };
    }
}

/// Counts the postponed sample with the thread marked busy. Not inlined, to keep its stack frame
/// out of the callers of [`count_if_postponed`].
///
/// # Safety
/// The thread has memory; `registers` belong to the caller of the allocation function.
#[cold]
#[inline(never)]
unsafe fn count_guarded(registers: &Registers, has_succeeded: bool) {
    // SAFETY: the closure uses the thread's state only through its argument.
    unsafe { run_guarded(|local| count_postponed(local, registers, has_succeeded)) };
}

#[cold]
fn count_postponed(local: &mut Local, registers: &Registers, has_succeeded: bool) -> *mut u8 {
    // A signal handler may have forked since `postpone`.
    if !fork::leave_if_copy(local) {
        return null_mut();
    }
    let number = session::control().epoch(Ordering::Relaxed);
    // SAFETY: not null, as checked by `count_if_postponed`, and mapped until the thread exits.
    let thread = unsafe { &mut *thread::state_of(local) };
    let Untracked { sample, reason } = core::mem::replace(&mut thread.untracked, Untracked::NONE);
    if !has_succeeded || number == 0 || local.epoch != number || thread.session == 0 {
        return null_mut();
    }
    // SAFETY: a thread with a session has entered an epoch, and enters no other one in this call.
    let epoch = unsafe { thread.epoch() };
    if session::is_current(epoch) {
        let record = find_record(thread, epoch, registers, &sample);
        epoch
            .bank
            .count_unseen(record, thread.shard, &sample, thread.is_exclusive());
        count_untracked(epoch, reason);
    }
    null_mut()
}

/// Counts an object that could not be tracked.
fn count_untracked(epoch: &Epoch, reason: OutsideRange) {
    let counters = &epoch.bank.header.counters;
    counters.untracked.fetch_add(1, Ordering::Relaxed);
    if reason == OutsideRange::Elsewhere {
        counters.untracked_elsewhere.fetch_add(1, Ordering::Relaxed);
    }
}

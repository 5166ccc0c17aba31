//! Samples of objects that cannot be in the range, and that the allocator makes instead. Only it knows
//! whether there is memory for them, so they are counted once they are there, as freed at once, since their
//! frees cannot be seen.

use super::*;

/// Has [`settle`] count a sample.
pub(super) fn postpone(thread: &mut Thread, sample: NewSample, why: NoPlace) {
    thread.untracked = (sample, why);
}

/// Counts what the calling thread has [postponed](postpone), if the object is there.
#[inline]
pub(super) unsafe fn settle(registers: &Registers, is_there: bool) {
    // SAFETY: the thread's own words, and null or its own memory.
    let postpones = unsafe {
        let thread = thread::of(&*arch::local());
        !thread.is_null() && (*thread).untracked.0.weight != 0.0
    };
    if postpones {
        // SAFETY: the thread's own memory is there.
        unsafe { count_guarded(registers, is_there) };
    }
}

/// Has a frame of its own, which the callers of [`settle`] seldom need.
#[cold]
#[inline(never)]
unsafe fn count_guarded(registers: &Registers, is_there: bool) {
    // SAFETY: the closure's own.
    unsafe { guarded(|local| count_postponed(local, registers, is_there)) };
}

#[cold]
fn count_postponed(local: &mut Local, registers: &Registers, is_there: bool) -> *mut u8 {
    // A handler may have forked in between.
    if !fork::leave_if_unseen(local) {
        return null_mut();
    }
    let number = session::control().epoch(Ordering::Relaxed);
    // SAFETY: the thread's own memory, which it has.
    let thread = unsafe { &mut *thread::of(local) };
    let (sample, why) = core::mem::replace(&mut thread.untracked, thread::NONE_UNTRACKED);
    if !is_there || number == 0 || local.epoch != number || thread.session == 0 {
        return null_mut();
    }
    // SAFETY: a thread with a session has entered an epoch.
    let epoch = unsafe { thread.epoch() };
    if session::is_current(epoch) {
        let record = find_record(thread, epoch, registers, &sample);
        let (shard, exclusive) = (thread.shard, thread.is_exclusive());
        epoch.bank.count_unseen(record, shard, &sample, exclusive);
        count_untracked(epoch, why);
    }
    null_mut()
}

fn count_untracked(epoch: &Epoch, why: NoPlace) {
    let counters = &epoch.bank.header.counters;
    counters.untracked.fetch_add(1, Ordering::Relaxed);
    if why == NoPlace::Elsewhere {
        counters.untracked_elsewhere.fetch_add(1, Ordering::Relaxed);
    }
}

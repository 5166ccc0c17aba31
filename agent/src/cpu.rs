//! Samples of CPU time that the process takes of itself, in sessions that request them.
//!
//! A thread that allocates on the slow path notices the session, and gives each thread of the
//! process a timer ([`crate::timers`]). When a timer fires, its signal handler counts the
//! interrupted stack, weighted by the CPU time that the thread has used since its last sample. So
//! the sum is right even if signals are late or lost.
//!
//! A forked child that has not allocated yet begins its parent's session in the handler, when its
//! only timer fires.
//!
//! The handler never waits for a lock, allocates nothing and preserves `errno`. It runs on a stack
//! of its own, because the interrupted one may be small, and does nothing if it interrupted the
//! agent. It also gives timers to new threads, and deletes all timers once the session is over.
//!
//! The system calls for this are made only for a session that requests CPU time, and never if a
//! seccomp filter may forbid them ([`seccomp::allows_timers`]).

mod own_frames;

use crate::arch::{self, Interrupted, on_own_stack};
use crate::local::Local;
use crate::session::{self, Epoch};
use crate::thread::{self, Thread};
use crate::timers::{self, Armed, Failure, TimersLock};
use crate::{cpu_profile, cpu_totals, fork, module, seccomp, sys};
use core::arch::naked_asm;
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU64, Ordering};
use shm_protocol::clock;
use shm_protocol::cpu::{CpuSetting, CpuState, CpuTotals};
use shm_protocol::record::{CPU_CLASS, TABLE_FULL};
use unwind::walk::Walk;

/// Bytes that a thread may allocate, in a session without a heap profile, before it looks for new
/// threads.
pub const COUNTDOWN: i64 = 64 << 10;
/// Minimum time between two searches for new threads, by any thread.
const SEARCH_EVERY_NS: u64 = 100_000_000;

/// Time of the last search for new threads.
static LAST_SEARCH: AtomicU64 = AtomicU64::new(0);

/// Adds to the counts of threads with and without a timer.
fn count_timers(armed: Armed) {
    if let Some(totals) = cpu_totals::get() {
        totals.threads.fetch_add(armed.threads, Ordering::Relaxed);
        totals.unarmed.fetch_add(armed.unarmed, Ordering::Relaxed);
    }
}

/// Begins, continues or ends sampling of CPU time as an epoch demands, after a thread has entered
/// the epoch. Called with the thread marked busy.
pub fn apply_epoch(epoch: &Epoch) {
    let wanted = epoch.cpu.rate != 0;
    if wanted && timers::session() == epoch.session {
        update_timers(clock::now_ns());
    } else if timers::session() != 0 {
        end(CpuState::Disarmed);
    }
    if wanted && timers::session() == 0 {
        begin(epoch);
    }
}

#[cold]
fn begin(epoch: &Epoch) {
    let totals = &epoch.bank.header.cpu;
    let is_new = totals.state.load(Ordering::Relaxed) == CpuState::Unnoticed as u32;
    if !is_new {
        return;
    }
    let Some(lock) = TimersLock::try_lock() else {
        return;
    };
    if !seccomp::allows_timers() {
        return refuse(totals, CpuState::Filtered, 0);
    }
    // Other threads may unwind for the first time in a signal handler, which must not map the
    // tables.
    if !module::prepare() {
        return refuse(totals, CpuState::Failed, sys::errno());
    }
    cpu_totals::set(totals);
    LAST_SEARCH.store(clock::now_ns(), Ordering::Relaxed);
    let CpuSetting { rate, avoid, .. } = epoch.cpu;
    match timers::begin(&lock, epoch.session, rate, avoid, handler) {
        Ok(armed) if armed.threads == 0 && armed.unarmed > 0 => {
            // `errno` of the last failed attempt.
            let errno = sys::errno();
            timers::end(&lock);
            refuse(totals, CpuState::Failed, errno);
        }
        Ok(armed) => {
            count_timers(armed);
            record_signal(totals);
            let state = CpuState::Armed as u32;
            totals.state.store(state, Ordering::Release);
        }
        Err(Failure::NoSignal) => refuse(totals, CpuState::NoSignal, 0),
        Err(Failure::Errno(errno)) => refuse(totals, CpuState::Failed, errno),
    }
}

/// Begins sampling of CPU time now, if the current session requests it. Called at start-up, and
/// when the program starts a filtered profile. Changes `errno`.
pub fn start() {
    if session::control().epoch(Ordering::Relaxed) == 0 {
        return;
    }
    let local = arch::local();
    // SAFETY: the word is the thread's own, and nothing else uses it while the library is loaded.
    unsafe { (*local).busy = 1 };
    if let Some(epoch) = session::current().filter(|epoch| epoch.cpu.rate != 0) {
        begin(&epoch);
    }
    // SAFETY: the word is the thread's own.
    unsafe { (*local).busy = 0 };
}

fn record_signal(totals: &CpuTotals) {
    let number = timers::number() as u32;
    totals.signal.store(number, Ordering::Relaxed);
}

fn refuse(totals: &CpuTotals, state: CpuState, errno: c_int) {
    totals.errno.store(errno as u32, Ordering::Relaxed);
    totals.state.store(state as u32, Ordering::Release);
}

/// Deletes all timers. If another thread has the lock, the next signal tries again.
#[cold]
fn end(state: CpuState) {
    let Some(lock) = TimersLock::try_lock() else {
        return;
    };
    if timers::end(&lock)
        && let Some(totals) = cpu_totals::get()
    {
        totals.state.store(state as u32, Ordering::Release);
    }
}

/// Switches to another signal if the program is about to handle the one of the timers. Safe in a
/// signal handler.
#[inline]
pub fn give_way(number: c_int) {
    if timers::are_running() && number == timers::number() && !session::is_guest() {
        change_signal(signal_bit(number));
    }
}

/// Switches to another signal that is not in `numbers`, because the program is about to accept
/// those.
#[cold]
pub fn give_way_to(numbers: impl Iterator<Item = c_int>) {
    if !session::is_guest() {
        change_signal(numbers.fold(0, |bits, number| bits | signal_bit(number)));
    }
}

/// Returns true if a signal came from one of the calling thread's timers.
///
/// # Safety
/// `info` was filled by the kernel.
pub unsafe fn is_from_timer(info: &libc::siginfo_t) -> bool {
    // SAFETY: `si_value` lies within the 128 bytes that the kernel has filled.
    let index = unsafe {
        (&raw const *info)
            .cast::<u8>()
            .add(VALUE)
            .cast::<usize>()
            .read()
    };
    info.si_code == SI_TIMER
        && info.si_signo == timers::number()
        && (timers::slot_of(index).is_some() || timers::awaits_session())
}

/// Moves the timers to a signal that is not in the bit set `avoided`.
#[cold]
fn change_signal(avoided: u64) {
    let saved = sys::errno();
    for _ in 0..100_000 {
        if let Some(lock) = TimersLock::try_lock() {
            let session = timers::session();
            let epoch = session::current().filter(|epoch| epoch.session == session);
            if timers::end(&lock) {
                let cpu = epoch.map(|epoch| epoch.cpu);
                let began = cpu.map(|cpu| {
                    timers::begin(&lock, session, cpu.rate, cpu.avoid | avoided, handler)
                });
                match (began, cpu_totals::get()) {
                    (Some(Ok(_)), Some(totals)) => record_signal(totals),
                    (_, Some(totals)) => {
                        let state = CpuState::SignalTaken as u32;
                        totals.state.store(state, Ordering::Release);
                    }
                    _ => {}
                }
            }
            break;
        }
        core::hint::spin_loop();
    }
    sys::set_errno(saved);
}

fn signal_bit(number: c_int) -> u64 {
    1u64.checked_shl((number - 1) as u32).unwrap_or(0)
}

/// Ends sampling before a seccomp filter is installed, which may forbid what timers and their
/// signals need. Safe in a signal handler.
#[cold]
pub fn end_for_filter() {
    if !timers::are_running() {
        return;
    }
    let saved = sys::errno();
    // Another thread holds the lock for microseconds only, unless this thread interrupts it.
    for _ in 0..100_000 {
        end(CpuState::Filtered);
        if !timers::are_running() {
            break;
        }
        core::hint::spin_loop();
    }
    sys::set_errno(saved);
}

/// If a search is due, gives timers to new threads, and checks that the signal still has our
/// handler.
fn update_timers(now: u64) {
    let last = LAST_SEARCH.load(Ordering::Relaxed);
    if now.wrapping_sub(last) < SEARCH_EVERY_NS {
        return;
    }
    let Some(lock) = TimersLock::try_lock() else {
        return;
    };
    if timers::session() == 0 {
        return;
    }
    LAST_SEARCH.store(now, Ordering::Relaxed);
    if timers::is_ours() {
        count_timers(timers::update(&lock));
    } else {
        drop(lock);
        end(CpuState::SignalTaken);
    }
}

/// Ends the session at its deadline; otherwise does the same as [`apply_epoch`].
#[cold]
pub fn handle_countdown(epoch: &Epoch) {
    let now = clock::now_ns();
    if epoch.deadline_ns != 0 && now >= epoch.deadline_ns {
        session::expire(epoch, now);
        end(CpuState::Disarmed);
    } else {
        apply_epoch(epoch);
    }
}

/// Gives a timer to the calling thread, which has just started.
pub extern "C" fn thread_begins() {
    let local = arch::local();
    // SAFETY: the word is the thread's own, and no borrow of its state is alive here.
    if unsafe { (*local).busy } != 0 {
        return;
    }
    let saved = sys::errno();
    // Waits a short time for the lock, because threads often start together. If that fails, the
    // next search finds the thread.
    for _ in 0..1000 {
        if let Some(lock) = TimersLock::try_lock() {
            if timers::session() != 0 {
                count_timers(timers::arm_own(&lock, true));
            }
            break;
        }
        core::hint::spin_loop();
    }
    sys::set_errno(saved);
}

on_own_stack! {
    /// Signal handler of the timers.
    handler, enter, work
}

/// `si_code` of a timer's signal.
const SI_TIMER: c_int = -2;
/// Offset of `si_overrun` in the kernel's `siginfo_t`: the number of further expirations.
const OVERRUN: usize = 20;
/// Offset of `si_value` in the kernel's `siginfo_t`: the index of the timer's slot.
const VALUE: usize = 24;

/// Claims the thread for the handler. Returns the end of the stack for [`work`], or null if there
/// is nothing to do.
///
/// # Safety
/// `info` was filled by the kernel.
unsafe extern "C" fn enter(info: *const libc::siginfo_t, _: *const libc::ucontext_t) -> *mut u8 {
    // SAFETY: `info` was filled by the kernel.
    let is_from_timer = unsafe { (*info).si_code } == SI_TIMER;
    if !is_from_timer || !timers::are_running() || !arch::has_thread_pointer() {
        return null_mut();
    }
    let local = arch::local();
    // SAFETY: the thread's own state. While it is not busy, nobody else has borrowed it.
    unsafe {
        if (*local).busy != 0 {
            // Without a session, a forked child only has its parent's totals, which it must not
            // change.
            if timers::session() != 0
                && let Some(totals) = cpu_totals::get()
            {
                totals.postponed.fetch_add(1, Ordering::Relaxed);
            }
            return null_mut();
        }
        (*local).busy = 1;
        if (*local).thread.is_null() {
            let saved = sys::errno();
            (*local).thread = thread::make(0).cast();
            sys::set_errno(saved);
        }
        match thread::state_of(&*local).as_mut() {
            Some(thread) => thread.stack_end(),
            None => {
                (*local).busy = 0;
                null_mut()
            }
        }
    }
}

/// Takes a sample.
///
/// # Safety
/// The kernel has passed the arguments to a signal handler, and [`enter`] has claimed the thread.
unsafe extern "C" fn work(info: *const libc::siginfo_t, context: *const libc::ucontext_t) {
    let saved = sys::errno();
    // SAFETY: both fields lie within the 128 bytes that the kernel has filled.
    let (overrun, index) = unsafe {
        let bytes: *const u8 = info.cast();
        (
            bytes.add(OVERRUN).cast::<c_int>().read(),
            bytes.add(VALUE).cast::<usize>().read(),
        )
    };
    // SAFETY: `enter` has claimed the thread, and all signals are blocked.
    let local = unsafe { &mut *arch::local() };
    // SAFETY: the kernel passes a valid context.
    let context = unsafe { &*context };
    sample(local, index, overrun, context);
    local.busy = 0;
    sys::set_errno(saved);
}

/// Begins the parent's session in a forked child. Returns true if it has timers now.
#[cold]
fn begin_in_child(local: &mut Local) -> bool {
    if session::wait_as_child(local)
        && let Some(epoch) = session::current().filter(|epoch| epoch.cpu.rate != 0)
    {
        begin(&epoch);
    }
    let has_begun = timers::session() != 0;
    if !has_begun && !session::is_waiting() {
        // The child has no segment or may not use timers: it will not begin the session.
        end(CpuState::Disarmed);
    }
    has_begun
}

fn sample(local: &mut Local, index: usize, overrun: c_int, context: &libc::ucontext_t) {
    if !fork::leave_if_copy(local) {
        return;
    }
    let is_first = timers::awaits_session();
    if is_first && !begin_in_child(local) {
        return;
    }
    // SAFETY: `enter` has made sure that the thread has memory.
    let Some(thread) = (unsafe { thread::state_of(local).as_mut() }) else {
        return;
    };
    let Some(epoch) = epoch_of(thread) else {
        return;
    };
    let now = clock::now_ns();
    if epoch.deadline_ns != 0 && now >= epoch.deadline_ns {
        session::expire(epoch, now);
        return end(CpuState::Disarmed);
    }
    let slot = if is_first {
        timers::current_slot()
    } else {
        timers::slot_of(index)
    };
    if let Some(slot) = slot {
        let ns = slot.take_elapsed();
        if cpu_profile::wants_sample() {
            let interrupted = arch::interrupted(context);
            count(thread, epoch, &interrupted, slot.is_in_fork_handler(), ns);
        }
        let overruns = &epoch.bank.header.cpu.overruns;
        overruns.fetch_add(overrun.max(0) as u64, Ordering::Relaxed);
    }
    update_timers(now);
}

/// Returns the epoch to count in. Returns `None` if the session is over, or while a controller
/// changes its setting.
fn epoch_of(thread: &mut Thread) -> Option<&'static Epoch> {
    let number = session::control().epoch(Ordering::Relaxed);
    let is_current = thread.session != 0 && {
        // SAFETY: a thread with a session has entered an epoch, and enters no other one here.
        let epoch = unsafe { thread.epoch() };
        epoch.number == number && session::is_current(epoch)
    };
    if !is_current {
        let epoch = session::current();
        let is_wanted = |epoch: &Epoch| epoch.session == timers::session() && epoch.cpu.rate != 0;
        match epoch.filter(is_wanted) {
            Some(epoch) => thread.enter_and_count(epoch),
            None => {
                // While a controller changes the setting, there is no epoch for a moment.
                if number == 0 || epoch.is_some() {
                    end(CpuState::Disarmed);
                }
                return None;
            }
        }
    }
    // SAFETY: the thread has entered an epoch, and enters no other one while the result is used.
    let epoch: &Epoch = unsafe { thread.epoch() };
    if epoch.session != timers::session() || epoch.cpu.rate == 0 {
        end(CpuState::Disarmed);
        return None;
    }
    Some(epoch)
}

/// Counts the interrupted stack with `ns` of CPU time. If `is_in_agent`, the thread is in the
/// agent's fork handler, and the sample belongs to the handler's caller.
fn count(
    thread: &mut Thread,
    epoch: &Epoch,
    interrupted: &Interrupted,
    is_in_agent: bool,
    ns: u64,
) {
    let (mut walk, mut record) = intern(thread, epoch, interrupted, is_in_agent);
    let mut tries = 0;
    while record == TABLE_FULL && session::grow(epoch, &mut tries) {
        (walk, record) = intern(thread, epoch, interrupted, is_in_agent);
    }
    if record == TABLE_FULL {
        record = thread.merged_record(walk.leaf, CPU_CLASS, epoch);
    }
    if let Some(cause) = walk.truncated {
        let causes = &epoch.bank.header.cpu.truncated;
        causes[cause as usize].fetch_add(1, Ordering::Relaxed);
    }
    epoch
        .bank
        .count_cpu(record, thread.shard, ns, thread.is_exclusive());
}

/// Walks the interrupted stack and looks up its record.
fn intern(
    thread: &mut Thread,
    epoch: &Epoch,
    interrupted: &Interrupted,
    is_in_agent: bool,
) -> (Walk, u32) {
    let walk = thread.walk_interrupted(interrupted, epoch);
    let leaf = if is_in_agent {
        walk.leaf
            .map(|leaf| own_frames::strip(leaf, &epoch.bank.tree))
    } else {
        walk.leaf
    };
    let record = leaf.map_or(TABLE_FULL, |leaf| thread.record_of(leaf, CPU_CLASS, epoch));
    (walk, record)
}

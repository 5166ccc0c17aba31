//! Samples of CPU time that the process takes of itself, for sessions that request them.
//!
//! A thread that allocates on the slow path notices the session, and gives each thread of the
//! process a timer ([`crate::timers`]). When one fires, the signal handler counts the interrupted
//! stack, with the CPU time that the thread has used since its last sample: even if signals were
//! late or lost, the sum is what the process used.
//!
//! A forked child that has not allocated yet begins its parent's session in the handler, when the
//! one timer that it has from birth fires.
//!
//! The handler waits for no lock (it takes one only if it is free), allocates nothing and keeps
//! `errno`. It runs on memory of its own, however small the interrupted stack is, and does nothing
//! if it interrupted the agent. It also makes sure that new threads get timers, and that all timers
//! are deleted once the session is over.
//!
//! These system calls are made only for a session that requests CPU time, and never where a seccomp
//! filter may forbid them ([`seccomp::lets_timers_pass`]).

mod outside;

use crate::arch::{self, on_own_stack};
use crate::local::Local;
use crate::session::{self, Epoch};
use crate::thread::{self, Thread};
use crate::timers::{self, Armed, Failure, Turn};
use crate::{cpu_profile, cpu_totals, fork, module, seccomp, sys};
use core::arch::naked_asm;
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU64, Ordering};
use shm_protocol::clock;
use shm_protocol::cpu::{CpuState, CpuTotals};
use shm_protocol::record::{CPU_CLASS, TABLE_FULL};
use unwind::walk::Walk;

/// Bytes that a thread may allocate in a session of CPU time alone before it looks whether there
/// are new threads.
pub const COUNTDOWN: i64 = 64 << 10;
/// Time between such looks, by whichever thread comes first.
const PERIOD_NS: u64 = 100_000_000;

/// When threads were looked for.
static LOOKED: AtomicU64 = AtomicU64::new(0);

fn note(armed: Armed) {
    if let Some(totals) = cpu_totals::get() {
        totals.threads.fetch_add(armed.threads, Ordering::Relaxed);
        totals.unarmed.fetch_add(armed.unarmed, Ordering::Relaxed);
    }
}

/// A thread has met an epoch: sees to it that CPU time is sampled if the epoch wants that. Called
/// with the thread marked busy.
pub fn meet(epoch: &Epoch) {
    let wanted = epoch.cpu.rate != 0;
    if wanted && timers::session() == epoch.session {
        look_after(clock::now_ns());
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
    let Some(turn) = Turn::take().filter(|_| is_new) else {
        return;
    };
    if !seccomp::lets_timers_pass() {
        return refuse(totals, CpuState::Filtered, 0);
    }
    // What is unwound needs it; other threads' first samples are in a handler.
    if !module::prepare() {
        return refuse(totals, CpuState::Failed, sys::errno());
    }
    cpu_totals::set(totals);
    LOOKED.store(clock::now_ns(), Ordering::Relaxed);
    let wanted = (epoch.cpu.rate, epoch.cpu.avoid);
    match timers::begin(&turn, epoch.session, wanted, handler) {
        Ok(armed) if armed.threads == 0 && armed.unarmed > 0 => {
            // The kernel's reason for the last one.
            let errno = sys::errno();
            timers::end(&turn);
            refuse(totals, CpuState::Failed, errno);
        }
        Ok(armed) => {
            note(armed);
            note_signal(totals);
            let state = CpuState::Armed as u32;
            totals.state.store(state, Ordering::Release);
        }
        Err(Failure::NoSignal) => refuse(totals, CpuState::NoSignal, 0),
        Err(Failure::Errno(errno)) => refuse(totals, CpuState::Failed, errno),
    }
}

/// Begins the session that there is, if it wants CPU time: at start-up the one that the environment
/// requests. Changes `errno`.
pub fn start() {
    if session::control().epoch(Ordering::Relaxed) == 0 {
        return;
    }
    let local = arch::local();
    // SAFETY: the thread's own words, which no other code uses while the library is loaded.
    unsafe { (*local).busy = 1 };
    if let Some(epoch) = session::current().filter(|epoch| epoch.cpu.rate != 0) {
        begin(&epoch);
    }
    // SAFETY: as above.
    unsafe { (*local).busy = 0 };
}

fn note_signal(totals: &CpuTotals) {
    let number = timers::number() as u32;
    totals.signal.store(number, Ordering::Relaxed);
}

fn refuse(totals: &CpuTotals, state: CpuState, errno: c_int) {
    totals.errno.store(errno as u32, Ordering::Relaxed);
    totals.state.store(state as u32, Ordering::Release);
}

/// Deletes all timers, unless another thread has the turn; then the next signal tries again.
#[cold]
fn end(state: CpuState) {
    let Some(turn) = Turn::take() else { return };
    if timers::end(&turn)
        && let Some(totals) = cpu_totals::get()
    {
        totals.state.store(state as u32, Ordering::Release);
    }
}

/// The program is about to handle a signal: if it is ours, the timers get another one. Safe in a
/// signal handler.
#[inline]
pub fn give_way(number: c_int) {
    if timers::are_running() && number == timers::number() && !session::is_guest() {
        change_signal(bit(number));
    }
}

/// The same for a program that will fetch these signals, of which ours is one.
#[cold]
pub fn give_way_to(numbers: impl Iterator<Item = c_int>) {
    if !session::is_guest() {
        change_signal(numbers.fold(0, |bits, number| bits | bit(number)));
    }
}

/// Whether a signal is one of our timers', for the calling thread.
///
/// # Safety
/// `info` is a signal's.
pub unsafe fn is_timers(info: &libc::siginfo_t) -> bool {
    // SAFETY: the caller's: the kernel's word, within its 128 bytes.
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

#[cold]
fn change_signal(taken: u64) {
    let saved = sys::errno();
    for _ in 0..100_000 {
        if let Some(turn) = Turn::take() {
            let session = timers::session();
            let epoch = session::current().filter(|epoch| epoch.session == session);
            if timers::end(&turn) {
                let wanted = epoch.map(|epoch| (epoch.cpu.rate, epoch.cpu.avoid | taken));
                let began = wanted.map(|wanted| timers::begin(&turn, session, wanted, handler));
                match (began, cpu_totals::get()) {
                    (Some(Ok(_)), Some(totals)) => note_signal(totals),
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

fn bit(number: c_int) -> u64 {
    1u64.checked_shl((number - 1) as u32).unwrap_or(0)
}

/// A seccomp filter is about to be installed, which may forbid what timers and their signals need.
/// Safe in a signal handler.
#[cold]
pub fn end_for_filter() {
    if !timers::are_running() {
        return;
    }
    let saved = sys::errno();
    // Whoever has the turn needs microseconds for it, unless this thread interrupts it.
    for _ in 0..100_000 {
        end(CpuState::Filtered);
        if !timers::are_running() {
            break;
        }
        core::hint::spin_loop();
    }
    sys::set_errno(saved);
}

/// Looks for new threads, and whether the program has taken the signal, if that is due.
fn look_after(now: u64) {
    let last = LOOKED.load(Ordering::Relaxed);
    if now.wrapping_sub(last) < PERIOD_NS {
        return;
    }
    let Some(turn) = Turn::take() else { return };
    if timers::session() == 0 {
        return;
    }
    LOOKED.store(now, Ordering::Relaxed);
    if timers::is_ours() {
        note(timers::look_after(&turn));
    } else {
        drop(turn);
        end(CpuState::SignalTaken);
    }
}

/// On the slow path in a session of CPU time alone.
#[cold]
pub fn pass(epoch: &Epoch) {
    let now = clock::now_ns();
    if epoch.deadline_ns != 0 && now >= epoch.deadline_ns {
        session::expire(epoch, now);
        end(CpuState::Disarmed);
    } else {
        meet(epoch);
    }
}

/// A thread begins in which nothing has run yet: gives it a timer.
pub extern "C" fn thread_begins() {
    let local = arch::local();
    // SAFETY: the thread's own words.
    if unsafe { (*local).busy } != 0 {
        return;
    }
    let saved = sys::errno();
    // A moment, since threads begin together; the next look finds it otherwise.
    for _ in 0..1000 {
        if let Some(turn) = Turn::take() {
            if timers::session() != 0 {
                note(timers::arm_own(&turn, true));
            }
            break;
        }
        core::hint::spin_loop();
    }
    sys::set_errno(saved);
}

on_own_stack! {
    /// The signal's handler.
    handler, enter, work
}

/// `SI_TIMER`, and where a timer's signal says how many it stands for besides, and which it is
/// (`siginfo_t` of the kernel).
const SI_TIMER: c_int = -2;
const OVERRUN: usize = 20;
const VALUE: usize = 24;

/// Claims the thread for the handler; the end of its stack for [`work`], or null: there is nothing
/// to do.
///
/// # Safety
/// `info` is a signal's.
unsafe extern "C" fn enter(info: *const libc::siginfo_t, _: *const libc::ucontext_t) -> *mut u8 {
    // SAFETY: the caller's.
    let is_timers = unsafe { (*info).si_code } == SI_TIMER;
    if !is_timers || !timers::are_running() || !arch::has_locals() {
        return null_mut();
    }
    let local = arch::local();
    // SAFETY: the thread's own words; while it is not busy nobody else has borrowed them.
    unsafe {
        if (*local).busy != 0 {
            // Before its session begins, a forked child knows its parent's, which it has left.
            let totals = cpu_totals::get().filter(|_| timers::session() != 0);
            if let Some(totals) = totals {
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
        match thread::of(&*local).as_mut() {
            Some(thread) => thread.stack_end(),
            None => {
                (*local).busy = 0;
                null_mut()
            }
        }
    }
}

/// Takes the sample.
///
/// # Safety
/// What a signal's handler was given; [`enter`] has claimed the thread.
unsafe extern "C" fn work(info: *const libc::siginfo_t, context: *const libc::ucontext_t) {
    let saved = sys::errno();
    // SAFETY: the kernel's words for a timer's signal, within its 128 bytes.
    let (overrun, index) = unsafe {
        let bytes: *const u8 = info.cast();
        (
            bytes.add(OVERRUN).cast::<c_int>().read(),
            bytes.add(VALUE).cast::<usize>().read(),
        )
    };
    // SAFETY: the caller's: claimed, and signals are blocked.
    let local = unsafe { &mut *arch::local() };
    // SAFETY: the caller's: the kernel's.
    let context = unsafe { &*context };
    sample(local, index, overrun, context);
    local.busy = 0;
    sys::set_errno(saved);
}

/// Begins its parent's session in a forked child. Whether that has timers now.
#[cold]
fn begin_in_child(local: &mut Local) -> bool {
    if session::wait_as_child(local)
        && let Some(epoch) = session::current().filter(|epoch| epoch.cpu.rate != 0)
    {
        begin(&epoch);
    }
    let has_begun = timers::session() != 0;
    if !has_begun && !session::is_waiting() {
        // It has no segment, or may have no timers: there is nothing to wait for.
        end(CpuState::Disarmed);
    }
    has_begun
}

fn sample(local: &mut Local, index: usize, overrun: c_int, context: &libc::ucontext_t) {
    if !fork::leave_if_unseen(local) {
        return;
    }
    let is_first = timers::awaits_session();
    if is_first && !begin_in_child(local) {
        return;
    }
    // SAFETY: `enter` has made sure that there is one.
    let Some(thread) = (unsafe { thread::of(local).as_mut() }) else {
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
    let slot = match is_first {
        true => timers::own_slot(),
        false => timers::slot_of(index),
    };
    if let Some(slot) = slot {
        let ns = slot.take_elapsed();
        if cpu_profile::lets_pass() {
            count(thread, epoch, (context, slot.is_resuming()), ns);
        }
        let overruns = &epoch.bank.header.cpu.overruns;
        overruns.fetch_add(overrun.max(0) as u64, Ordering::Relaxed);
    }
    look_after(now);
}

/// The epoch to count in. `None`: the session is over, or its setting changes just now.
fn epoch_of(thread: &mut Thread) -> Option<&'static Epoch> {
    let number = session::control().epoch(Ordering::Relaxed);
    let known = thread.session != 0 && {
        // SAFETY: a thread with a session has entered an epoch.
        let epoch = unsafe { thread.epoch() };
        epoch.number == number && session::is_current(epoch)
    };
    if !known {
        let epoch = session::current();
        let is_meant = |epoch: &Epoch| epoch.session == timers::session() && epoch.cpu.rate != 0;
        match epoch.filter(is_meant) {
            Some(epoch) => thread.meet(epoch),
            None => {
                // While a controller changes the setting there is none for a moment.
                if number == 0 || epoch.is_some() {
                    end(CpuState::Disarmed);
                }
                return None;
            }
        }
    }
    // SAFETY: entered, now or before.
    let epoch: &Epoch = unsafe { thread.epoch() };
    if epoch.session != timers::session() || epoch.cpu.rate == 0 {
        end(CpuState::Disarmed);
        return None;
    }
    Some(epoch)
}

/// What was interrupted, and whether that is the agent at the end of a fork.
type Place<'a> = (&'a libc::ucontext_t, bool);

fn count(thread: &mut Thread, epoch: &Epoch, place: Place<'_>, ns: u64) {
    let (mut walk, mut record) = intern(thread, epoch, place);
    let mut tries = 0;
    while record == TABLE_FULL && session::grow(epoch, &mut tries) {
        (walk, record) = intern(thread, epoch, place);
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

fn intern(thread: &mut Thread, epoch: &Epoch, place: Place<'_>) -> (Walk, u32) {
    let (context, is_in_agent) = place;
    let walk = thread.walk_interrupted(&arch::interrupted(context), epoch);
    let leaf = walk.leaf.map(|leaf| match is_in_agent {
        true => outside::caller(leaf, &epoch.bank.tree),
        false => leaf,
    });
    let record = leaf.map_or(TABLE_FULL, |leaf| thread.record_of(leaf, CPU_CLASS, epoch));
    (walk, record)
}

//! Per-thread CPU timers, for a session that samples CPU time.
//!
//! A thread gets a signal when it has used one sampling period of CPU time ([`crate::cpu`] has the
//! handler). The kernel checks the clocks at its own tick, so a signal comes 1 to 10 ms late; a
//! sleeping thread gets none.
//!
//! All of this also runs in signal handlers. So timers are created and deleted under a lock that no
//! thread waits for: a thread that does not get it tries again later.
//!
//! Most forked children soon exec another program. So a child that continues its parent's session
//! starts with a single timer, and begins the session only when that fires or when it allocates.
//!
//! No timer fires while its thread forks. Before Linux 4.19, a `fork` that a signal interrupts
//! starts again: forever, if it takes longer than the period.

// Decision 40: the agent samples CPU time with timers.
mod listing;
mod signal;

use signal::restore_in_child;
pub use signal::{candidates, is_ours, number};

use crate::{own, sys, tid};
use core::ffi::c_int;
use core::mem::{size_of, zeroed};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// Value in the timer of a child without a session, instead of the index of a slot.
const NO_SLOT: usize = usize::MAX;
/// Maximum number of threads with timers at the same time.
const CAPACITY: usize = 4096;

/// Thread with a timer. All zeros is a free slot.
pub struct Slot {
    /// Thread id; 0: free.
    tid: AtomicU32,
    /// Round of [`update`] in which the thread was last seen.
    seen: AtomicU32,
    /// The kernel's timer id plus one; 0: none.
    timer: AtomicU64,
    /// CPU time of the thread at its last sample, in ns.
    last: AtomicU64,
    /// Remaining time and CPU time, while the thread forks.
    paused: Pause,
}

/// State of a timer while its thread forks.
struct Pause {
    /// Time that was left of the period, in ns.
    left: AtomicU64,
    /// CPU time of the thread at the start of the fork, in ns; 0 at other times.
    since: AtomicU64,
}

/// All slots, mapped by the first session that needs them.
static TABLE: AtomicPtr<Slot> = AtomicPtr::new(null_mut());
/// Number of slots at the start of the table that were used in this session.
static USED: AtomicU32 = AtomicU32::new(0);
/// Number of the session that has timers; 0: none.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_state"))]
static SESSION: AtomicU64 = AtomicU64::new(0);
/// Timer of a forked child that has no session yet.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_state"))]
static CHILD: Child = Child {
    timer: AtomicU64::new(0),
    paused: Pause {
        left: AtomicU64::new(0),
        since: AtomicU64::new(0),
    },
};

struct Child {
    /// Like [`Slot::timer`].
    timer: AtomicU64,
    /// Like [`Slot::paused`].
    paused: Pause,
}

/// Sampling period in ns.
static PERIOD: AtomicU64 = AtomicU64::new(0);
/// Number of the last round of [`update`].
static ROUND: AtomicU32 = AtomicU32::new(0);

/// True while a thread holds the lock on timers.
static LOCK: AtomicBool = AtomicBool::new(false);

/// Guard of the lock on the timers.
pub struct TimersLock(());

impl TimersLock {
    /// Takes the lock, unless another thread has it.
    pub fn try_lock() -> Option<Self> {
        let taken = LOCK.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok().then(|| Self(()))
    }
}

impl Drop for TimersLock {
    fn drop(&mut self) {
        LOCK.store(false, Ordering::Release);
    }
}

/// Reason why a session has no timers.
pub enum Failure {
    /// No signal is free.
    NoSignal,
    /// A system call failed.
    Errno(c_int),
}

/// Result of giving timers to threads.
#[derive(Clone, Copy, Default)]
pub struct Armed {
    /// Number of threads that got a timer.
    pub threads: u64,
    /// Number of threads that need one and did not get it.
    pub unarmed: u64,
}

/// Returns the number of the session that has timers; 0 if none has.
#[inline]
pub fn session() -> u64 {
    SESSION.load(Ordering::Relaxed)
}

/// Returns true in a forked child that is about to begin its parent's session: it has one timer and
/// the signal handler, but no segment.
#[inline]
pub fn awaits_session() -> bool {
    CHILD.timer.load(Ordering::Relaxed) != 0
}

/// Returns true if there are timers.
#[inline]
pub fn are_running() -> bool {
    session() != 0 || awaits_session()
}

fn slots() -> &'static [Slot] {
    let table = TABLE.load(Ordering::Acquire);
    if table.is_null() {
        return &[];
    }
    // SAFETY: `begin` mapped this many slots, for which zeros are valid. They are never unmapped.
    unsafe { core::slice::from_raw_parts(table, CAPACITY) }
}

fn used_slots() -> &'static [Slot] {
    let slots = slots();
    &slots[..(USED.load(Ordering::Acquire) as usize).min(slots.len())]
}

/// Returns the slot with the index that a timer's signal carries, if it belongs to the calling
/// thread.
pub fn slot_of(index: usize) -> Option<&'static Slot> {
    let slot = slots().get(index)?;
    let tid = tid::current();
    (tid != 0 && slot.tid.load(Ordering::Relaxed) == tid).then_some(slot)
}

impl Slot {
    /// Returns true if the thread has just forked, and is in the agent's fork handler.
    pub fn is_in_fork_handler(&self) -> bool {
        self.paused.since.load(Ordering::Relaxed) != 0
    }

    /// Returns the CPU time that the calling thread has used since the last call, in ns.
    pub fn take_elapsed(&self) -> u64 {
        let now = own_clock();
        now.saturating_sub(self.last.swap(now, Ordering::Relaxed))
    }
}

/// Returns the CPU time of the calling thread, in ns.
fn own_clock() -> u64 {
    clock(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or(0)
}

/// Returns the CPU time of all threads of the process, including exited ones, in ns. Changes
/// `errno`.
pub fn process_clock() -> u64 {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID).unwrap_or(0)
}

/// Reads a clock, in ns. Changes `errno`.
pub fn clock(id: libc::clockid_t) -> Option<u64> {
    // SAFETY: zeros are a valid `timespec`.
    let mut time: libc::timespec = unsafe { zeroed() };
    // SAFETY: a `timespec` of ours to fill.
    let is_read = unsafe { libc::clock_gettime(id, &mut time) } == 0;
    is_read.then_some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Returns the id of a thread's CPU clock, as in `include/linux/posix-timers.h` of Linux:
/// `CPUCLOCK_PERTHREAD_MASK` (4) and `CPUCLOCK_SCHED` (2).
fn clock_of(tid: u32) -> libc::clockid_t {
    (((!tid) << 3) | 6) as libc::clockid_t
}

/// Begins a session: gives a timer to each existing thread. `avoid` is a bit set of signals that
/// must not be used. Changes `errno`.
pub fn begin(
    _lock: &TimersLock,
    session: u64,
    rate: u64,
    avoid: u64,
    handler: signal::Handler,
) -> Result<Armed, Failure> {
    if slots().is_empty() {
        let mapping = own::map(CAPACITY * size_of::<Slot>());
        if mapping.is_null() {
            return Err(Failure::Errno(sys::errno()));
        }
        TABLE.store(mapping.cast(), Ordering::Release);
    }
    for slot in used_slots() {
        // After a fork, the slots are still the parent's.
        slot.tid.store(0, Ordering::Relaxed);
        slot.timer.store(0, Ordering::Relaxed);
        slot.paused.since.store(0, Ordering::Relaxed);
    }
    USED.store(0, Ordering::Release);
    // A forked child has the handler already, and all CPU time of its threads is part of the
    // session.
    let is_child = stop_awaiting();
    if !is_child {
        signal::install(avoid, handler)?;
    }
    PERIOD.store(period_of(rate), Ordering::Relaxed);
    SESSION.store(session, Ordering::SeqCst);
    Ok(arm_all(!is_child))
}

/// Deletes the timer of a child that has no session yet. Returns true if there was one. Changes
/// `errno`.
fn stop_awaiting() -> bool {
    let timer = CHILD.timer.swap(0, Ordering::Relaxed);
    delete(timer);
    timer != 0
}

/// Gives timers to new threads, and deletes those of exited threads. Changes `errno`.
pub fn update(_lock: &TimersLock) -> Armed {
    arm_all(false)
}

/// Ends the session: deletes all timers, and releases the signal. A forked child that is waiting to
/// begin a session begins none. Returns true if there was a session. Changes `errno`.
pub fn end(_lock: &TimersLock) -> bool {
    if stop_awaiting() {
        signal::restore();
    }
    if SESSION.swap(0, Ordering::SeqCst) == 0 {
        return false;
    }
    for slot in used_slots() {
        slot.clear();
    }
    // The default action of the signal ends the process, so no timer may be left when it is
    // restored.
    signal::restore();
    true
}

/// Gives a timer to the calling thread, if it has none. `is_new` is true if the thread has just
/// started. Changes `errno`.
pub fn arm_own(_lock: &TimersLock, is_new: bool) -> Armed {
    match tid::current() {
        0 => Armed::default(),
        tid => {
            if is_new && let Some(slot) = current_slot() {
                // Left behind by an exited thread with the same id.
                slot.clear();
            }
            arm(tid, !is_new)
        }
    }
}

fn arm_all(is_first: bool) -> Armed {
    let mut armed = Armed::default();
    let round = ROUND.load(Ordering::Relaxed).wrapping_add(1);
    ROUND.store(round, Ordering::Relaxed);
    let is_complete = listing::each_thread(|tid| {
        // Existing threads may have used CPU time before the session, which is not part of it.
        let now = arm(tid, is_first);
        armed.threads += now.threads;
        armed.unarmed += now.unarmed;
    });
    let is_gone = |slot: &&Slot| {
        let tid = slot.tid.load(Ordering::Relaxed);
        tid != 0 && slot.seen.load(Ordering::Relaxed) != round
    };
    if is_complete {
        for slot in used_slots().iter().filter(is_gone) {
            slot.clear();
        }
    }
    armed
}

/// Gives a thread a timer. `is_old` is true if the thread may have run before the session.
fn arm(tid: u32, is_old: bool) -> Armed {
    let round = ROUND.load(Ordering::Relaxed);
    let slots = slots();
    let mut free = None;
    let used = self::used_slots().len();
    for (index, slot) in slots[..used].iter().enumerate() {
        match slot.tid.load(Ordering::Relaxed) {
            0 => free = free.or(Some(index)),
            other if other == tid => {
                slot.seen.store(round, Ordering::Relaxed);
                return Armed::default();
            }
            _ => {}
        }
    }
    let index = free.unwrap_or(used);
    let Some(slot) = slots.get(index) else {
        return Armed {
            threads: 0,
            unarmed: 1,
        };
    };
    let Some(now) = clock(clock_of(tid)) else {
        // The thread has exited.
        return Armed::default();
    };
    slot.last
        .store(if is_old { now } else { 0 }, Ordering::Relaxed);
    slot.seen.store(round, Ordering::Relaxed);
    slot.tid.store(tid, Ordering::Relaxed);
    let is_started = create_timer(tid, index).is_some_and(|timer| {
        slot.timer.store(timer as u64 + 1, Ordering::SeqCst);
        USED.fetch_max(index as u32 + 1, Ordering::Release);
        // A random phase, so that threads that live for less than a period are represented.
        start_timer(timer, 1 + random() % period())
    });
    if !is_started {
        slot.clear();
    }
    Armed {
        threads: u64::from(is_started),
        unarmed: u64::from(!is_started),
    }
}

/// Converts a rate in Hz into a period in ns.
fn period_of(rate: u64) -> u64 {
    1_000_000_000 / rate.clamp(1, 1_000_000)
}

fn period() -> u64 {
    PERIOD.load(Ordering::Relaxed).max(1)
}

/// Returns a random number (Vigna's SplitMix64).
fn random() -> u64 {
    static STATE: AtomicU64 = AtomicU64::new(0);
    let seed = crate::cycles::read().unwrap_or_else(shm_protocol::clock::now_ns);
    let state = STATE.fetch_add(seed | 1, Ordering::Relaxed) ^ seed;
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// Creates a timer that is not running.
fn create_timer(tid: u32, index: usize) -> Option<c_int> {
    // SAFETY: the structure consists of integers, and a pointer that is used as a number, so zeros
    // are valid.
    let mut event: libc::sigevent = unsafe { zeroed() };
    event.sigev_notify = libc::SIGEV_THREAD_ID;
    event.sigev_signo = signal::number();
    event.sigev_notify_thread_id = tid as c_int;
    event.sigev_value.sival_ptr = core::ptr::without_provenance_mut(index);
    let mut timer: c_int = 0;
    // SAFETY: a `sigevent` to read and a number to write, with the kernel's types.
    let result = unsafe {
        sys::syscall(
            libc::SYS_timer_create,
            clock_of(tid),
            &raw const event,
            &raw mut timer,
        )
    };
    (result == 0).then_some(timer)
}

/// Makes a timer fire after `first` ns of CPU time, and then each period. Returns false if that
/// fails.
fn start_timer(timer: c_int, first: u64) -> bool {
    set_timer(timer, 0, first, period()).is_some()
}

fn timespec(ns: u64) -> libc::timespec {
    libc::timespec {
        tv_sec: (ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (ns % 1_000_000_000) as libc::c_long,
    }
}

/// Subtracts `passed` ns from a time span.
pub fn subtract(whole: &libc::timespec, passed: u64) -> libc::timespec {
    let ns = (whole.tv_sec as u64).saturating_mul(1_000_000_000);
    timespec(
        ns.saturating_add(whole.tv_nsec as u64)
            .saturating_sub(passed),
    )
}

/// Sets a timer; `first` is 0 to stop it. Returns the ns that were left before.
fn set_timer(timer: c_int, flags: c_int, first: u64, interval: u64) -> Option<u64> {
    let setting = libc::itimerspec {
        it_interval: timespec(interval),
        it_value: timespec(first),
    };
    // SAFETY: zeros are a valid `itimerspec`.
    let mut old: libc::itimerspec = unsafe { zeroed() };
    // SAFETY: the timer is ours; the call reads one setting and writes another.
    let result = unsafe {
        sys::syscall(
            libc::SYS_timer_settime,
            timer,
            flags,
            &raw const setting,
            &raw mut old,
        )
    };
    let left = old.it_value;
    (result == 0).then_some(left.tv_sec as u64 * 1_000_000_000 + left.tv_nsec as u64)
}

/// Decodes the timer id in a word like [`Slot::timer`].
fn timer_in(word: &AtomicU64) -> Option<c_int> {
    Some(word.load(Ordering::SeqCst).checked_sub(1)? as c_int)
}

/// Deletes the timer that a word like [`Slot::timer`] named before it was cleared.
fn delete(word: u64) {
    if let Some(timer) = word.checked_sub(1) {
        // SAFETY: the timer is ours. Its word was replaced, so nobody else deletes it.
        unsafe { sys::syscall(libc::SYS_timer_delete, timer as c_int) };
    }
}

impl Slot {
    /// Deletes the timer, and frees the slot.
    fn clear(&self) {
        delete(self.timer.swap(0, Ordering::SeqCst));
        self.tid.store(0, Ordering::Release);
    }
}

/// Returns the slot of the calling thread.
#[cold]
pub fn current_slot() -> Option<&'static Slot> {
    let tid = tid::current();
    let is_own = |slot: &&Slot| tid != 0 && slot.tid.load(Ordering::Relaxed) == tid;
    used_slots().iter().find(is_own)
}

/// Fork handler that runs before the fork.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_fork"))]
pub unsafe extern "C" fn before_fork() {
    if session() != 0 || awaits_session() {
        pause();
    }
}

/// Fork handler that runs in the parent after the fork.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_fork"))]
pub unsafe extern "C" fn after_fork() {
    if session() != 0 || awaits_session() {
        resume();
    }
}

/// Returns the timer of the calling thread, and its state while the thread forks.
fn own_timer() -> Option<(c_int, &'static Pause)> {
    match timer_in(&CHILD.timer) {
        Some(timer) => Some((timer, &CHILD.paused)),
        None => {
            let slot = current_slot()?;
            Some((timer_in(&slot.timer)?, &slot.paused))
        }
    }
}

#[cold]
fn pause() {
    let saved = sys::errno();
    if let Some((timer, paused)) = own_timer() {
        let left = set_timer(timer, 0, 0, 0).unwrap_or(0);
        paused.left.store(left, Ordering::Relaxed);
        paused.since.store(own_clock(), Ordering::Relaxed);
    }
    sys::set_errno(saved);
}

/// Restarts the timer as if it had run during the fork. A timer that is due fires in this call and
/// not at the kernel's next tick, when the thread may be in its next fork.
#[cold]
fn resume() {
    let saved = sys::errno();
    if let Some((timer, paused)) = own_timer() {
        let left = paused.left.load(Ordering::Relaxed);
        let since = paused.since.load(Ordering::Relaxed);
        let due = since.saturating_add(left).max(1);
        set_timer(timer, libc::TIMER_ABSTIME, due, period());
        paused.since.store(0, Ordering::Relaxed);
    }
    sys::set_errno(saved);
}

/// Forgets the parent's timers in a forked child, which does not inherit them. Returns true if
/// there were any; then [`await_session`] must follow.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_fork"))]
pub fn in_child() -> bool {
    let had_timers = session() != 0 || awaits_session();
    if had_timers {
        SESSION.store(0, Ordering::Relaxed);
        CHILD.timer.store(0, Ordering::Relaxed);
        LOCK.store(false, Ordering::Relaxed);
        listing::in_child();
    }
    had_timers
}

/// Prepares a forked child to continue its parent's session at this rate in Hz: gives it a timer
/// that fires once it has used CPU time. If the rate is 0, the child does not continue the session.
#[cold]
pub fn await_session(rate: u64) {
    let is_waiting = rate != 0 && {
        PERIOD.store(period_of(rate), Ordering::Relaxed);
        create_timer(tid::current(), NO_SLOT).is_some_and(|timer| {
            CHILD.timer.store(timer as u64 + 1, Ordering::Relaxed);
            start_timer(timer, 1 + random() % period())
        })
    };
    if !is_waiting {
        delete(CHILD.timer.swap(0, Ordering::Relaxed));
        restore_in_child();
    }
}

/// Deletes the timer of the calling thread, which is about to exit.
pub fn end_in_thread() {
    if session() == 0 {
        return;
    }
    let saved = sys::errno();
    if let (Some(_lock), Some(slot)) = (TimersLock::try_lock(), current_slot()) {
        slot.clear();
    }
    sys::set_errno(saved);
}

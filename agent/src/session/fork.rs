//! Keeps forked children out of their parent's segment.
//!
//! A child shares the mapping of its parent's segment and must not count into it. Most children
//! soon exec another program, so leaving must be cheap: at `fork`, a child covers the segment with
//! a private page (two system calls; four in a session) and counts down what it allocates. It
//! creates a segment of its own only after `CHILD_BYTES`, and then continues the parent's session
//! unless that is over.

use super::life::{self, InitialSession};
use super::name;
use super::parent::{self, ParentSession};
use super::shards;
use super::tables;
use super::{BASE, SEGMENT_STATE, SESSIONS, control};
use crate::ample_stack;
use crate::local::Local;
use crate::seccomp;
use crate::sys::{self, Uncancelled};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use shm_protocol::layout::Control;
use shm_protocol::owner::{LEAVING, MAKING, OWN, WAITING};

/// Bytes that a child may allocate before it gets a segment of its own. Not used if every
/// allocation is sampled.
const CHILD_BYTES: i64 = 64 << 10;
/// Epoch number in the private page of a waiting child. No session has it.
const WAITING_EPOCH: u32 = u32::MAX;

/// Session of the parent at the fork, which the child may continue.
struct Pending {
    /// Number of the session in the child; 0: none.
    session: AtomicU64,
    interval: AtomicU64,
    cpu_rate: AtomicU64,
    thinning: AtomicU64,
    max_overhead: AtomicU64,
    deadline_ns: AtomicU64,
    parent: AtomicU64,
}
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_state"))]
static PENDING: Pending = Pending {
    session: AtomicU64::new(0),
    interval: AtomicU64::new(0),
    cpu_rate: AtomicU64::new(0),
    thinning: AtomicU64::new(0),
    max_overhead: AtomicU64::new(0),
    deadline_ns: AtomicU64::new(0),
    parent: AtomicU64::new(0),
};

/// Pid of the process whose segment is in the view.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_state"))]
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Pid of the process that has this memory.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_state"))]
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Records the pid at start-up.
pub fn start() {
    OWNER.store(sys::pid(), Ordering::Relaxed);
    PROCESS.store(sys::pid(), Ordering::Relaxed);
}

/// Returns true if the caller is another process that runs in this one's memory, like the child of
/// a `vfork` before its exec: its signals and seccomp filters are not this process's. Makes a
/// system call. Before Linux 4.14, returns false: such a child cannot be distinguished from a
/// forked one.
#[cold]
pub fn is_guest() -> bool {
    let is_known = super::mark::mark().is_some() && !super::is_copy();
    let process = PROCESS.load(Ordering::Relaxed);
    is_known && process != 0 && process != sys::pid()
}

/// Returns true in the process whose segment is in the view. Makes a system call.
pub fn is_owner() -> bool {
    OWNER.load(Ordering::Relaxed) == sys::pid()
}

/// Stores a value only if it differs: each page that a child writes to is copied.
fn store_if_changed(to: &AtomicU64, value: u64) {
    if to.load(Ordering::Relaxed) != value {
        to.store(value, Ordering::Relaxed);
    }
}

/// Leaves the parent's segment: covers it with a private page that counts down, and forgets its
/// sessions. Nothing of the parent's segment is accessed afterwards. `shard` is the calling
/// thread's. With `may_use_tables`, the parent's tables may still be accessed: by an interrupted
/// sample that continues in the child, or by a thread that entered the session in the parent.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_fork"))]
pub fn leave(local: &mut Local, shard: Option<u32>, may_use_tables: bool) {
    PROCESS.store(sys::pid(), Ordering::Relaxed);
    let was_waiting = SEGMENT_STATE.get() == WAITING;
    let remember_session = || save_session(control());
    let forget_sessions = || {
        SESSIONS.forget();
        shards::keep_only(shard);
    };
    let cover_segment = || super::cover_view() && drop_tables(may_use_tables);
    let store_epoch = || {
        // If the parent was waiting, too, its page has this epoch already.
        if !was_waiting {
            control().epoch.store(WAITING_EPOCH, Ordering::Release);
        }
    };
    let waits = SEGMENT_STATE.leave(
        remember_session,
        forget_sessions,
        cover_segment,
        store_epoch,
    );
    if waits && PENDING.session.load(Ordering::Relaxed) != 0 {
        begin_countdown(local);
    } else if local.epoch != 0 {
        // Without a session to continue, a waiting child begins its countdown at its first
        // allocation, so that `fork` itself does not make the kernel copy this page.
        local.epoch = 0;
    }
}

/// Stores the parent's session.
fn save_session(control: &Control) {
    store_if_changed(&PENDING.parent, u64::from(OWNER.load(Ordering::Relaxed)));
    let epoch = control.epoch(Ordering::Acquire);
    let params = control.params_of(epoch);
    // Children do not continue sampling of CPU time that a controller requested.
    let is_own = params.controller_pid.load(Ordering::Relaxed) == 0;
    let cpu_rate = if is_own {
        control.cpu[epoch as usize & 1].rate.load(Ordering::Relaxed)
    } else {
        0
    };
    let interval = params.interval.load(Ordering::Relaxed);
    let session = match epoch {
        0 => 0,
        _ if interval == 0 && cpu_rate == 0 => 0,
        _ => params.session.load(Ordering::Relaxed).wrapping_add(1),
    };
    store_if_changed(&PENDING.session, session);
    if session != 0 {
        store_if_changed(&PENDING.interval, interval);
        store_if_changed(&PENDING.cpu_rate, cpu_rate);
        store_if_changed(&PENDING.thinning, params.thinning.load(Ordering::Relaxed));
        store_if_changed(
            &PENDING.max_overhead,
            params.max_overhead.load(Ordering::Relaxed),
        );
        store_if_changed(
            &PENDING.deadline_ns,
            params.deadline_ns.load(Ordering::Relaxed),
        );
        parent::keep_view();
    }
}

/// Returns the parent's session at the fork, or `None` if its deadline has passed.
fn saved_session() -> Option<InitialSession> {
    let session = PENDING.session.load(Ordering::Relaxed);
    let start = InitialSession {
        session,
        interval: PENDING.interval.load(Ordering::Relaxed),
        cpu_rate: PENDING.cpu_rate.load(Ordering::Relaxed),
        thinning: PENDING.thinning.load(Ordering::Relaxed),
        max_overhead: PENDING.max_overhead.load(Ordering::Relaxed),
        deadline_ns: PENDING.deadline_ns.load(Ordering::Relaxed),
    };
    (session != 0 && !is_late(&start)).then_some(start)
}

/// Returns true if the deadline of a session has passed.
fn is_late(start: &InitialSession) -> bool {
    has_end(start.deadline_ns) && super::time::now_ns() >= start.deadline_ns
}

/// Returns the session that the child continues, or `None` if it is over. Only for the thread that
/// creates the segment.
fn session_to_continue() -> Option<InitialSession> {
    let session = PENDING.session.load(Ordering::Relaxed);
    if session == 0 || life::leaves_children_out(number_in_parent(session)) {
        return None;
    }
    let has_end = has_end(PENDING.deadline_ns.load(Ordering::Relaxed));
    match parent::session_state(number_in_parent(session), has_end) {
        ParentSession::Current(setting) => {
            // The deadline may have been extended since the fork, or the interval changed.
            store_if_changed(&PENDING.interval, setting.interval);
            store_if_changed(&PENDING.max_overhead, setting.max_overhead);
            store_if_changed(&PENDING.deadline_ns, setting.deadline_ns);
        }
        ParentSession::Unknown => {}
        ParentSession::Over => return None,
    }
    if is_lease(PENDING.deadline_ns.load(Ordering::Relaxed)) {
        // The child starts a lease of its own: the parent may have exited, and its lease is not
        // renewed then.
        store_if_changed(&PENDING.deadline_ns, 0);
    }
    saved_session()
}

/// Returns true for the deadline of a lease: a session that the environment requested and `run`
/// extends. Such deadlines are odd numbers.
fn is_lease(deadline_ns: u64) -> bool {
    life::is_leased() && deadline_ns % 2 == 1
}

/// Returns true for the deadline of a session that a controller began.
fn has_end(deadline_ns: u64) -> bool {
    deadline_ns != 0 && !is_lease(deadline_ns)
}

/// Converts the number of a session in the child into its number in the parent.
fn number_in_parent(session: u64) -> u64 {
    session.wrapping_sub(1)
}

/// Returns the rate of the CPU session that a waiting child continues; 0 if there is none or timers
/// are not allowed.
pub fn pending_cpu_rate() -> u64 {
    let may_use_timers = SEGMENT_STATE.get() == WAITING && seccomp::allows_timers();
    let remembered = saved_session().filter(|_| may_use_timers);
    remembered.map_or(0, |start| start.cpu_rate)
}

/// Returns true in a child that has no segment yet but may get one.
pub fn is_waiting() -> bool {
    matches!(SEGMENT_STATE.get(), WAITING | MAKING)
}

/// Gives up the parent's tables (see [`tables::give_up`]).
fn drop_tables(may_be_in_use: bool) -> bool {
    let Some(base) = BASE.take() else { return true };
    // SAFETY: the mapping is our own, taken out of `BASE`. A forked child has one thread, and its
    // sessions and its epoch were forgotten before.
    unsafe { tables::give_up(base, may_be_in_use) }
}

/// Starts the countdown of a waiting child.
fn begin_countdown(local: &mut Local) {
    let is_immediate = PENDING.session.load(Ordering::Relaxed) != 0
        && (PENDING.interval.load(Ordering::Relaxed) <= 1
            || PENDING.cpu_rate.load(Ordering::Relaxed) != 0);
    local.epoch = WAITING_EPOCH;
    local.left = if is_immediate { -1 } else { CHILD_BYTES };
}

/// Handles an expired countdown in a waiting child: starts the countdown if the thread has none, or
/// creates the segment. Returns true if the thread may sample.
#[inline]
pub fn wait_as_child(local: &mut Local) -> bool {
    match SEGMENT_STATE.get() {
        OWN => true,
        _ => wait(local),
    }
}

#[cold]
fn wait(local: &mut Local) -> bool {
    match SEGMENT_STATE.since_epoch() {
        WAITING if local.epoch != WAITING_EPOCH => begin_countdown(local),
        WAITING => {}
        MAKING | LEAVING => return false,
        _ => {
            // Without a segment and a session, nothing changes before the epoch does.
            local.epoch = control().epoch(Ordering::Relaxed);
            local.left = i64::MAX / 2;
            return false;
        }
    }
    if local.left >= 0 {
        return false;
    }
    if !SEGMENT_STATE.claim_making() {
        return false;
    }
    if seccomp::is_installed() {
        // A seccomp filter may forbid what creating a file needs.
        life::give_up_segment();
        return false;
    }
    OWNER.store(sys::pid(), Ordering::Relaxed);
    let uncancelled = Uncancelled::begin();
    // Creating the segment takes 4 KiB of stack, which may be all that a coroutine has.
    if !ample_stack::call_on_own_stack(create_child_segment) {
        create_child_segment();
    }
    drop(uncancelled);
    local.epoch = 0;
    SEGMENT_STATE.is_own()
}

/// Creates the child's segment, and continues the parent's session there if it is still running.
extern "C" fn create_child_segment() {
    name::check_directory();
    // A session that `run` requested ends when `run` does.
    let start = session_to_continue().filter(|_| !name::is_moved());
    // A lease is not ended by a controller.
    let has_end = start.is_some_and(|start| has_end(start.deadline_ns));
    let parent = PENDING.parent.load(Ordering::Relaxed) as u32;
    life::create_segment(start, parent, false);
    if SEGMENT_STATE.is_own()
        && let Some(start) = start
    {
        let since = parent::session_state_since(number_in_parent(start.session), has_end);
        if matches!(since, ParentSession::Over) {
            parent::revoke_session(start.session);
        }
    }
    parent::forget();
}

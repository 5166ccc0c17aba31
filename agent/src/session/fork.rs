//! Forked children and their parent's segment, which they must not count into.
//!
//! At `fork` a child covers its parent's segment with a private page, which costs two system calls,
//! in a session four, and counts down what it allocates; it creates a segment of its own only when
//! that is worth it, and continues the session unless that is over by then. Most children execute
//! another program before.

use super::life::{self, Start};
use super::name;
use super::parent::{self, Standing};
use super::shards;
use super::tables;
use super::{BASE, LIFE, SESSIONS, control};
use crate::local::Local;
use crate::seccomp;
use crate::sys::{self, Uncancelled};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use shm_protocol::layout::Control;
use shm_protocol::owner::{LEAVING, MAKING, OWN, WAITING};

/// Bytes that a child may allocate before it gets a segment of its own. None where every
/// allocation is sampled.
const WORTH_IT: i64 = 64 << 10;
/// Epoch in the private page of a waiting child. No session of its own has it.
const WAITING_EPOCH: u32 = u32::MAX;

/// The session that continues in a child: what its parent was in when it forked.
struct Pending {
    /// 0: none.
    session: AtomicU64,
    interval: AtomicU64,
    cpu_rate: AtomicU64,
    thinning: AtomicU64,
    deadline_ns: AtomicU64,
    parent: AtomicU64,
}
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_state"))]
static PENDING: Pending = Pending {
    session: AtomicU64::new(0),
    interval: AtomicU64::new(0),
    cpu_rate: AtomicU64::new(0),
    thinning: AtomicU64::new(0),
    deadline_ns: AtomicU64::new(0),
    parent: AtomicU64::new(0),
};

/// Pid of the process whose segment is in view.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_state"))]
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Pid of the process that this memory belongs to.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_state"))]
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Notes the pid. At start-up.
pub fn start() {
    OWNER.store(sys::pid(), Ordering::Relaxed);
    PROCESS.store(sys::pid(), Ordering::Relaxed);
}

/// Whether the caller is another process in this one's memory, as the child of a `vfork` is until
/// it executes a program: what it does to its signals and filters is its own affair. A system call.
/// Before Linux 4.14 a copy cannot be distinguished from it, and none is recognised.
#[cold]
pub fn is_guest() -> bool {
    let is_known = super::mark::mark().is_some() && !super::is_copy();
    let process = PROCESS.load(Ordering::Relaxed);
    is_known && process != 0 && process != sys::pid()
}

/// Whether the caller is in the process whose segment is in view. A system call.
pub fn is_owners() -> bool {
    OWNER.load(Ordering::Relaxed) == sys::pid()
}

/// Stores what is not there yet: each page that a child writes to is copied for it.
fn put(to: &AtomicU64, value: u64) {
    if to.load(Ordering::Relaxed) != value {
        to.store(value, Ordering::Relaxed);
    }
}

/// Leaves the parent's segment: covers it with a private page that counts down, and forgets its
/// sessions. From here on nothing of the parent's is read or written. `shard` is the calling
/// thread's. `known`: its tables may still be used, by a sample that a signal handler has forked in
/// the middle of and that will continue in the child, or by a thread that noticed a session there.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_fork"))]
pub fn leave(local: &mut Local, shard: Option<u32>, known: bool) {
    PROCESS.store(sys::pid(), Ordering::Relaxed);
    let waits = LIFE.leave(
        || remember(control()),
        || {
            SESSIONS.forget();
            shards::keep_only(shard);
        },
        || super::cover_view() && drop_tables(known),
        || control().epoch.store(WAITING_EPOCH, Ordering::Release),
    );
    if waits {
        begin_countdown(local);
    } else {
        local.epoch = 0;
    }
}

/// Keeps what the parent was in.
fn remember(control: &Control) {
    put(&PENDING.parent, u64::from(OWNER.load(Ordering::Relaxed)));
    let epoch = control.epoch(Ordering::Acquire);
    let params = control.params_of(epoch);
    // A session of CPU time that a controller has begun is one of this process alone.
    let is_own = params.controller_pid.load(Ordering::Relaxed) == 0;
    let cpu_rate = match is_own {
        true => control.cpu[epoch as usize & 1].rate.load(Ordering::Relaxed),
        false => 0,
    };
    let interval = params.interval.load(Ordering::Relaxed);
    let session = match epoch {
        0 => 0,
        _ if interval == 0 && cpu_rate == 0 => 0,
        _ => params.session.load(Ordering::Relaxed).wrapping_add(1),
    };
    put(&PENDING.session, session);
    if session != 0 {
        put(&PENDING.interval, interval);
        put(&PENDING.cpu_rate, cpu_rate);
        put(&PENDING.thinning, params.thinning.load(Ordering::Relaxed));
        put(
            &PENDING.deadline_ns,
            params.deadline_ns.load(Ordering::Relaxed),
        );
        parent::keep();
    }
}

/// What the parent was in, unless its time is over.
fn remembered() -> Option<Start> {
    let session = PENDING.session.load(Ordering::Relaxed);
    let start = Start {
        session,
        interval: PENDING.interval.load(Ordering::Relaxed),
        cpu_rate: PENDING.cpu_rate.load(Ordering::Relaxed),
        thinning: PENDING.thinning.load(Ordering::Relaxed),
        deadline_ns: PENDING.deadline_ns.load(Ordering::Relaxed),
    };
    (session != 0 && !is_late(&start)).then_some(start)
}

fn is_late(start: &Start) -> bool {
    has_end(start.deadline_ns) && super::time::now_ns() >= start.deadline_ns
}

/// The session that a child is to continue with, unless it is over. For the thread that makes the
/// segment.
fn pending() -> Option<Start> {
    let session = PENDING.session.load(Ordering::Relaxed);
    if session == 0 {
        return None;
    }
    let has_end = has_end(PENDING.deadline_ns.load(Ordering::Relaxed));
    match parent::standing(parents(session), has_end) {
        Standing::Current(setting) => {
            // It may have been extended since, or its interval changed.
            put(&PENDING.interval, setting.interval);
            put(&PENDING.deadline_ns, setting.deadline_ns);
        }
        Standing::Unknown => {}
        Standing::Over => return None,
    }
    if is_lease(PENDING.deadline_ns.load(Ordering::Relaxed)) {
        // The child begins a lease of its own: the parent may not have been there to have its
        // extended.
        put(&PENDING.deadline_ns, 0);
    }
    remembered()
}

/// Whether this is the deadline of a session that the environment requested, which `run` extends.
fn is_lease(deadline_ns: u64) -> bool {
    life::is_leased() && deadline_ns % 2 == 1
}

/// Whether a controller has begun a session with this deadline.
fn has_end(deadline_ns: u64) -> bool {
    deadline_ns != 0 && !is_lease(deadline_ns)
}

/// The parent's number of a session that continues in its child.
fn parents(session: u64) -> u64 {
    session.wrapping_sub(1)
}

/// The rate of the session of CPU time that continues in a waiting child, if it may have timers; 0:
/// none.
pub fn pending_cpu_rate() -> u64 {
    let may = LIFE.get() == WAITING && seccomp::lets_timers_pass();
    let remembered = remembered().filter(|_| may);
    remembered.map_or(0, |start| start.cpu_rate)
}

/// Whether this is a child that has no segment, and may get one.
pub fn is_waiting() -> bool {
    matches!(LIFE.get(), WAITING | MAKING)
}

/// Gives up the parent's tables, see [`tables::give_up`].
fn drop_tables(known: bool) -> bool {
    let Some(base) = BASE.take() else { return true };
    // SAFETY: our own mapping. No other thread exists that could know of it, and sessions and epoch were forgotten
    // above.
    unsafe { tables::give_up(base, known) }
}

fn begin_countdown(local: &mut Local) {
    let exact = PENDING.session.load(Ordering::Relaxed) != 0
        && (PENDING.interval.load(Ordering::Relaxed) <= 1
            || PENDING.cpu_rate.load(Ordering::Relaxed) != 0);
    local.epoch = WAITING_EPOCH;
    local.left = if exact { -1 } else { WORTH_IT };
}

/// Called by a thread whose countdown is over, before it samples: in a waiting child it gets its
/// countdown, or makes the segment. Whether the thread may proceed to sample.
#[inline]
pub fn wait_as_child(local: &mut Local) -> bool {
    match LIFE.get() {
        OWN => true,
        _ => wait(local),
    }
}

#[cold]
fn wait(local: &mut Local) -> bool {
    match LIFE.since_epoch() {
        WAITING if local.epoch != WAITING_EPOCH => begin_countdown(local),
        WAITING => {}
        MAKING | LEAVING => return false,
        _ => {
            // No segment, no session: not to be asked again.
            local.epoch = control().epoch(Ordering::Relaxed);
            local.left = i64::MAX / 2;
            return false;
        }
    }
    if local.left >= 0 {
        return false;
    }
    if !LIFE.claim_making() {
        return false;
    }
    if seccomp::is_installed() {
        // What it takes to make a file may be forbidden by now.
        life::hide();
        return false;
    }
    OWNER.store(sys::pid(), Ordering::Relaxed);
    let uncancelled = Uncancelled::begin();
    make();
    drop(uncancelled);
    local.epoch = 0;
    LIFE.is_own()
}

/// Creates the child's segment, and continues its parent's session there if that is still running.
fn make() {
    name::settle();
    // A session that `run` requested is over with it.
    let start = pending().filter(|_| !name::is_moved());
    // A lease has none.
    let has_end = start.is_some_and(|start| has_end(start.deadline_ns));
    let parent = PENDING.parent.load(Ordering::Relaxed) as u32;
    life::make(start, parent, false);
    if let Some(start) = start.filter(|_| LIFE.is_own()) {
        let since = parent::standing_since(parents(start.session), has_end);
        if matches!(since, Standing::Over) {
            parent::take_back(start.session);
        }
    }
    parent::forget();
}

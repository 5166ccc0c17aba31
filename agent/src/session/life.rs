//! Creates and removes the segment of this process.

use super::identity;
use super::mark;
use super::name::{self, Path};
use super::tables;
use super::{BASE, BYTES, CONTROL, SEGMENT_STATE, SEGMENTS, SESSIONS, control, refuse, time};
use crate::environment::{is_set, number, variable};
use crate::{backend, musl, seccomp, sys};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sampling::thinning;
use shm_protocol::cpu::CpuSetting;
use shm_protocol::layout::{
    CONTROL_BYTES, DEFAULT_SEGMENT_BYTES, MAX_SEGMENT_BYTES, MIN_SEGMENT_BYTES, REFUSES_MEMORY,
    REFUSES_MUSL, REFUSES_SANITIZER,
};
use shm_protocol::owner;
use shm_protocol::segment::{Errno, Session, Tables};
use shm_protocol::{Geometry, clock};

/// Mean number of bytes between samples if the environment starts sampling without specifying it.
const DEFAULT_INTERVAL: u64 = 1024;

/// Maximum length of a lease, in seconds.
const MAX_LEASE_S: u64 = 3600;

/// Maximum number of samples per second of CPU time.
const MAX_RATE: u64 = 10_000;

/// Maximum share of the CPU time that may be named as a limit, in millionths.
const MAX_OVERHEAD: u64 = 500_000;

/// Path of our segment, for removing it.
struct OwnPath(UnsafeCell<Path>);
// SAFETY: written only by the thread that creates the segment: the constructor's, or in a child the
// one that moved `SEGMENT_STATE` to `MAKING`. Read by [`remove`] only after `SEGMENT_STATE` is
// `OWN`.
unsafe impl Sync for OwnPath {}
static PATH: OwnPath = OwnPath(UnsafeCell::new(Path::new()));

/// Number of the session that the program began for itself, whose profile is not kept when the
/// program exits normally; 0: none.
static OWN_SESSION: AtomicU64 = AtomicU64::new(0);

/// Length in ns of the lease of sessions that the environment requests: they end unless a
/// controller extends them in time. 0: they last for the life of the process.
static LEASE_NS: AtomicU64 = AtomicU64::new(0);

/// Returns true if sessions that the environment requests must be extended by a controller.
pub fn is_leased() -> bool {
    LEASE_NS.load(Ordering::Relaxed) != 0
}

/// Returns the deadline of a lease that begins now; 0 if there is no lease. Deadlines of leases are
/// odd numbers.
fn lease_end() -> u64 {
    match LEASE_NS.load(Ordering::Relaxed) {
        0 => 0,
        lease_ns => time::now_ns().saturating_add(lease_ns) | 1,
    }
}

/// Creates the segment (see [`super::start`]).
pub fn start(address_space: u64, samples_all: bool) {
    name::start();
    BYTES.store(segment_bytes(address_space), Ordering::Relaxed);
    let is_table_set = variable(c"MEM_PROFILER_TABLE").is_some();
    IS_TABLE_SET.store(is_table_set, Ordering::Relaxed);
    let is_requested = is_set(c"MEM_PROFILER_START");
    let interval = if samples_all { 1 } else { DEFAULT_INTERVAL };
    if samples_all && !is_requested {
        OWN_SESSION.store(1, Ordering::Relaxed);
    }
    let lease_s = number(c"MEM_PROFILER_LEASE").unwrap_or(0).min(MAX_LEASE_S);
    LEASE_NS.store(lease_s * 1_000_000_000, Ordering::Relaxed);
    let cpu_rate = number(c"MEM_PROFILER_CPU").unwrap_or(0).min(MAX_RATE);
    let samples_heap = is_requested || samples_all;
    let start = (samples_heap || cpu_rate != 0).then(|| InitialSession {
        session: 1,
        interval: if samples_heap {
            number(c"MEM_PROFILER_INTERVAL").unwrap_or(interval)
        } else {
            0
        },
        cpu_rate,
        thinning: if is_set(c"MEM_PROFILER_THIN") {
            u64::from(thinning::MAX_STEP)
        } else {
            0
        },
        max_overhead: number(c"MEM_PROFILER_MAX_OVERHEAD")
            .map_or(0, |share| share.min(MAX_OVERHEAD)),
        deadline_ns: 0,
    });
    SEGMENT_STATE.make();
    create_segment(start, 0, true);
}

/// Session that starts with the segment.
#[derive(Clone, Copy)]
pub(super) struct InitialSession {
    pub(super) session: u64,
    pub(super) interval: u64,
    pub(super) cpu_rate: u64,
    pub(super) thinning: u64,
    pub(super) max_overhead: u64,
    pub(super) deadline_ns: u64,
}

/// Returns the size of the segment with tables, of which only the used part becomes resident. It is
/// the requested one, or a small part of a limited address space and of the machine's memory,
/// within the limit of file sizes.
fn segment_bytes(address_space: u64) -> usize {
    let requested = number(c"MEM_PROFILER_TABLE");
    let default = || {
        let bytes = default_bytes(address_space, sys::memory());
        let max_bytes = usize::try_from(sys::limit(libc::RLIMIT_FSIZE)).unwrap_or(usize::MAX);
        bytes.min(max_bytes).max(MIN_SEGMENT_BYTES)
    };
    requested.map_or_else(default, requested_bytes) & !0xffff
}

/// Returns the default size: 1/16 of the memory, of which a session may use half. On a machine with
/// less than 4 GiB it is 1/64, so that each process of a session may fill its tables.
fn default_bytes(address_space: u64, memory: u64) -> usize {
    let share = if memory < 4 << 30 { 64 } else { 16 };
    let max_bytes = (address_space / 32).min(memory / share);
    let max_bytes = usize::try_from(max_bytes).unwrap_or(usize::MAX);
    DEFAULT_SEGMENT_BYTES.min(max_bytes).max(MIN_SEGMENT_BYTES)
}

/// Returns the size that a user requested, within the limits.
fn requested_bytes(bytes: u64) -> usize {
    // A table of 64 bytes makes no sense, so a small number without a unit is in MiB.
    let bytes = if bytes < 1 << 10 { bytes << 20 } else { bytes };
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    bytes.clamp(MIN_SEGMENT_BYTES, MAX_SEGMENT_BYTES)
}

/// Creates the file, maps its view, describes the process in it, and starts the requested session.
/// If that fails, nothing is shared and `SEGMENT_STATE` is `NONE`. `at_start`: the process has one
/// thread and has just been loaded.
pub(super) fn create_segment(start: Option<InitialSession>, forked_from: u32, at_start: bool) {
    // The kernel kills a process that exceeds the limit. It is read now, because programs set it
    // for children that they do not trust.
    let file_limit = sys::limit(libc::RLIMIT_FSIZE);
    // A seccomp filter may make `getpid` fail. Nobody would find the owner of such a segment.
    let has_pid = i32::try_from(sys::pid()).is_ok();
    if backend::is_left_out() || !has_pid || file_limit < CONTROL_BYTES as u64 {
        return give_up_segment();
    }
    name::check_directory();
    time::read_shift();
    let start_time = time::shift().machine_start_time(identity::start_time());
    // A session that `run` requested ends when `run` does.
    let start = start.filter(|_| !backend::is_inactive() && !name::is_moved());
    if forked_from != 0
        && let Some(start) = start
    {
        // The parent's own session continues as the child's own.
        let parents = start.session.wrapping_sub(1);
        let _ = OWN_SESSION.compare_exchange(
            parents,
            start.session,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
    }
    let mut tables = start.map(|start| {
        let bytes = BYTES.load(Ordering::Relaxed);
        let (units, max_units) = units_without_controller(&Geometry::of_segment(bytes));
        Tables {
            bytes,
            session: start.session,
            units,
            max_units,
        }
    });
    let mut refusal = None;
    let mut made = loop {
        let made = match tables {
            Some(tables) if tables.bytes as u64 > file_limit => Err(Errno(libc::EFBIG)),
            tables => name::create(start_time, tables, at_start),
        };
        match &mut tables {
            // A table that cannot grow later begins with as much as there is room for.
            Some(tables) if tables.units > 1 && matches!(made, Err(Errno(libc::ENOSPC))) => {
                tables.units /= 2;
            }
            _ => break made,
        }
    };
    if let (Err(error), Some(_)) = (&made, tables) {
        // Without room for a session, there is at least a segment in which a controller can start
        // one.
        refusal = Some(*error);
        made = name::create(start_time, None, at_start);
    }
    let Ok((whole, path)) = made else {
        return give_up_segment();
    };
    tables::forget_open_units();
    BASE.set(whole);
    // SAFETY: only this thread creates the segment (see `OwnPath`).
    unsafe { *PATH.0.get() = path };
    let first = match (start, refusal) {
        (Some(start), None) => first_session(start).map(Some),
        (_, refusal) => refusal.map_or(Ok(None), Err),
    };
    publish(start_time, forked_from, first);
}

/// Publishes the new segment as this process's, with the session that it begins with, or the reason
/// why there is none.
fn publish(start_time: u64, forked_from: u32, first: Result<Option<Session>, Errno>) {
    // SAFETY: the view belongs to a new segment, which nobody uses before its magic is written, and
    // all of which is backed by memory.
    let magic = unsafe {
        let bytes = BYTES.load(Ordering::Relaxed);
        identity::write(CONTROL.0.get().cast(), bytes, start_time, forked_from)
    };
    owner::publish(
        control(),
        magic,
        first.as_ref().ok().and_then(Option::as_ref),
    );
    SEGMENTS.fetch_add(1, Ordering::Relaxed);
    SEGMENT_STATE.own(mark::mark());
    if musl::is_here() {
        refuse(REFUSES_MUSL, 0);
    } else if backend::is_inactive() {
        refuse(REFUSES_SANITIZER, 0);
    } else if let Err(Errno(errno)) = first {
        refuse(REFUSES_MEMORY, errno);
    }
}

/// Decides that this process has no segment. Replaces the view, so that no other process can write
/// to it.
pub(super) fn give_up_segment() {
    SEGMENT_STATE.end();
    SESSIONS.forget();
    BASE.take();
    if !super::cover_view() {
        // Another process's commands stay in the view, but are not followed unless `SEGMENT_STATE`
        // is `OWN`.
        return;
    }
    control().epoch.store(0, Ordering::Release);
}

/// Returns a session that the process starts itself. Its bank was prepared with the segment, which
/// must also fit into the address space.
fn first_session(start: InitialSession) -> Result<Session, Errno> {
    super::map_whole()?;
    Ok(Session {
        number: start.session,
        interval: start.interval,
        deadline_ns: match start.deadline_ns {
            0 => lease_end(),
            deadline_ns => deadline_ns,
        },
        start_ns: time::now_ns(),
        start_unix_ns: clock::unix_ns(),
        controller_pid: 0,
        range_limit: 0,
        thinning: start.thinning,
        max_overhead: start.max_overhead,
        cpu: CpuSetting {
            rate: start.cpu_rate,
            avoid: 0,
        },
    })
}

/// True if the environment sets the size of the tables. Read at start-up: later, the program may
/// have overwritten or freed its environment.
static IS_TABLE_SET: AtomicBool = AtomicBool::new(false);

/// Maximum size of a bank in a session without a controller, in bytes. (A controller limits it by
/// the free memory.) Not used if the environment sets the size of the tables.
const MAX_UNCONTROLLED_BYTES: u64 = 32 << 20;

/// Returns the number of units with which a session without a controller begins, and its maximum.
/// The session begins with one unit if more can be added later, and otherwise with the maximum.
fn units_without_controller(geometry: &Geometry) -> (u32, u32) {
    let max_units = if IS_TABLE_SET.load(Ordering::Relaxed) {
        geometry.units
    } else {
        geometry.units_within(MAX_UNCONTROLLED_BYTES)
    };
    if mark::page().is_some_and(super::tables::can_populate) {
        (1, max_units)
    } else {
        (
            geometry.units_within(MAX_UNCONTROLLED_BYTES).min(max_units),
            max_units,
        )
    }
}

/// True if forked children do not continue the program's own session.
static LEAVES_CHILDREN_OUT: AtomicBool = AtomicBool::new(false);

/// Stops forked children from continuing the program's own session, because nobody would collect
/// their profiles: many of them end by `_exit`.
pub fn leave_children_out() {
    LEAVES_CHILDREN_OUT.store(true, Ordering::Relaxed);
}

/// Returns true if forked children do not continue this session.
pub(super) fn leaves_children_out(session: u64) -> bool {
    LEAVES_CHILDREN_OUT.load(Ordering::Relaxed) && is_program_session(session)
}

/// Marks the current session as the program's own.
pub fn mark_as_own() {
    OWN_SESSION.store(last_session(), Ordering::Relaxed);
}

/// Returns true if the program began this session for itself.
pub fn is_program_session(session: u64) -> bool {
    OWN_SESSION.load(Ordering::Relaxed) == session
}

/// Returns the number of the last session.
pub fn last_session() -> u64 {
    let params = control().params_of(control().last_epoch.load(Ordering::Relaxed));
    params.session.load(Ordering::Relaxed)
}

/// Returns true if the caller is a child of `vfork` that calls `exit` in its parent's memory.
/// Returns false if the program has installed a seccomp filter, which may forbid `getpid`.
pub fn is_in_foreign_memory() -> bool {
    let has_own = SEGMENT_STATE.is_own() && !mark::is_copy();
    !seccomp::is_installed() && (super::is_guest() || (has_own && !super::is_owner()))
}

/// Returns true if this process has a segment of its own.
pub fn has_own_segment() -> bool {
    !mark::is_copy() && SEGMENT_STATE.is_own()
}

/// Removes the segment's file, unless a seccomp filter may forbid that.
pub fn remove() {
    if !seccomp::is_absent() {
        return;
    }
    let saved = sys::errno();
    // SAFETY: the path was written before `SEGMENT_STATE` became `OWN`, and is only read since.
    if let Some(path) = unsafe { (*PATH.0.get()).as_c_str() } {
        sys::unlink(path);
    }
    sys::set_errno(saved);
}

/// Removes the segment's file at an exit without destructors, if no session has run, or records the
/// time of the exit. A child of `vfork` has its parent's segment in view, and leaves it alone. Safe
/// in a signal handler.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_fork"))]
pub fn remove_if_unused() {
    let has_own = !cfg!(test) && !mark::is_copy() && SEGMENT_STATE.is_own();
    let is_unused = has_own && control().last_epoch.load(Ordering::Relaxed) == 0;
    let is_counting = has_own && control().epoch.load(Ordering::Relaxed) != 0;
    if !(is_unused || is_counting) || seccomp::is_installed() || !super::is_owner() {
        return;
    }
    if is_unused && seccomp::is_absent() {
        remove();
    } else if let Some(status) = super::status() {
        // A file that may not be removed here is removed by the next program that sweeps.
        super::record_exit(status);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_takes_a_small_part_of_the_memory() {
        const MIB: u64 = 1 << 20;
        let bytes = |space: u64, memory: u64| default_bytes(space, memory) as u64;
        assert_eq!(bytes(u64::MAX, u64::MAX), 2048 * MIB);
        assert_eq!(bytes(u64::MAX, 16 << 30), 1024 * MIB);
        assert_eq!(bytes(u64::MAX, 4000 * MIB), 62 * MIB + MIB / 2);
        assert_eq!(bytes(u64::MAX, 256 * MIB), 4 * MIB);
        assert_eq!(bytes(320 * MIB, 16 << 30), 10 * MIB);
        assert_eq!(bytes(1, 1) as usize, MIN_SEGMENT_BYTES);
        assert_eq!(requested_bytes(64) as u64, 64 * MIB);
        let geometry = Geometry::of_segment(2 << 30);
        assert!(
            geometry.bytes_in(geometry.units_within(MAX_UNCONTROLLED_BYTES)) as u64
                <= MAX_UNCONTROLLED_BYTES
        );
        assert_eq!(requested_bytes(5 << 20) as u64, 5 * MIB);
        assert_eq!(requested_bytes(u64::MAX), MAX_SEGMENT_BYTES);
    }
}

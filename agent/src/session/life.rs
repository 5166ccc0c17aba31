//! Creation and removal of the segment.

use super::identity;
use super::mark;
use super::name::{self, Path};
use super::{BASE, BYTES, CONTROL, LIFE, SEGMENTS, SESSIONS, control, refuse, time};
use crate::environment::{is_set, number, variable};
use crate::{backend, musl, seccomp, sys, thinning};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, Ordering};
use shm_protocol::cpu::CpuSetting;
use shm_protocol::layout::{
    CONTROL_BYTES, DEFAULT_SEGMENT_BYTES, MAX_SEGMENT_BYTES, MIN_SEGMENT_BYTES, REFUSES_MEMORY,
    REFUSES_MUSL, REFUSES_SANITIZER,
};
use shm_protocol::owner;
use shm_protocol::segment::{Errno, Session, Tables};
use shm_protocol::{Geometry, clock};

/// Interval if the environment starts sampling without naming one.
const DEFAULT_INTERVAL: u64 = 1024;

/// Maximum length of a lease, in seconds.
const MAX_LEASE_S: u64 = 3600;

/// Maximum number of samples in a second of CPU time.
const MOST_RATE: u64 = 10_000;

/// The path of our segment, needed to remove it.
struct OwnPath(UnsafeCell<Path>);
// SAFETY: written only by whoever makes the segment, which is one thread: the constructor's,
// or in a child the one that moved `LIFE` to `MAKING`; read by [`remove`], after `LIFE`
// has said `OWN`.
unsafe impl Sync for OwnPath {}
static PATH: OwnPath = OwnPath(UnsafeCell::new(Path::new()));

/// The session that the program began for itself: at an orderly exit its profile is not kept. 0:
/// none.
static OWN_SESSION: AtomicU64 = AtomicU64::new(0);

/// Length of the lease of sessions that the environment requests: they end unless a controller
/// extends them in time. 0: they last for the life of the process.
static LEASE_NS: AtomicU64 = AtomicU64::new(0);

/// Whether sessions that the environment requests have to be extended by a controller.
pub fn is_leased() -> bool {
    LEASE_NS.load(Ordering::Relaxed) != 0
}

/// Deadline of a session that begins now without one, odd as that of a session that is to be
/// extended; 0: none.
fn lease_end() -> u64 {
    match LEASE_NS.load(Ordering::Relaxed) {
        0 => 0,
        lease_ns => time::now_ns().saturating_add(lease_ns) | 1,
    }
}

/// See [`super::start`].
pub fn start(address_space: u64, samples_all: bool) {
    name::start();
    BYTES.store(segment_bytes(address_space), Ordering::Relaxed);
    let is_asked_for = is_set(c"MEM_PROFILER_START");
    let interval = if samples_all { 1 } else { DEFAULT_INTERVAL };
    if samples_all && !is_asked_for {
        OWN_SESSION.store(1, Ordering::Relaxed);
    }
    let lease_s = number(c"MEM_PROFILER_LEASE").unwrap_or(0).min(MAX_LEASE_S);
    LEASE_NS.store(lease_s * 1_000_000_000, Ordering::Relaxed);
    let cpu_rate = number(c"MEM_PROFILER_CPU").unwrap_or(0).min(MOST_RATE);
    let samples_heap = is_asked_for || samples_all;
    let start = (samples_heap || cpu_rate != 0).then(|| Start {
        session: 1,
        interval: match samples_heap {
            true => number(c"MEM_PROFILER_INTERVAL").unwrap_or(interval),
            false => 0,
        },
        cpu_rate,
        thinning: match is_set(c"MEM_PROFILER_THIN") {
            true => u64::from(thinning::MOST),
            false => 0,
        },
        deadline_ns: 0,
    });
    LIFE.make();
    make(start, 0, true);
}

/// A session that starts with the segment.
#[derive(Clone, Copy)]
pub(super) struct Start {
    pub(super) session: u64,
    pub(super) interval: u64,
    pub(super) cpu_rate: u64,
    pub(super) thinning: u64,
    pub(super) deadline_ns: u64,
}

/// Size of the segment with tables, of which only what is used takes memory: as requested, or a
/// small part of a limited address space and of the machine's memory, in a file of a size that the
/// process may have.
fn segment_bytes(address_space: u64) -> usize {
    let asked = number(c"MEM_PROFILER_TABLE");
    let default = || {
        let bytes = default_bytes(address_space, sys::memory());
        let most = usize::try_from(sys::limit(libc::RLIMIT_FSIZE)).unwrap_or(usize::MAX);
        bytes.min(most).max(MIN_SEGMENT_BYTES)
    };
    asked.map_or_else(default, asked_bytes) & !0xffff
}

/// A 16th of the memory, of which a session may use half; on a machine of less than 4 GiB a 64th,
/// so that each of a session's processes may fill its table.
fn default_bytes(address_space: u64, memory: u64) -> usize {
    let share = if memory < 4 << 30 { 64 } else { 16 };
    let most = (address_space / 32).min(memory / share);
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    DEFAULT_SEGMENT_BYTES.min(most).max(MIN_SEGMENT_BYTES)
}

fn asked_bytes(bytes: u64) -> usize {
    // A table of 64 bytes makes no sense: a small number without a unit is in MiB.
    let bytes = if bytes < 1 << 10 { bytes << 20 } else { bytes };
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    bytes.clamp(MIN_SEGMENT_BYTES, MAX_SEGMENT_BYTES)
}

/// Makes the file, maps its views and describes the process in it, then starts the session that is
/// requested. Without success nothing is shared, and `LIFE` is `NONE`. `at_start`: the process has
/// one thread and has just been loaded.
pub(super) fn make(start: Option<Start>, forked_from: u32, at_start: bool) {
    // The kernel kills a process that makes a larger file. The limit is the one of this moment: programs
    // set it for children that they trust with nothing.
    let file_limit = sys::limit(libc::RLIMIT_FSIZE);
    if backend::is_left_out() || file_limit < CONTROL_BYTES as u64 {
        return hide();
    }
    name::settle();
    time::settle();
    let start_time = time::shift().start_time(identity::start_time());
    // A session that `run` requested is over with it.
    let start = start.filter(|_| !backend::stands_aside() && !name::is_moved());
    if let Some(start) = start.filter(|_| forked_from != 0) {
        // What belonged to its parent now belongs to it.
        let parents = start.session.wrapping_sub(1);
        let next = (Ordering::Relaxed, Ordering::Relaxed);
        let _ = OWN_SESSION.compare_exchange(parents, start.session, next.0, next.1);
    }
    let tables = start.map(|start| {
        let bytes = BYTES.load(Ordering::Relaxed);
        let (units, most) = units_alone(&Geometry::of_segment(bytes));
        Tables {
            bytes,
            session: start.session,
            units,
            most,
        }
    });
    let mut refusal = None;
    let mut made = match tables {
        Some(tables) if tables.bytes as u64 > file_limit => Err(Errno(libc::EFBIG)),
        tables => name::create(start_time, tables, at_start),
    };
    if let (Err(error), Some(_)) = (&made, tables) {
        // No room for a session: at least be there for a controller to start one.
        refusal = Some(*error);
        made = name::create(start_time, None, at_start);
    }
    let Ok((whole, path)) = made else {
        return hide();
    };
    BASE.set(whole);
    // SAFETY: this thread alone makes the segment, see `OwnPath`.
    unsafe { *PATH.0.get() = path };
    let first = match (start, refusal) {
        (Some(start), None) => first_session(start).map(Some),
        (_, refusal) => refusal.map_or(Ok(None), Err),
    };
    own(start_time, forked_from, first);
}

/// Takes the new segment as this process's, with the session that it begins with, or why there
/// is none.
fn own(start_time: u64, forked_from: u32, first: Result<Option<Session>, Errno>) {
    // SAFETY: the new segment's view, seen by nobody before its magic; all of it is backed by
    // memory.
    let magic = unsafe {
        let bytes = BYTES.load(Ordering::Relaxed);
        identity::write(CONTROL.0.get().cast(), bytes, start_time, forked_from)
    };
    owner::appear(
        control(),
        magic,
        first.as_ref().ok().and_then(Option::as_ref),
    );
    SEGMENTS.fetch_add(1, Ordering::Relaxed);
    LIFE.own(mark::mark());
    if musl::is_here() {
        refuse(REFUSES_MUSL, 0);
    } else if backend::stands_aside() {
        refuse(REFUSES_SANITIZER, 0);
    } else if let Err(Errno(errno)) = first {
        refuse(REFUSES_MEMORY, errno);
    }
}

/// There will be no segment: nothing that anybody else can write stays in view.
pub(super) fn hide() {
    LIFE.end();
    SESSIONS.forget();
    BASE.take();
    if !super::cover_view() {
        // Another process's commands stay in view; `LIFE` keeps them from being followed.
        return;
    }
    control().epoch.store(0, Ordering::Release);
}

/// A session of our own making. Its bank was prepared with the segment, which must also fit
/// into the address space.
fn first_session(start: Start) -> Result<Session, Errno> {
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
        cpu: CpuSetting {
            rate: start.cpu_rate,
            avoid: 0,
        },
    })
}

/// Maximum number of bytes of a bank that is filled while no controller looks after it, which
/// knows how much memory there is, unless the program's environment says how large it may be.
const ALONE_BYTES: u64 = 32 << 20;

/// Units of a bank that a session of our own making begins with, and that it may have without a
/// controller: few at first where more can be added later, all where not.
fn units_alone(geometry: &Geometry) -> (u32, u32) {
    let most = match variable(c"MEM_PROFILER_TABLE") {
        Some(_) => geometry.units,
        None => geometry.units_within(ALONE_BYTES),
    };
    match mark::page().is_some_and(super::tables::can_populate) {
        true => (1, most),
        false => (geometry.units_within(ALONE_BYTES).min(most), most),
    }
}

/// The session that runs is the program's own.
pub fn take_for_own() {
    OWN_SESSION.store(last_session(), Ordering::Relaxed);
}

/// Whether the program began this session for itself.
pub fn is_programs_own(session: u64) -> bool {
    OWN_SESSION.load(Ordering::Relaxed) == session
}

/// Number of the last session.
pub fn last_session() -> u64 {
    let params = control().params_of(control().last_epoch.load(Ordering::Relaxed));
    params.session.load(Ordering::Relaxed)
}

/// Whether a child of `vfork` that calls `exit` runs this in its parent's memory. Unknown where the program has
/// installed a filter, which may forbid `getpid`; those before it have let it pass at start-up.
pub fn is_in_anothers_memory() -> bool {
    let owns = LIFE.is_own() && !mark::is_copy();
    !seccomp::is_installed() && (super::is_guest() || owns && !super::is_owners())
}

/// Whether this process has a segment of its own.
pub fn has_own() -> bool {
    !mark::is_copy() && LIFE.is_own()
}

/// Removes the segment's file, unless a filter may forbid that.
pub fn remove() {
    if !seccomp::is_absent() {
        return;
    }
    let saved = sys::errno();
    // SAFETY: written before `LIFE` became `OWN`, and not since.
    if let Some(path) = unsafe { (*PATH.0.get()).as_c_str() } {
        sys::unlink(path);
    }
    sys::set_errno(saved);
}

/// Removes the segment's file at an end without destructors, if no session has run. A child of `vfork`
/// has its parent's segment in view, and leaves it alone. Safe in a signal handler.
pub fn leave_at_once() {
    let has_own = !cfg!(test) && !mark::is_copy() && LIFE.is_own();
    let is_unused = has_own && control().last_epoch.load(Ordering::Relaxed) == 0;
    if is_unused && seccomp::is_absent() && super::is_owners() {
        remove();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_a_small_part_of_what_there_is() {
        const MIB: u64 = 1 << 20;
        let bytes = |space: u64, memory: u64| default_bytes(space, memory) as u64;
        assert_eq!(bytes(u64::MAX, u64::MAX), 2048 * MIB);
        assert_eq!(bytes(u64::MAX, 16 << 30), 1024 * MIB);
        assert_eq!(bytes(u64::MAX, 4000 * MIB), 62 * MIB + MIB / 2);
        assert_eq!(bytes(u64::MAX, 256 * MIB), 4 * MIB);
        assert_eq!(bytes(320 * MIB, 16 << 30), 10 * MIB);
        assert_eq!(bytes(1, 1) as usize, MIN_SEGMENT_BYTES);
        assert_eq!(asked_bytes(64) as u64, 64 * MIB);
        let geometry = Geometry::of_segment(2 << 30);
        assert!(geometry.bytes_in(geometry.units_within(ALONE_BYTES)) as u64 <= ALONE_BYTES);
        assert_eq!(asked_bytes(5 << 20) as u64, 5 * MIB);
        assert_eq!(asked_bytes(u64::MAX), MAX_SEGMENT_BYTES);
    }
}

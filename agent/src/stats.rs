//! Work that a sampling thread does at most once a second: publishes jemalloc's statistics, checks
//! the modules, and calibrates the cycle counter.

// Decision 25: `mallctl` without a wrapper.
use crate::backend::jemalloc;
#[cfg(not(test))]
use crate::keeping;
use crate::{cycles, module, session};
use core::ffi::{CStr, c_void};
use core::mem::size_of;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU64, Ordering};
use shm_protocol::layout::AllocatorStats;

/// Interval between two refreshes, in ns.
const REFRESH_EVERY_NS: u64 = 1_000_000_000;

/// Time of the last refresh, in ns.
static LAST: AtomicU64 = AtomicU64::new(0);

/// Cycle counter at start-up, for comparison with later readings.
static FIRST_CYCLES: AtomicU64 = AtomicU64::new(0);
/// Clock at start-up, in ns.
static FIRST_NS: AtomicU64 = AtomicU64::new(0);
/// Nanoseconds per 2^20 cycles; 0 before the first calibration.
static SCALE: AtomicU64 = AtomicU64::new(0);

/// Maximum number of cycles that are converted to a time: a few ms.
const MAX_CYCLES: u64 = 1 << 24;

/// Converts cycles to nanoseconds. Returns `None` right after the process's start, and if the
/// number is so large that the thread must have been suspended.
pub fn cycles_to_ns(cycles: u64) -> Option<u64> {
    let mut scale = SCALE.load(Ordering::Relaxed);
    if scale == 0 {
        calibrate();
        scale = SCALE.load(Ordering::Relaxed);
    }
    (scale != 0 && cycles < MAX_CYCLES).then(|| (cycles * scale) >> 20)
}

/// Converts nanoseconds to cycles. Returns 0 before the first calibration.
pub fn ns_to_cycles(ns: u64) -> u64 {
    (ns << 20)
        .checked_div(SCALE.load(Ordering::Relaxed))
        .unwrap_or(0)
}

/// Minimum time between two readings for calibration, in ns.
const CALIBRATION_NS: u64 = 50_000;

/// Records the cycle counter and the clock at start-up.
pub fn start() {
    calibrate();
}

/// Calibrates the cycle counter with the clock.
pub fn calibrate() {
    let now_ns = shm_protocol::clock::precise_ns();
    let Some(cycles) = cycles::read() else {
        return;
    };
    let first = FIRST_CYCLES.load(Ordering::Relaxed);
    let first_ns = FIRST_NS.load(Ordering::Relaxed);
    if first == 0 {
        FIRST_NS.store(now_ns, Ordering::Relaxed);
        FIRST_CYCLES.store(cycles, Ordering::Relaxed);
    } else if cycles > first && now_ns.saturating_sub(first_ns) >= CALIBRATION_NS {
        let ns = u128::from(now_ns - first_ns) << 20;
        SCALE.store((ns / u128::from(cycles - first)) as u64, Ordering::Relaxed);
    }
}

/// Refreshes statistics, modules and calibration if that is due. Returns true if it was.
#[inline]
pub fn refresh(now_ns: u64) -> bool {
    let last = LAST.load(Ordering::Relaxed);
    let is_due = now_ns.wrapping_sub(last) >= REFRESH_EVERY_NS;
    if is_due {
        refresh_now(last, now_ns);
    }
    is_due
}

#[cold]
fn refresh_now(last: u64, now_ns: u64) {
    if LAST
        .compare_exchange(last, now_ns, Ordering::Relaxed, Ordering::Relaxed)
        .is_err()
    {
        return;
    }
    calibrate();
    // Usually done by jemalloc's calls, but a thread whose objects are all sampled makes few of
    // them.
    #[cfg(not(test))]
    keeping::return_if_due(null_mut());
    module::find_unloaded();
    let Some(status) = session::status() else {
        return;
    };
    status
        .range_bytes
        .store(crate::range::reserved() as u64, Ordering::Relaxed);
    if !crate::backend::is_system() {
        publish(&status.allocator);
    }
    let taken_ns = session::time::shift().to_machine(now_ns);
    status.allocator.taken_ns.store(taken_ns, Ordering::Release);
}

/// Publishes jemalloc's statistics. Not called if jemalloc is not the program's allocator.
fn publish(stats: &AllocatorStats) {
    refresh_jemalloc();
    for (name, counter) in [
        (c"stats.allocated", &stats.allocated),
        (c"stats.active", &stats.active),
        (c"stats.metadata", &stats.metadata),
        (c"stats.resident", &stats.resident),
        (c"stats.mapped", &stats.mapped),
        (c"stats.retained", &stats.retained),
    ] {
        counter.store(read(name), Ordering::Relaxed);
    }
}

/// Makes jemalloc refresh its statistics.
fn refresh_jemalloc() {
    let mut epoch = 1u64;
    let pointer: *mut c_void = (&raw mut epoch).cast();
    // SAFETY: jemalloc reads a `u64` of ours.
    unsafe {
        jemalloc::mallctl(
            c"epoch".as_ptr(),
            null_mut(),
            null_mut(),
            pointer,
            size_of::<u64>(),
        )
    };
}

/// Returns free memory of all arenas and of the calling thread's cache to the system. Returns true
/// if there was any.
pub fn purge() -> bool {
    // 4096 is `MALLCTL_ARENAS_ALL` of jemalloc(3): all arenas together.
    let run_control = |name: &CStr| {
        // SAFETY: the control has no input and no output.
        unsafe { jemalloc::mallctl(name.as_ptr(), null_mut(), null_mut(), null_mut(), 0) };
    };
    run_control(c"thread.tcache.flush");
    refresh_jemalloc();
    let free = read(c"stats.arenas.4096.pdirty") + read(c"stats.arenas.4096.pmuzzy");
    run_control(c"arena.4096.purge");
    free > 0
}

/// Memory of jemalloc, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Objects of the program, including thread caches.
    pub allocated: usize,
    /// Resident memory.
    pub resident: usize,
    /// Address space.
    pub mapped: usize,
    /// Resident memory that is free and will be returned to the system.
    pub dirty: usize,
}

impl Usage {
    /// Returns the resident memory that is in no object.
    pub fn free(&self) -> usize {
        self.resident.saturating_sub(self.allocated)
    }
}

/// Reads jemalloc's memory usage.
pub fn usage() -> Usage {
    refresh_jemalloc();
    let bytes = |name| read(name) as usize;
    let pages = bytes(c"stats.arenas.4096.pdirty") + bytes(c"stats.arenas.4096.pmuzzy");
    Usage {
        allocated: bytes(c"stats.allocated"),
        resident: bytes(c"stats.resident"),
        mapped: bytes(c"stats.mapped"),
        dirty: pages * bytes(c"arenas.page"),
    }
}

/// Reads a statistic or a setting of jemalloc.
fn read(name: &CStr) -> u64 {
    let mut value = 0usize;
    let mut length = size_of::<usize>();
    let pointer: *mut c_void = (&raw mut value).cast();
    // SAFETY: jemalloc writes a `size_t` of ours.
    unsafe { jemalloc::mallctl(name.as_ptr(), pointer, &mut length, null_mut(), 0) };
    value as u64
}

//! Work that is done at most once a second, by a thread that samples: publishing jemalloc's
//! statistics, and measuring the rate of the cycle counter.

// Decision 25: `mallctl` without a wrapper.
use crate::{cycles, module, session};
use core::ffi::{CStr, c_void};
use core::mem::size_of;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU64, Ordering};
use shm_protocol::layout::AllocatorStats;
use tikv_jemalloc_sys as jemalloc;

const PERIOD_NS: u64 = 1_000_000_000;

static LAST: AtomicU64 = AtomicU64::new(0);

/// The cycle counter and the clock at start-up, to compare later readings with.
static FIRST_CYCLES: AtomicU64 = AtomicU64::new(0);
static FIRST_NS: AtomicU64 = AtomicU64::new(0);
/// Nanoseconds of 2^20 cycles; 0: not known yet.
static SCALE: AtomicU64 = AtomicU64::new(0);

/// Nanoseconds of a number of cycles; `None` in the first second of a process, and for
/// what can only be time in which the thread was not running.
pub fn cycles_to_ns(cycles: u64) -> Option<u64> {
    let scale = SCALE.load(Ordering::Relaxed);
    (scale != 0 && cycles < 1 << 20).then(|| (cycles * scale) >> 20)
}

/// Least time between two readings that calibrate the cycle counter, since the clock is coarse.
const CALIBRATION_NS: u64 = 100_000_000;

/// Notes cycle counter and clock at start-up, to compare later readings with.
pub fn start() {
    calibrate(shm_protocol::clock::now_ns());
}

/// Compares the cycle counter with the clock.
fn calibrate(now_ns: u64) {
    let Some(cycles) = cycles::read() else {
        return;
    };
    let (first, then) = (
        FIRST_CYCLES.load(Ordering::Relaxed),
        FIRST_NS.load(Ordering::Relaxed),
    );
    if first == 0 {
        FIRST_NS.store(now_ns, Ordering::Relaxed);
        FIRST_CYCLES.store(cycles, Ordering::Relaxed);
    } else if cycles > first && now_ns.saturating_sub(then) >= CALIBRATION_NS {
        let ns = u128::from(now_ns - then) << 20;
        SCALE.store((ns / u128::from(cycles - first)) as u64, Ordering::Relaxed);
    }
}

/// Does the once-a-second work if it is due; whether it was.
#[inline]
pub fn refresh(now_ns: u64) -> bool {
    let last = LAST.load(Ordering::Relaxed);
    let due = now_ns.wrapping_sub(last) >= PERIOD_NS;
    if due {
        refresh_now(last, now_ns);
    }
    due
}

#[cold]
fn refresh_now(last: u64, now_ns: u64) {
    if LAST
        .compare_exchange(last, now_ns, Ordering::Relaxed, Ordering::Relaxed)
        .is_err()
    {
        return;
    }
    calibrate(now_ns);
    module::look_for_changes();
    let Some(status) = session::status() else {
        return;
    };
    status
        .range_bytes
        .store(crate::range::reserved() as u64, Ordering::Relaxed);
    if !crate::backend::is_system() {
        publish(&status.allocator);
    }
    let at = session::time::shift().to_machine(now_ns);
    status.allocator.taken_ns.store(at, Ordering::Release);
}

/// Publishes what jemalloc says of itself. Of the program's own allocator nothing is asked:
/// it would take its locks.
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

/// Makes jemalloc count again.
fn refresh_jemalloc() {
    let mut epoch = 1u64;
    let at: *mut c_void = (&raw mut epoch).cast();
    // SAFETY: jemalloc reads a u64.
    unsafe {
        jemalloc::mallctl(
            c"epoch".as_ptr(),
            null_mut(),
            null_mut(),
            at,
            size_of::<u64>(),
        )
    };
}

/// Gives free memory of all arenas, and of the calling thread's cache, back to the system; whether
/// there was any.
pub fn purge() -> bool {
    // The number of all arenas together, by jemalloc(3): `MALLCTL_ARENAS_ALL`.
    let done = |name: &CStr| {
        // SAFETY: controls that take and give nothing.
        unsafe { jemalloc::mallctl(name.as_ptr(), null_mut(), null_mut(), null_mut(), 0) };
    };
    done(c"thread.tcache.flush");
    refresh_jemalloc();
    let free = read(c"stats.arenas.4096.pdirty") + read(c"stats.arenas.4096.pmuzzy");
    done(c"arena.4096.purge");
    free > 0
}

/// What jemalloc has at this moment, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// In objects of the program's, thread caches included.
    pub allocated: usize,
    /// In memory.
    pub resident: usize,
    /// Of address space.
    pub mapped: usize,
    /// Free, and in memory until it is given back.
    pub dirty: usize,
}

impl Usage {
    /// What is in memory and in no object.
    pub fn free(&self) -> usize {
        self.resident.saturating_sub(self.allocated)
    }
}

/// Asks jemalloc for them.
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

fn read(name: &CStr) -> u64 {
    let mut value = 0usize;
    let mut length = size_of::<usize>();
    let at: *mut c_void = (&raw mut value).cast();
    // SAFETY: jemalloc writes a size_t.
    unsafe { jemalloc::mallctl(name.as_ptr(), at, &mut length, null_mut(), 0) };
    value as u64
}

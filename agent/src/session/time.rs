//! Conversion between this process's clocks and the machine's.
//!
//! In a time namespace, the clocks of a process are shifted. The times in the segment are by the
//! machine's clocks, so that processes can compare them.

use crate::sys::{self, read_file};
use core::ffi::CStr;
use core::sync::atomic::{AtomicI64, Ordering};
use shm_protocol::clock::{self, Shift};

/// Shift of the monotonic clock, in ns.
static MONOTONIC_NS: AtomicI64 = AtomicI64::new(0);
/// Shift of the clock that also counts suspended time, in ns.
static BOOTTIME_NS: AtomicI64 = AtomicI64::new(0);

/// Reads the shift of this process's clocks. A forked child reads it again: it may be in another
/// time namespace than its parent.
pub fn read_shift() {
    /// Inode of the machine's own time namespace (`PROC_TIME_INIT_INO` of the kernel's
    /// `linux/proc_ns.h`), in which clocks are not shifted.
    const MACHINES: u64 = 0xefff_fffa;
    let mut buffer = [0u8; 256];
    let namespace = inode(c"/proc/self/ns/time");
    // Zero: the kernel has no time namespaces.
    let is_shifted = namespace != 0
        && namespace != MACHINES
        // The file describes the namespace of future children.
        && namespace == inode(c"/proc/self/ns/time_for_children");
    let shift = if is_shifted {
        Shift::parse(read_file(c"/proc/self/timens_offsets", &mut buffer))
    } else {
        Shift::NONE
    };
    MONOTONIC_NS.store(shift.monotonic_ns, Ordering::Relaxed);
    BOOTTIME_NS.store(shift.boottime_ns, Ordering::Relaxed);
}

/// Returns the shift that [`read_shift`] read.
pub fn shift() -> Shift {
    Shift {
        monotonic_ns: MONOTONIC_NS.load(Ordering::Relaxed),
        boottime_ns: BOOTTIME_NS.load(Ordering::Relaxed),
    }
}

/// Returns the current time of the machine's coarse monotonic clock.
pub fn now_ns() -> u64 {
    shift().to_machine(clock::now_ns())
}

fn inode(path: &CStr) -> u64 {
    sys::status(path).map_or(0, |status| status.st_ino)
}

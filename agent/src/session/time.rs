//! The machine's time. In a time namespace the process's clocks are shifted; what goes into
//! the segment is not.

use crate::sys::{self, read_file};
use core::ffi::CStr;
use core::sync::atomic::{AtomicI64, Ordering};
use shm_protocol::clock::{self, Shift};

static MONOTONIC_NS: AtomicI64 = AtomicI64::new(0);
static BOOTTIME_NS: AtomicI64 = AtomicI64::new(0);

/// Reads how far this process's clocks are shifted. A forked child may be in another time
/// namespace than its parent, so it reads again.
pub fn settle() {
    let mut buffer = [0u8; 256];
    let shift = match is_settled() {
        true => Shift::parse(read_file(c"/proc/self/timens_offsets", &mut buffer)),
        false => Shift::NONE,
    };
    MONOTONIC_NS.store(shift.monotonic_ns, Ordering::Relaxed);
    BOOTTIME_NS.store(shift.boottime_ns, Ordering::Relaxed);
}

/// The shift that [`settle`] found.
pub fn shift() -> Shift {
    Shift {
        monotonic_ns: MONOTONIC_NS.load(Ordering::Relaxed),
        boottime_ns: BOOTTIME_NS.load(Ordering::Relaxed),
    }
}

/// Now, by the machine's coarse monotonic clock.
pub fn now_ns() -> u64 {
    shift().to_machine(clock::now_ns())
}

/// Whether the process is in the time namespace that the kernel's file names, which is that of its
/// future children.
fn is_settled() -> bool {
    inode(c"/proc/self/ns/time") == inode(c"/proc/self/ns/time_for_children")
}

fn inode(path: &CStr) -> u64 {
    sys::status(path).map_or(0, |status| status.st_ino)
}

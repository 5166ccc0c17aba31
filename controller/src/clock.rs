//! The machine's time, which segments use, even if this program is in a time namespace of its own.

use std::fs;
use std::sync::OnceLock;

use shm_protocol::clock::{self, Shift};

/// Nanoseconds of the machine's `CLOCK_MONOTONIC_COARSE`.
pub fn now_ns() -> u64 {
    shift().to_machine(clock::now_ns())
}

/// How far this process's clocks are shifted.
pub fn shift() -> Shift {
    static SHIFT: OnceLock<Shift> = OnceLock::new();
    *SHIFT.get_or_init(|| {
        // The file is about the namespace of future children, which may be another one.
        let namespace = |name: &str| fs::read_link(format!("/proc/self/ns/{name}")).ok();
        match namespace("time") == namespace("time_for_children") {
            true => fs::read("/proc/self/timens_offsets").map_or(Shift::NONE, |t| Shift::parse(&t)),
            false => Shift::NONE,
        }
    })
}

//! The machine's time, which segments are kept in, also where this program is in a time
//! namespace of its own.

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
        std::fs::read("/proc/self/timens_offsets").map_or(Shift::NONE, |text| Shift::parse(&text))
    })
}

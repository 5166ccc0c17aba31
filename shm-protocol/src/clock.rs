//! Time as the segment keeps it.
//!
//! Births and deaths of objects are stored in *ticks* of 2^22 ns (4.19 ms) of
//! `CLOCK_MONOTONIC_COARSE`, which the vdso answers from memory without even
//! reading the cycle counter. Differences are taken modulo 2^32.

/// Nanoseconds in one tick.
pub const TICK_NS: u64 = 1 << 22;

/// Nanoseconds of `CLOCK_MONOTONIC_COARSE`: monotonic, a few milliseconds coarse,
/// about 5 ns to read. Keeps `errno`: the call cannot fail for this clock.
#[must_use]
pub fn now_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC_COARSE)
}

/// Nanoseconds since the Unix epoch.
#[must_use]
pub fn unix_ns() -> u64 {
    read(libc::CLOCK_REALTIME)
}

/// The tick that `ns` of [`now_ns`] falls in.
#[must_use]
pub fn tick_of(ns: u64) -> u32 {
    (ns / TICK_NS) as u32
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut ts = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `ts` is a valid timespec that outlives the call.
    unsafe { libc::clock_gettime(clock, &mut ts) };
    (ts.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(ts.tv_nsec as u64)
}

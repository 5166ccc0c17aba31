//! Clocks and units of time in the segment.
//!
//! Births and deaths of objects are stored in *ticks* of 2^22 ns (4.19 ms) of
//! `CLOCK_MONOTONIC_COARSE`, which the vdso reads from memory without even reading the cycle
//! counter. Differences are taken modulo 2^32.
//!
//! Times in a segment are by the machine's clocks. A process in a time namespace
//! (`time_namespaces(7)`), whose clocks are shifted, translates with [`Shift`].

/// Nanoseconds in one tick.
pub const TICK_NS: u64 = 1 << 22;

/// Returns `CLOCK_MONOTONIC_COARSE` in ns: monotonic, with a resolution of a few milliseconds,
/// about 5 ns to read. Keeps `errno`: the call cannot fail for this clock.
#[must_use]
pub fn now_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC_COARSE)
}

/// Returns `CLOCK_MONOTONIC` in ns, about 20 ns to read: the clock of [`now_ns`] with its full
/// resolution.
#[must_use]
pub fn precise_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// Returns the nanoseconds since boot, including the time for which the machine was suspended.
#[must_use]
pub fn boot_ns() -> u64 {
    read(libc::CLOCK_BOOTTIME)
}

/// Returns the nanoseconds since the Unix epoch. The clock can be set, so it neither orders events
/// nor measures durations.
#[must_use]
pub fn unix_ns() -> u64 {
    read(libc::CLOCK_REALTIME)
}

/// Returns the tick that `ns` of [`now_ns`] falls in.
#[must_use]
pub fn tick_of(ns: u64) -> u32 {
    (ns / TICK_NS) as u32
}

/// Returns true if `event` was at or after `start`, where both are ticks at most 208 days before
/// `now`. The plain difference would be ambiguous after 104 days.
#[inline]
#[must_use]
pub fn is_since(event: u32, start: u32, now: u32) -> bool {
    // Maximum number of ticks by which another thread's clock may be ahead.
    const AHEAD: u32 = 1 << 16;
    let now = now.wrapping_add(AHEAD);
    now.wrapping_sub(event) <= now.wrapping_sub(start)
}

/// Nanoseconds in a tick of `/proc/PID/stat`, whose rate is part of the kernel's ABI.
const STAT_TICK_NS: i64 = 10_000_000;

/// Offset of a process's clocks from the machine's, in a time namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shift {
    /// Offset of `CLOCK_MONOTONIC` in ns.
    pub monotonic_ns: i64,
    /// Offset of `CLOCK_BOOTTIME` in ns, which applies to start times in `/proc/PID/stat`.
    pub boottime_ns: i64,
}

impl Shift {
    /// No shift, as in most processes.
    pub const NONE: Self = Self {
        monotonic_ns: 0,
        boottime_ns: 0,
    };

    /// Parses `/proc/self/timens_offsets`. Clocks that it does not list are not shifted.
    #[must_use]
    pub fn parse(text: &[u8]) -> Self {
        let offset = |clock: &str| {
            text.split(|byte| *byte == b'\n')
                .find_map(|line| offset_ns(line, clock))
        };
        Self {
            monotonic_ns: offset("monotonic").unwrap_or(0),
            boottime_ns: offset("boottime").unwrap_or(0),
        }
    }

    /// Converts a value of [`now_ns`] that was read in the process to the machine's time.
    #[must_use]
    pub fn to_machine(self, own_ns: u64) -> u64 {
        own_ns.wrapping_sub(self.monotonic_ns as u64)
    }

    /// Converts a time of the machine to the value of [`now_ns`] in the process.
    #[must_use]
    pub fn to_own(self, machine_ns: u64) -> u64 {
        machine_ns.wrapping_add_signed(self.monotonic_ns)
    }

    /// Converts a start time that the process read from `/proc/PID/stat` to the machine's value.
    /// Exact if the shift is a multiple of 10 ms.
    #[must_use]
    pub fn machine_start_time(self, own_ticks: u64) -> u64 {
        own_ticks.wrapping_sub(self.boottime_ns.div_euclid(STAT_TICK_NS) as u64)
    }
}

/// Parses a line with a clock's name, seconds and nanoseconds. Returns the sum in ns if the line is
/// that of `clock`.
fn offset_ns(line: &[u8], clock: &str) -> Option<i64> {
    let mut words = core::str::from_utf8(line).ok()?.split_ascii_whitespace();
    if words.next()? != clock {
        return None;
    }
    let mut number = || words.next()?.parse::<i64>().ok();
    number()?.checked_mul(1_000_000_000)?.checked_add(number()?)
}

/// Parses the kernel's boot id: 32 hexadecimal digits, with dashes between them. Times of the
/// machine are meaningful only together with it.
pub fn parse_boot_id(text: &[u8]) -> Option<[u8; 16]> {
    let mut id = [0; 16];
    let mut count = 0;
    let digits = text
        .iter()
        .filter_map(|byte| char::from(*byte).to_digit(16));
    for digit in digits {
        let byte: &mut u8 = id.get_mut(count / 2)?;
        *byte = (*byte << 4) | digit as u8;
        count += 1;
    }
    (count == 32).then_some(id)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_ordered_in_a_session_of_half_a_year() {
        const DAY: u32 = (86_400 * 1_000_000_000_u64 / TICK_NS) as u32;
        for start in [0, 5 * DAY, u32::MAX - 30 * DAY] {
            for days in [0, 1, 103, 105, 180, 200] {
                let now = start.wrapping_add(days * DAY);
                assert!(is_since(start, start, now) && is_since(now, start, now));
                assert!(is_since(now.wrapping_add(1), start, now), "a clock ahead");
                assert!(!is_since(start.wrapping_sub(1), start, now), "{days}");
                assert!(!is_since(start.wrapping_sub(5 * DAY), start, now), "{days}");
            }
        }
    }

    #[test]
    fn a_boot_id_has_sixteen_bytes() {
        let id = parse_boot_id(b"00112233-4455-6677-8899-aabbccddeeff\n").unwrap();
        assert_eq!((id[1], id[15]), (0x11, 0xff));
        assert_eq!(parse_boot_id(b"0011"), None);
        assert_eq!(
            parse_boot_id(b"00112233-4455-6677-8899-aabbccddeeff0"),
            None
        );
    }

    #[test]
    fn a_shift_is_parsed_and_applied_in_both_directions() {
        let shift =
            Shift::parse(b"monotonic       86400 500000000\nboottime        -3600         0\n");
        assert_eq!(shift.monotonic_ns, 86_400_500_000_000);
        assert_eq!(shift.boottime_ns, -3_600_000_000_000);
        assert_eq!(shift.to_machine(86_400_500_000_007), 7);
        assert_eq!(shift.to_own(7), 86_400_500_000_007);
        assert_eq!(shift.machine_start_time(5), 360_005);
    }

    #[test]
    fn a_missing_offset_means_no_shift() {
        let texts: [&[u8]; 4] = [
            b"",
            b"monotonic\nboottime 1",
            b"monotonic 9223372036854775807 1\n",
            b"\xff\n",
        ];
        for text in texts {
            assert_eq!(Shift::parse(text), Shift::NONE);
        }
        assert_eq!(Shift::NONE.machine_start_time(42), 42);
    }
}

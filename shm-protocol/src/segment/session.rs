//! Settings of a session.

use crate::cpu::CpuSetting;

/// Settings of a session, passed from the program that starts it to the segment's owner.
#[derive(Clone, Copy, Debug)]
pub struct Session {
    /// Number, counted from 1; usually one more than the last ([`Session::next_number`]).
    pub number: u64,
    /// Mean number of bytes between samples; 0 if only CPU time is sampled.
    pub interval: u64,
    /// End in ns of [`crate::clock::now_ns`]; 0 if none.
    pub deadline_ns: u64,
    /// Start in ns of [`crate::clock::now_ns`].
    pub start_ns: u64,
    /// Start, Unix ns.
    pub start_unix_ns: u64,
    /// Pid of the controller; 0 if the agent started the session itself.
    pub controller_pid: u64,
    /// Maximum address space for sampled objects in bytes; 0 if only the agent's own limit applies.
    pub range_limit: u64,
    /// Logarithm of the maximum thinning: at well-known call sites, at least one of 2^`thinning`
    /// due samples is taken. With 0, every due sample is taken. [`Session::PROBE`] marks a probe.
    pub thinning: u64,
    /// Maximum share of the process's CPU time that sampling may take, in millionths: the agent
    /// widens the interval to keep to it. 0 if the interval is fixed.
    pub max_overhead: u64,
    /// CPU sampling parameters.
    pub cpu: CpuSetting,
}

impl Session {
    /// Value of `thinning` in a probe: a session that samples each allocation for a moment and
    /// whose samples are discarded. A probe preserves the bank and the parameters of the last real
    /// session, and reuses those of the last probe.
    pub const PROBE: u64 = u64::MAX;

    /// Returns true if the session is a probe.
    #[must_use]
    pub fn is_probe(&self) -> bool {
        self.thinning == Self::PROBE
    }

    /// Returns the number of the next session, which is a probe if `is_probe`.
    #[must_use]
    pub fn next_number(&self, is_probe: bool) -> u64 {
        // Banks alternate, except that a probe reuses the bank of the probe before it.
        let step = if is_probe && self.is_probe() { 2 } else { 1 };
        self.number.checked_add(step).unwrap_or(1)
    }
}

/// Period of a session in which its interval stayed the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntervalPeriod {
    /// Start in ns of [`crate::clock::now_ns`].
    pub from_ns: u64,
    /// Mean bytes between samples.
    pub interval: u64,
    /// Fraction of the process's CPU time that the agent used in this period, in millionths; `None`
    /// if not measured.
    pub overhead: Option<u32>,
}

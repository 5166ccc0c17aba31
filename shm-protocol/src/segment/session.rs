//! The settings of a session.

use crate::cpu::CpuSetting;

/// Settings of a session, from its starter to the segment's owner.
#[derive(Clone, Copy, Debug)]
pub struct Session {
    /// Number, from 1, one more than the last.
    pub number: u64,
    /// Mean bytes between samples, at least 1; 0: none, CPU time alone is sampled.
    pub interval: u64,
    /// End, ns of [`crate::clock::now_ns`]; 0: none.
    pub deadline_ns: u64,
    /// Start, ns of [`crate::clock::now_ns`].
    pub start_ns: u64,
    /// Start, Unix ns.
    pub start_unix_ns: u64,
    /// Pid of the controller; 0: the agent itself.
    pub controller_pid: u64,
    /// Most address space to reserve for sampled objects; 0: no limit but the agent's own.
    pub range_limit: u64,
    /// For well-known call sites at least one due sample in 2^this is taken; 0: each one;
    /// [`Session::PROBE`]: see there.
    pub thinning: u64,
    /// What is wanted of CPU time.
    pub cpu: CpuSetting,
}

impl Session {
    /// The thinning of a session that is only a query: for a moment, each allocation is
    /// sampled (which leaves none out), and the samples are not wanted. It keeps the bank and the
    /// parameters of the session before, and has those of the last probe instead.
    pub const PROBE: u64 = u64::MAX;

    /// Whether it is a probe.
    #[must_use]
    pub fn is_probe(&self) -> bool {
        self.thinning == Self::PROBE
    }

    /// The number of the next session, by what that is.
    #[must_use]
    pub fn next_number(&self, is_probe: bool) -> u64 {
        // Banks alternate.
        let step = if is_probe && self.is_probe() { 2 } else { 1 };
        self.number.checked_add(step).unwrap_or(1)
    }
}

/// One interval of a session that had several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntervalPeriod {
    /// From when on, ns of [`crate::clock::now_ns`].
    pub from_ns: u64,
    /// Mean bytes between samples.
    pub interval: u64,
    /// Share of the process's CPU time that the agent took in that time, in millionths.
    pub overhead: Option<u32>,
}

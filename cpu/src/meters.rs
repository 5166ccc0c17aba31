//! Weights samples of per-processor events, which have no counts per thread or process. Such
//! samples catch every thread of a process, even one that lives only for a moment.
//!
//! A process's CPU time ([`Meter`]) is divided among its samples once each processor has taken
//! many. If each sample were weighted as it arrives, and two threads ran at the same time, the
//! thread that is sampled a moment earlier would be assigned the time of both.
//!
//! The kernel reports how many samples were lost, but not which processes they belong to. So each
//! process's loss is computed from its clock.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::meter::{Clock, Meter, StackKey, Weighting, Weights};

/// Number of periods after which samples are weighted, within the limits below.
const WEIGH_PERIODS: u64 = 20;
const MIN_INTERVAL: Duration = Duration::from_millis(100);
const MAX_INTERVAL: Duration = Duration::from_secs(1);

/// Meters of all processes.
pub(crate) struct Meters<C> {
    period: u64,
    clock: C,
    processes: HashMap<i32, Meter>,
    /// Time when samples were last weighted.
    weighed: Instant,
}

impl<C: Clock> Meters<C> {
    /// Starts without processes. `period` is the time between samples, in nanoseconds.
    pub(crate) fn new(period: u64, clock: C) -> Self {
        Self {
            period: period.max(1),
            clock,
            processes: HashMap::new(),
            weighed: Instant::now(),
        }
    }

    /// Starts accounting for a process with these threads. Returns the value of its clock in ns.
    pub(crate) fn begin(&mut self, pid: i32, tids: &[i32]) -> u64 {
        let meter = Meter::new(pid, tids, &self.clock);
        let clock_ns = meter.reported();
        self.processes.insert(pid, meter);
        clock_ns
    }

    /// Records that samples of unknown processes were lost.
    pub(crate) fn record_loss(&mut self) {
        for meter in self.processes.values_mut() {
            meter.is_lossy = true;
        }
    }

    /// Counts a sample of a thread.
    pub(crate) fn count(&mut self, pid: i32, tid: i32, stack: StackKey) {
        if let Some(process) = self.process(pid) {
            process.count(tid, stack);
        }
    }

    /// Returns the meter of a process.
    pub(crate) fn process(&mut self, pid: i32) -> Option<&mut Meter> {
        self.processes.get_mut(&pid)
    }

    /// Returns true if samples are due to be weighted.
    pub(crate) fn is_due(&self) -> bool {
        let periods = Duration::from_nanos(self.period.saturating_mul(WEIGH_PERIODS));
        self.weighed.elapsed() >= periods.clamp(MIN_INTERVAL, MAX_INTERVAL)
    }

    /// Weights the samples of all processes. Returns the result for each that had any.
    pub(crate) fn weigh_all(&mut self, weighting: Weighting) -> Vec<(i32, Weights)> {
        self.weighed = Instant::now();
        let period = self.period;
        let clock = &self.clock;
        let processes = self.processes.iter_mut();
        processes
            .filter_map(|(pid, meter)| Some((*pid, meter.weigh(*pid, period, weighting, clock)?)))
            .collect()
    }

    /// Weights the samples of one process before it executes another program.
    pub(crate) fn weigh_before_exec(&mut self, pid: i32) -> Option<Weights> {
        let process = self.processes.get_mut(&pid)?;
        let weighed = process.weigh(pid, self.period, Weighting::Periods, &self.clock);
        process.handle_exec(pid, &self.clock);
        weighed
    }

    /// Drops processes that have exited.
    pub(crate) fn forget(&mut self, pids: &[i32]) {
        self.processes.retain(|pid, _| !pids.contains(pid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::tests::{FIRST, FakeClocks, OTHER};

    fn meters(pids: &[i32]) -> Meters<FakeClocks> {
        let mut meters = Meters::new(10, FakeClocks::default());
        for pid in pids {
            meters.begin(*pid, &[]);
        }
        meters
    }

    #[test]
    fn each_process_is_weighted_by_its_own_clock() {
        let mut meters = meters(&[7, 8]);
        for (pid, now) in [(7, 136), (8, 11)] {
            meters.clock.processes.insert(pid, now);
            // The sampled thread exits.
            meters.count(pid, pid, FIRST);
            meters.count(pid, pid, OTHER);
            meters.process(pid).expect("it began").handle_exit(pid);
        }
        let mut weighed = meters.weigh_all(Weighting::Clock);
        weighed.sort_by_key(|(pid, _)| *pid);
        let times = (weighed.iter()).flat_map(|(_, weighed)| weighed.times.values());
        assert_eq!(times.copied().collect::<Vec<u64>>(), [68, 68, 5, 6]);
        assert_eq!(meters.weigh_all(Weighting::Last), []);
        meters.forget(&[7]);
        meters.count(7, 7, FIRST);
        assert_eq!(meters.weigh_all(Weighting::Last), []);
    }

    #[test]
    fn losses_are_reported_for_processes_whose_clocks_advanced() {
        let mut meters = meters(&[7, 8]);
        let round = |meters: &mut Meters<FakeClocks>, pids: &[i32], now: u64| {
            for pid in pids {
                meters.count(*pid, *pid, FIRST);
                meters.count(*pid, *pid, FIRST);
            }
            meters.clock.processes.extend([(7, now), (8, now)]);
            let mut lost: Vec<(i32, u64)> = (meters.weigh_all(Weighting::Last).iter())
                .map(|(pid, weighed)| (*pid, weighed.lost))
                .collect();
            lost.sort_unstable();
            lost
        };
        // Late samples do not count as lost.
        assert_eq!(round(&mut meters, &[7, 8], 100), [(7, 0), (8, 0)]);
        meters.record_loss();
        // Process 8 has no sample now: its loss is reported with the next one.
        assert_eq!(round(&mut meters, &[7], 200), [(7, 8)]);
        assert_eq!(round(&mut meters, &[7, 8], 220), [(7, 0), (8, 10)]);
        meters.record_loss();
        meters.forget(&[7, 8]);
        assert_eq!(round(&mut meters, &[7, 8], 500), []);
    }
}

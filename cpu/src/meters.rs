//! What samples stand for where the kernel's events sample processors, and count nothing of a
//! thread or a process.
//!
//! Such samples hit all that a process does alike, threads that live for a moment too. So what it
//! used since its clock was last read is shared evenly by the samples that came of it meanwhile.
//! The clock is read when there are samples: the next ones stand for what went by without any.

use std::collections::HashMap;

/// Clocks of processes.
pub(crate) struct Meters {
    period: u64,
    /// The CPU time of each when its clock was last read.
    told: HashMap<i32, u64>,
    /// What each sample of this round stands for, by process.
    shares: HashMap<i32, u64>,
}

impl Meters {
    /// Of samples that come after `period` nanoseconds each.
    pub(crate) fn new(period: u64) -> Self {
        Self {
            period,
            told: HashMap::new(),
            shares: HashMap::new(),
        }
    }

    /// A process is sampled from now on, when its clock says this.
    pub(crate) fn begin(&mut self, pid: i32, now: Option<u64>) {
        self.told.insert(pid, now.unwrap_or(0));
    }

    /// Takes in that processes have so many samples each. `clock` gives a process's clock.
    pub(crate) fn round(
        &mut self,
        samples: &HashMap<i32, u64>,
        clock: impl Fn(i32) -> Option<u64>,
    ) {
        self.shares.clear();
        for (&pid, &count) in samples {
            // One that has ended has no clock.
            let share = clock(pid).map_or(self.period, |now| {
                let before = self.told.insert(pid, now).unwrap_or(now);
                now.saturating_sub(before) / count.max(1)
            });
            self.shares.insert(pid, share);
        }
    }

    /// What a sample of this process stands for, in this round.
    pub(crate) fn share(&self, pid: i32) -> u64 {
        self.shares.get(&pid).copied().unwrap_or(self.period)
    }

    /// Processes ended.
    pub(crate) fn forget(&mut self, pids: &[i32]) {
        self.told.retain(|pid, _| !pids.contains(pid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_share_what_their_process_used_since_the_last_ones() {
        let mut meters = Meters::new(10);
        meters.begin(7, Some(100));
        meters.begin(8, None);
        let mut round = |seven: Option<u64>, eight: Option<u64>| {
            let samples = HashMap::from([(7, 2), (8, 1)]);
            meters.round(&samples, |pid| if pid == 7 { seven } else { eight });
            [meters.share(7), meters.share(8)]
        };
        assert_eq!(round(Some(124), Some(11)), [12, 11]);
        // Most of the samples were lost.
        assert_eq!(round(Some(324), Some(12)), [100, 1]);
        // One has ended; the other's clock went backwards.
        assert_eq!(round(Some(300), None), [0, 10]);
        assert_eq!(round(Some(320), Some(15)), [10, 3]);
        // A process of which there was no sample.
        assert_eq!(meters.share(9), 10);
        meters.forget(&[7]);
        meters.round(&HashMap::from([(7, 1)]), |_| Some(1000));
        assert_eq!(meters.share(7), 0);
    }
}

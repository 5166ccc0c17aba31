//! Weights samples of one process by CPU time (per-CPU sampling; see `meters`).
//!
//! Sample counts alone are biased when thread scheduling is in step with the sampling period. So a
//! thread that has used at least `MIN_PERIODS` since its last report is weighted by its own clock,
//! whatever its number of samples. The rest of the process's CPU time is divided among threads that
//! have ended or have used little, in proportion to their samples. That rest includes the time of
//! such threads without any sample.
//!
//! Clocks alone decide which rule applies to a thread. If the number of samples did, luck would
//! count twice.

#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;

use crate::recording::StackId;

/// Target of a sample's weight: the program's serial number and the stack's node, as returned by
/// the recording. `None`: a sample without a stack.
pub(crate) type Place = Option<StackId>;

/// Minimum CPU time, in periods, from which on a thread is weighted by its own clock.
const MIN_PERIODS: u64 = 4;
/// Maximum number of pending samples of a thread whose clock shows too little CPU time. It is
/// weighted by samples then, since some kernels do not maintain the clock.
const MAX_PENDING_SAMPLES: u64 = 16;

/// Source of CPU time, in nanoseconds. Returns `None` for a process or thread that has ended.
pub(crate) trait Clock {
    fn process(&self, pid: i32) -> Option<u64>;
    fn thread(&self, pid: i32, tid: i32) -> Option<u64>;
}

/// Method of weighting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    /// By clocks. Samples of threads that have used little stay pending.
    Clock,
    /// By clocks, without leaving samples pending.
    Last,
    /// By one period each, but not by more than the process has used. The rest belongs to its next
    /// program.
    Periods,
}

/// Samples that are not weighted yet.
#[derive(Default)]
struct Pending {
    places: BTreeMap<Place, u64>,
    count: u64,
}

impl Pending {
    fn add(&mut self, place: Place, count: u64) {
        let known = self.places.entry(place).or_default();
        *known = known.saturating_add(count);
        self.count = self.count.saturating_add(count);
    }

    fn append(&mut self, other: Self) {
        for (place, count) in other.places {
            self.add(place, count);
        }
    }
}

/// Nanoseconds for each target.
type Times = BTreeMap<Place, u64>;

/// CPU time of a thread by its own clock, and its samples.
struct Own {
    tid: i32,
    ns: u64,
    samples: Pending,
}

/// Samples that share the rest, and the number of them for each thread that continues.
struct Shared {
    samples: Pending,
    tids: Vec<(i32, u64)>,
}

#[derive(Default)]
struct Thread {
    /// CPU time reported so far; `None` if the first value of its clock is not known.
    reported: Option<u64>,
    samples: Pending,
    /// Value of its clock, if it was read this time.
    read: Option<u64>,
    /// True if there were samples since its clock was last read.
    is_new: bool,
}

/// CPU time accounting of one process.
#[derive(Default)]
pub(crate) struct Meter {
    /// CPU time reported so far.
    reported: u64,
    /// Value of its clock when samples were last weighted.
    read: u64,
    count: u64,
    /// True if samples may have been lost since they were last weighted.
    pub is_lossy: bool,
    threads: BTreeMap<i32, Thread>,
    /// Samples of threads that have ended.
    ended: Pending,
}

/// Result of weighting.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Weighed {
    /// Nanoseconds for each target.
    pub times: Times,
    /// Number of samples that were lost.
    pub lost: u64,
    /// Value of the process's clock; `None` if it has ended.
    pub clock: Option<u64>,
}

impl Meter {
    /// Starts accounting for a process with these threads.
    pub(crate) fn new(pid: i32, tids: &[i32], clock: &impl Clock) -> Self {
        // Threads are read first, so that together they have not used more than the process.
        let thread = |tid: &i32| {
            let reported = clock.thread(pid, *tid)?;
            let thread = Thread {
                reported: Some(reported),
                ..Thread::default()
            };
            Some((*tid, thread))
        };
        let threads = tids.iter().filter_map(thread).collect();
        let now = clock.process(pid).unwrap_or(0);
        Self {
            reported: now,
            read: now,
            threads,
            ..Self::default()
        }
    }

    /// Returns the CPU time reported so far; at first, the clock's value when sampling started.
    pub(crate) fn reported(&self) -> u64 {
        self.reported
    }

    /// Handles the creation of a thread. A known thread may have been found before its record is
    /// read.
    pub(crate) fn forked(&mut self, tid: i32) {
        let thread = self.threads.entry(tid).or_default();
        thread.reported.get_or_insert(0);
    }

    /// Handles the exit of a thread.
    pub(crate) fn exit(&mut self, tid: i32) {
        if let Some(thread) = self.threads.remove(&tid) {
            self.ended.append(thread.samples);
        }
    }

    /// Counts a sample of a thread.
    pub(crate) fn count(&mut self, tid: i32, place: Place) {
        let thread = self.threads.entry(tid).or_default();
        thread.samples.add(place, 1);
        thread.is_new = true;
        self.count += 1;
    }

    /// Handles an exec: the thread that made it has the process's id from now on.
    pub(crate) fn executed(&mut self, pid: i32, clock: &impl Clock) {
        self.threads.clear();
        let reported = clock.thread(pid, pid);
        self.threads.entry(pid).or_default().reported = reported;
    }

    /// Weights the samples. Returns `None` if none can be reported.
    pub(crate) fn weigh(
        &mut self,
        pid: i32,
        period: u64,
        scale: Scale,
        clock: &impl Clock,
    ) -> Option<Weighed> {
        let own = match scale {
            Scale::Clock | Scale::Last => self.own(pid, period, clock),
            Scale::Periods => Vec::new(),
        };
        // Read after those of its threads, so that these have not used more together.
        let now = clock.process(pid);
        let all = scale != Scale::Clock || now.is_none();
        let shared = self.shared(all);
        if own.is_empty() && shared.samples.count == 0 {
            return None;
        }
        let waiting = self.threads.values().map(|thread| thread.samples.count);
        let waiting = shared.samples.count.saturating_add(waiting.sum());
        let periods = waiting.saturating_mul(period);
        let used = now.map(|now| now.saturating_sub(self.reported));
        let used = match (used, scale) {
            // A process that has ended has no clock.
            (None, _) => periods.saturating_add(sum(&own)),
            (Some(used), Scale::Periods) => used.min(periods),
            (Some(used), Scale::Clock | Scale::Last) => used,
        };
        let mut reported = Weighed {
            clock: now,
            ..Weighed::default()
        };
        let by_clocks = sum(&own);
        // No more is assigned than the process has used. At the end, all of it is assigned,
        // including time that threads' clocks do not show yet and the time of threads without
        // samples.
        let has_all = all && shared.samples.count == 0;
        let scaled = (has_all || by_clocks > used).then_some(used);
        self.assign_own(own, scaled, &mut reported.times);
        let mut left = used - scaled.unwrap_or(by_clocks);
        if all && shared.samples.count > 0 {
            // What is shared includes what all threads have used so far.
            let threads = self.threads.values_mut();
            threads.for_each(|thread| thread.reported = thread.read);
        }
        left -= self.assign_shared(shared, left, waiting, &mut reported.times);
        self.reported = self.reported.saturating_add(used - left);
        if let Some(now) = now {
            let due = now.saturating_sub(self.read) / period;
            if std::mem::take(&mut self.is_lossy) {
                reported.lost = due.saturating_sub(self.count);
            }
            self.read = now;
        }
        self.count = 0;
        Some(reported)
    }

    /// Returns the threads with new samples whose clocks show that they have used enough.
    fn own(&mut self, pid: i32, period: u64, clock: &impl Clock) -> Vec<Own> {
        let mut own = Vec::new();
        let mut gone = Vec::new();
        for (tid, thread) in &mut self.threads {
            thread.read = None;
            if !std::mem::take(&mut thread.is_new) {
                continue;
            }
            let Some(now) = clock.thread(pid, *tid) else {
                gone.push(*tid);
                continue;
            };
            thread.read = Some(now);
            let periods = thread.samples.count.saturating_mul(period);
            let reported = *thread.reported.get_or_insert(now.saturating_sub(periods));
            let ns = now.saturating_sub(reported);
            if ns >= period.saturating_mul(MIN_PERIODS) {
                let samples = std::mem::take(&mut thread.samples);
                own.push(Own {
                    tid: *tid,
                    ns,
                    samples,
                });
            }
        }
        gone.into_iter().for_each(|tid| self.exit(tid));
        own
    }

    /// Returns the samples of threads that have ended or have too many pending ones. `all`: of all
    /// threads.
    fn shared(&mut self, all: bool) -> Shared {
        let mut shared = Shared {
            samples: std::mem::take(&mut self.ended),
            tids: Vec::new(),
        };
        for (tid, thread) in &mut self.threads {
            let count = thread.samples.count;
            if count >= if all { 1 } else { MAX_PENDING_SAMPLES } {
                shared.samples.append(std::mem::take(&mut thread.samples));
                if !all {
                    shared.tids.push((*tid, count));
                }
            }
        }
        shared
    }

    /// Assigns each thread's time to its samples. `scaled`: total to which the times are scaled.
    fn assign_own(&mut self, own: Vec<Own>, scaled: Option<u64>, times: &mut Times) {
        let all = sum(&own);
        let mut so_far: u64 = 0;
        for Own { tid, ns, samples } in own {
            let before = so_far;
            so_far = before.saturating_add(ns);
            let ns = scaled.map_or(ns, |to| part(to, so_far, all) - part(to, before, all));
            self.add_reported(tid, ns);
            assign(ns, samples, times);
        }
    }

    /// Assigns the other threads their part of the time that is left, and returns it.
    fn assign_shared(&mut self, shared: Shared, left: u64, waiting: u64, times: &mut Times) -> u64 {
        let count = shared.samples.count;
        if count == 0 {
            return 0;
        }
        let ns = part(left, count, waiting);
        for (tid, samples) in shared.tids {
            self.add_reported(tid, part(ns, samples, count));
        }
        assign(ns, shared.samples, times);
        ns
    }

    fn add_reported(&mut self, tid: i32, ns: u64) {
        if let Some(reported) = self
            .threads
            .get_mut(&tid)
            .and_then(|it| it.reported.as_mut())
        {
            *reported = reported.saturating_add(ns);
        }
    }
}

fn sum(own: &[Own]) -> u64 {
    let parts = own.iter().map(|own| own.ns);
    parts.fold(0, u64::saturating_add)
}

/// Returns `ns` × `of` / `whole`. `whole` is not 0.
fn part(ns: u64, of: u64, whole: u64) -> u64 {
    (u128::from(ns) * u128::from(of) / u128::from(whole)) as u64
}

/// Divides a time among samples, exactly.
fn assign(ns: u64, samples: Pending, times: &mut Times) {
    let mut so_far = 0;
    for (place, count) in samples.places {
        let before = part(ns, so_far, samples.count);
        so_far += count;
        *times.entry(place).or_default() += part(ns, so_far, samples.count) - before;
    }
}

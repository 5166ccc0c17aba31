//! Weights samples of one process by CPU time (per-CPU sampling; see `meters`).
//!
//! Sample counts alone are biased when thread scheduling is in step with the sampling period. So a
//! thread that has used at least `MIN_PERIODS` since its last report is weighted by its own clock,
//! whatever its number of samples. The rest of the process's CPU time is divided among threads that
//! have exited or have used little, in proportion to their samples. That rest includes the time of
//! such threads that have no sample at all. Clocks alone decide which rule applies to a thread. If
//! the number of samples decided, its randomness would enter the weights twice.

#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;

use crate::recording::StackId;

/// Stack that a sample's weight is added to: the program's serial number and the stack's node, as
/// returned by the recording. `None` if the sample has no stack.
pub(crate) type StackKey = Option<StackId>;

/// Minimum CPU time, in periods, for a thread to be weighted by its own clock.
const MIN_PERIODS: u64 = 4;
/// Maximum number of pending samples of a thread whose clock shows too little CPU time. It is
/// weighted by samples then, since some kernels do not maintain the clock.
const MAX_PENDING_SAMPLES: u64 = 16;

/// Source of CPU times, in nanoseconds. `None` for a process or thread that has exited.
pub(crate) trait Clock {
    fn process(&self, pid: i32) -> Option<u64>;
    fn thread(&self, pid: i32, tid: i32) -> Option<u64>;
}

/// Method of weighting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weighting {
    /// By clocks. Samples of threads that have used little CPU time stay pending.
    Clock,
    /// By clocks, without leaving samples pending.
    Last,
    /// One period per sample, but in total no more than the process has used. The rest of its CPU
    /// time belongs to the program that it executes next.
    Periods,
}

/// Samples that are not weighted yet.
#[derive(Default)]
struct Pending {
    /// Number of samples of each stack.
    stacks: BTreeMap<StackKey, u64>,
    /// Number of all samples.
    count: u64,
}

impl Pending {
    fn add(&mut self, stack: StackKey, count: u64) {
        let known = self.stacks.entry(stack).or_default();
        *known = known.saturating_add(count);
        self.count = self.count.saturating_add(count);
    }

    fn append(&mut self, other: Self) {
        for (stack, count) in other.stacks {
            self.add(stack, count);
        }
    }
}

/// CPU time of each stack, in nanoseconds.
type Times = BTreeMap<StackKey, u64>;

/// CPU time of a thread by its own clock, and its samples.
struct ThreadTime {
    tid: i32,
    ns: u64,
    samples: Pending,
}

/// Samples among which the remaining time is divided.
struct Shared {
    samples: Pending,
    /// Threads that still run, and how many of the samples are theirs.
    tids: Vec<(i32, u64)>,
}

/// CPU time accounting of one thread.
#[derive(Default)]
struct Thread {
    /// CPU time in ns that was reported so far; `None` until the clock's first value is known.
    reported: Option<u64>,
    samples: Pending,
    /// Value of the thread's clock in ns, if it was read while weighting this time.
    clock_value: Option<u64>,
    /// True if there were samples since its clock was last read.
    has_new_samples: bool,
}

/// CPU time accounting of one process.
#[derive(Default)]
pub(crate) struct Meter {
    /// CPU time in ns that was reported so far.
    reported: u64,
    /// Value of the process's clock in ns when samples were last weighted.
    last_clock_value: u64,
    /// Number of samples since then.
    count: u64,
    /// True if samples may have been lost since they were last weighted.
    pub is_lossy: bool,
    threads: BTreeMap<i32, Thread>,
    /// Samples of threads that have exited.
    ended: Pending,
}

/// Result of weighting.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Weights {
    /// CPU time of each stack, in nanoseconds.
    pub times: Times,
    /// Number of samples that were lost.
    pub lost: u64,
    /// Value of the process's clock in ns; `None` if it has exited.
    pub clock: Option<u64>,
}

impl Meter {
    /// Starts accounting for a process with these threads.
    pub(crate) fn new(pid: i32, tids: &[i32], clock: &impl Clock) -> Self {
        // Threads' clocks are read first, so that their sum does not exceed the process's clock.
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
            last_clock_value: now,
            threads,
            ..Self::default()
        }
    }

    /// Returns the CPU time reported so far; at first, the clock's value when sampling started.
    pub(crate) fn reported(&self) -> u64 {
        self.reported
    }

    /// Handles the creation of a thread. The thread may be known already: it may have been found in
    /// `/proc` before its fork record was read.
    pub(crate) fn handle_fork(&mut self, tid: i32) {
        let thread = self.threads.entry(tid).or_default();
        thread.reported.get_or_insert(0);
    }

    /// Handles the exit of a thread.
    pub(crate) fn handle_exit(&mut self, tid: i32) {
        if let Some(thread) = self.threads.remove(&tid) {
            self.ended.append(thread.samples);
        }
    }

    /// Counts a sample of a thread.
    pub(crate) fn count(&mut self, tid: i32, stack: StackKey) {
        let thread = self.threads.entry(tid).or_default();
        thread.samples.add(stack, 1);
        thread.has_new_samples = true;
        self.count += 1;
    }

    /// Handles an exec: the thread that called it has the process's id from now on.
    pub(crate) fn handle_exec(&mut self, pid: i32, clock: &impl Clock) {
        self.threads.clear();
        let reported = clock.thread(pid, pid);
        self.threads.entry(pid).or_default().reported = reported;
    }

    /// Weights the samples. Returns `None` if none can be reported.
    pub(crate) fn weigh(
        &mut self,
        pid: i32,
        period: u64,
        weighting: Weighting,
        clock: &impl Clock,
    ) -> Option<Weights> {
        let own_times = match weighting {
            Weighting::Clock | Weighting::Last => self.take_own_times(pid, period, clock),
            Weighting::Periods => Vec::new(),
        };
        // The process's clock is read after its threads' clocks, so that their sum does not exceed
        // it.
        let now = clock.process(pid);
        let all = weighting != Weighting::Clock || now.is_none();
        let shared = self.take_shared(all);
        if own_times.is_empty() && shared.samples.count == 0 {
            return None;
        }
        let still_pending: u64 = (self.threads.values())
            .map(|thread| thread.samples.count)
            .sum();
        let pending = shared.samples.count.saturating_add(still_pending);
        let periods = pending.saturating_mul(period);
        let used = match now.map(|now| now.saturating_sub(self.reported)) {
            // A process that has exited has no clock.
            None => periods.saturating_add(sum(&own_times)),
            Some(used) if weighting == Weighting::Periods => used.min(periods),
            Some(used) => used,
        };
        let mut weights = Weights {
            clock: now,
            ..Weights::default()
        };
        let by_clocks = sum(&own_times);
        // No more is assigned than the process has used. At the end, all that it has used is
        // assigned, including time that threads' clocks do not show yet, and the time of threads
        // without samples.
        let has_all = all && shared.samples.count == 0;
        let scaled_total = (has_all || by_clocks > used).then_some(used);
        self.assign_own(own_times, scaled_total, &mut weights.times);
        let mut left = used - scaled_total.unwrap_or(by_clocks);
        if all && shared.samples.count > 0 {
            // The shared time covers everything the threads have used so far, so their clocks are
            // settled.
            let threads = self.threads.values_mut();
            threads.for_each(|thread| thread.reported = thread.clock_value);
        }
        left -= self.assign_shared(shared, left, pending, &mut weights.times);
        self.reported = self.reported.saturating_add(used - left);
        if let Some(now) = now {
            let due = now.saturating_sub(self.last_clock_value) / period;
            if std::mem::take(&mut self.is_lossy) {
                weights.lost = due.saturating_sub(self.count);
            }
            self.last_clock_value = now;
        }
        self.count = 0;
        Some(weights)
    }

    /// Returns the threads with new samples that have used at least `MIN_PERIODS` by their own
    /// clocks.
    fn take_own_times(&mut self, pid: i32, period: u64, clock: &impl Clock) -> Vec<ThreadTime> {
        let mut threads = Vec::new();
        let mut exited = Vec::new();
        for (tid, thread) in &mut self.threads {
            thread.clock_value = None;
            if !std::mem::take(&mut thread.has_new_samples) {
                continue;
            }
            let Some(now) = clock.thread(pid, *tid) else {
                exited.push(*tid);
                continue;
            };
            thread.clock_value = Some(now);
            let periods = thread.samples.count.saturating_mul(period);
            let reported = *thread.reported.get_or_insert(now.saturating_sub(periods));
            let ns = now.saturating_sub(reported);
            if ns >= period.saturating_mul(MIN_PERIODS) {
                let samples = std::mem::take(&mut thread.samples);
                threads.push(ThreadTime {
                    tid: *tid,
                    ns,
                    samples,
                });
            }
        }
        exited.into_iter().for_each(|tid| self.handle_exit(tid));
        threads
    }

    /// Returns the samples of threads that have exited or have too many pending ones. If `all`,
    /// returns the samples of every thread.
    fn take_shared(&mut self, all: bool) -> Shared {
        let mut shared = Shared {
            samples: std::mem::take(&mut self.ended),
            tids: Vec::new(),
        };
        let min_count = if all { 1 } else { MAX_PENDING_SAMPLES };
        for (tid, thread) in &mut self.threads {
            let count = thread.samples.count;
            if count >= min_count {
                shared.samples.append(std::mem::take(&mut thread.samples));
                if !all {
                    shared.tids.push((*tid, count));
                }
            }
        }
        shared
    }

    /// Assigns each thread's time to its samples. If `scaled_total` is given, the times are scaled
    /// to that total.
    fn assign_own(
        &mut self,
        threads: Vec<ThreadTime>,
        scaled_total: Option<u64>,
        times: &mut Times,
    ) {
        let all = sum(&threads);
        let mut so_far: u64 = 0;
        for ThreadTime { tid, ns, samples } in threads {
            let before = so_far;
            so_far = before.saturating_add(ns);
            let ns = scaled_total.map_or(ns, |to| share(to, so_far, all) - share(to, before, all));
            self.add_reported(tid, ns);
            assign(ns, samples, times);
        }
    }

    /// Assigns the other threads their part of the time that is left, and returns that part in ns.
    /// `pending` is the number of all pending samples, including those that stay pending.
    fn assign_shared(&mut self, shared: Shared, left: u64, pending: u64, times: &mut Times) -> u64 {
        let count = shared.samples.count;
        if count == 0 {
            return 0;
        }
        let ns = share(left, count, pending);
        for (tid, samples) in shared.tids {
            self.add_reported(tid, share(ns, samples, count));
        }
        assign(ns, shared.samples, times);
        ns
    }

    fn add_reported(&mut self, tid: i32, ns: u64) {
        if let Some(reported) = self
            .threads
            .get_mut(&tid)
            .and_then(|thread| thread.reported.as_mut())
        {
            *reported = reported.saturating_add(ns);
        }
    }
}

fn sum(threads: &[ThreadTime]) -> u64 {
    let times = threads.iter().map(|thread| thread.ns);
    times.fold(0, u64::saturating_add)
}

/// Returns `ns` × `count` / `total`. `total` is not 0.
fn share(ns: u64, count: u64, total: u64) -> u64 {
    (u128::from(ns) * u128::from(count) / u128::from(total)) as u64
}

/// Divides a time among samples, exactly.
fn assign(ns: u64, samples: Pending, times: &mut Times) {
    let mut so_far = 0;
    for (stack, count) in samples.stacks {
        let before = share(ns, so_far, samples.count);
        so_far += count;
        *times.entry(stack).or_default() += share(ns, so_far, samples.count) - before;
    }
}

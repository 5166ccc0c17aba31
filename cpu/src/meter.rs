//! What the samples of one process stand for, where processors are sampled (see `meters`).
//!
//! A thread that has used enough CPU time since its last report gets what its own clock says,
//! however many samples it had: the rhythm in which threads take turns may coincide with that of
//! the sampling. Threads that have ended, or have used little, share the rest of what the process
//! used, in proportion to their samples; they also stand for threads of this kind that have none.
//! Which of the two applies depends on clocks alone, not on luck with samples, which would
//! otherwise count twice.

#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;

/// What a sample is of: a stack in the recording, as it gave it; `None`: no stack.
pub(crate) type Place = Option<(u64, u32)>;

/// A thread's part is taken from its clock from this many periods on.
const ENOUGH: u64 = 4;
/// A thread with this many samples no longer waits for its clock: the kernel may not keep one.
const MOST_WAITING: u64 = 16;

/// Reads clocks: the CPU time of processes and threads, in nanoseconds; `None`: they have ended.
pub(crate) trait Clock {
    fn process(&self, pid: i32) -> Option<u64>;
    fn thread(&self, pid: i32, tid: i32) -> Option<u64>;
}

/// How samples are weighed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    /// By clocks. Threads that have used little wait for the next time.
    Clock,
    /// By clocks, all of them.
    Last,
    /// All by their periods, but not by more than the process has used: the rest is its next
    /// program's.
    Periods,
}

/// Samples that are not weighed yet.
#[derive(Default)]
struct Waiting {
    places: BTreeMap<Place, u64>,
    count: u64,
}

impl Waiting {
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

/// Nanoseconds by place.
type Times = BTreeMap<Place, u64>;

/// What a thread has used by its own clock.
struct Own {
    tid: i32,
    ns: u64,
    samples: Waiting,
}

/// Samples that share what is left, and how many of them are of threads that continue.
struct Shared {
    samples: Waiting,
    tids: Vec<(i32, u64)>,
}

#[derive(Default)]
struct Thread {
    /// How much of its CPU time was reported; `None`: the first value of its clock is not known.
    told: Option<u64>,
    samples: Waiting,
    /// What its clock said, if it was read this time.
    read: Option<u64>,
    /// Whether there are samples since its clock was last read.
    is_new: bool,
}

/// A process.
#[derive(Default)]
pub(crate) struct Meter {
    /// Its CPU time as last reported.
    told: u64,
    /// Its clock when samples were last weighed, and how many there were since.
    read: u64,
    count: u64,
    /// Whether samples may have been lost since then.
    pub is_lossy: bool,
    threads: BTreeMap<i32, Thread>,
    /// Samples of threads that have ended.
    ended: Waiting,
}

/// What samples stand for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    /// Nanoseconds for each place.
    pub times: Times,
    /// Samples that were lost.
    pub lost: u64,
    /// What the process's clock said; `None`: it has ended.
    pub clock: Option<u64>,
}

impl Meter {
    /// For a process that is sampled from now on, with these threads.
    pub(crate) fn new(pid: i32, tids: &[i32], clock: &impl Clock) -> Self {
        // Threads first: together, they have not used more than the process by then.
        let thread = |tid: &i32| {
            let told = clock.thread(pid, *tid)?;
            let thread = Thread {
                told: Some(told),
                ..Thread::default()
            };
            Some((*tid, thread))
        };
        let threads = tids.iter().filter_map(thread).collect();
        let now = clock.process(pid).unwrap_or(0);
        Self {
            told: now,
            read: now,
            threads,
            ..Self::default()
        }
    }

    /// What its clock said at first, as long as nothing was reported.
    pub(crate) fn told(&self) -> u64 {
        self.told
    }

    /// A thread was born. One that is known may be older than the record of that.
    pub(crate) fn born(&mut self, tid: i32) {
        let thread = self.threads.entry(tid).or_default();
        thread.told.get_or_insert(0);
    }

    /// A thread ended.
    pub(crate) fn exit(&mut self, tid: i32) {
        if let Some(thread) = self.threads.remove(&tid) {
            self.ended.append(thread.samples);
        }
    }

    /// A sample came of a thread.
    pub(crate) fn count(&mut self, tid: i32, place: Place) {
        let thread = self.threads.entry(tid).or_default();
        thread.samples.add(place, 1);
        thread.is_new = true;
        self.count += 1;
    }

    /// Another program is executed by one of the threads, which has the process's number from now
    /// on.
    pub(crate) fn executed(&mut self, pid: i32, clock: &impl Clock) {
        self.threads.clear();
        let told = clock.thread(pid, pid);
        self.threads.entry(pid).or_default().told = told;
    }

    /// What samples stand for. `None`: there are none that can be reported.
    pub(crate) fn weigh(
        &mut self,
        pid: i32,
        period: u64,
        scale: Scale,
        clock: &impl Clock,
    ) -> Option<Told> {
        let own = match scale {
            Scale::Clock | Scale::Last => self.own(pid, period, clock),
            Scale::Periods => Vec::new(),
        };
        // After those of its threads, which have not used more together.
        let now = clock.process(pid);
        let all = scale != Scale::Clock || now.is_none();
        let shared = self.shared(all);
        if own.is_empty() && shared.samples.count == 0 {
            return None;
        }
        let waiting = self.threads.values().map(|thread| thread.samples.count);
        let waiting = shared.samples.count.saturating_add(waiting.sum());
        let periods = waiting.saturating_mul(period);
        let used = now.map(|now| now.saturating_sub(self.told));
        let used = match (used, scale) {
            // One that has ended has no clock.
            (None, _) => periods.saturating_add(sum(&own)),
            (Some(used), Scale::Periods) => used.min(periods),
            (Some(used), Scale::Clock | Scale::Last) => used,
        };
        let mut told = Told {
            clock: now,
            ..Told::default()
        };
        let by_clocks = sum(&own);
        // Nothing gets more than the process used. At the end, what clocks do not show yet is
        // assigned, and so is the time of threads without samples.
        let has_all = all && shared.samples.count == 0;
        let scaled = (has_all || by_clocks > used).then_some(used);
        self.give_own(own, scaled, &mut told.times);
        let mut left = used - scaled.unwrap_or(by_clocks);
        if all && shared.samples.count > 0 {
            // What all threads used so far is in what is shared.
            let threads = self.threads.values_mut();
            threads.for_each(|thread| thread.told = thread.read);
        }
        left -= self.give_shared(shared, left, waiting, &mut told.times);
        self.told = self.told.saturating_add(used - left);
        if let Some(now) = now {
            let due = now.saturating_sub(self.read) / period;
            if std::mem::take(&mut self.is_lossy) {
                told.lost = due.saturating_sub(self.count);
            }
            self.read = now;
        }
        self.count = 0;
        Some(told)
    }

    /// Threads with new samples whose clocks say that they have used enough.
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
            let told = *thread.told.get_or_insert(now.saturating_sub(periods));
            let ns = now.saturating_sub(told);
            if ns >= period.saturating_mul(ENOUGH) {
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

    /// The samples of threads that have ended or wait no longer: of all, if they must not.
    fn shared(&mut self, all: bool) -> Shared {
        let mut shared = Shared {
            samples: std::mem::take(&mut self.ended),
            tids: Vec::new(),
        };
        for (tid, thread) in &mut self.threads {
            let count = thread.samples.count;
            if count >= if all { 1 } else { MOST_WAITING } {
                shared.samples.append(std::mem::take(&mut thread.samples));
                if !all {
                    shared.tids.push((*tid, count));
                }
            }
        }
        shared
    }

    /// Gives threads what their clocks say, or shares a time by that.
    fn give_own(&mut self, own: Vec<Own>, scaled: Option<u64>, times: &mut Times) {
        let all = sum(&own);
        let mut so_far: u64 = 0;
        for Own { tid, ns, samples } in own {
            let before = so_far;
            so_far = before.saturating_add(ns);
            let ns = scaled.map_or(ns, |to| part(to, so_far, all) - part(to, before, all));
            self.told_of(tid, ns);
            give(ns, samples, times);
        }
    }

    /// Gives other threads their part of what is left, if one of those that wait has a part.
    /// Returns how much it was.
    fn give_shared(&mut self, shared: Shared, left: u64, waiting: u64, times: &mut Times) -> u64 {
        let count = shared.samples.count;
        if count == 0 {
            return 0;
        }
        let ns = part(left, count, waiting);
        for (tid, samples) in shared.tids {
            self.told_of(tid, part(ns, samples, count));
        }
        give(ns, shared.samples, times);
        ns
    }

    fn told_of(&mut self, tid: i32, ns: u64) {
        if let Some(told) = self.threads.get_mut(&tid).and_then(|it| it.told.as_mut()) {
            *told = told.saturating_add(ns);
        }
    }
}

fn sum(own: &[Own]) -> u64 {
    let parts = own.iter().map(|own| own.ns);
    parts.fold(0, u64::saturating_add)
}

/// A part of a time, by samples or by other times; `whole` is not 0.
fn part(ns: u64, of: u64, whole: u64) -> u64 {
    (u128::from(ns) * u128::from(of) / u128::from(whole)) as u64
}

/// Gives samples a time, which their parts add up to.
fn give(ns: u64, samples: Waiting, times: &mut Times) {
    let mut so_far = 0;
    for (place, count) in samples.places {
        let before = part(ns, so_far, samples.count);
        so_far += count;
        *times.entry(place).or_default() += part(ns, so_far, samples.count) - before;
    }
}

//! Measures what sampling costs the process, and adapts the interval to a limit on it.
//!
//! The time that samples spend in the agent is not what they cost: a sample also evicts the
//! program's cache lines and branch history. So cause and effect are measured, by trials: of some
//! samples that are due, half are left out at random (the others count twice), and the time is taken
//! until the thread has allocated a fixed number of bytes. The difference of the means is the cost
//! of a sample; divided by the time that it spent in the agent, it is the *factor*. Samples and
//! frees are timed at intervals, and their time is multiplied by the factor.
//!
//! The decisions are made by whichever thread takes a timed sample: there is no helper thread, and
//! a process without samples costs nothing.

// Decision 87: what a sample costs is measured by leaving samples out.
use crate::float_environment;
use crate::governor::{Governor, Reading, Step};
use crate::local::Local;
use crate::session::{self, Epoch};
use crate::thread::Thread;
use crate::{cycles, seccomp, stats, sys, timers};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use shm_protocol::clock;
use shm_protocol::layout::{INTERVALS_KEPT, TrialSums};
use shm_protocol::record::BYTE_ONE;

/// Factor that is assumed before any trial, and its variance.
const PRIOR: (f64, f64) = (2.0, 0.5);
/// Number of samples of which one is a trial.
const TRIAL_EVERY: u32 = 32;
/// Length of a trial, in ns.
const TRIAL_NS: f64 = 5000.0;
/// Trials that take longer are discarded, in ns: the thread was suspended.
const MAX_TRIAL_NS: u64 = 40_000;
/// Only samples of objects below this part of the interval are trials, so that an object that is
/// nearly certain to be sampled is.
const MAX_OBJECT_PART: f64 = 8.0;
/// Minimum time between two looks at the CPU clock, in ns.
const LOOK_EVERY_NS: u64 = 1_000_000;
/// Minimum time between two looks, as a multiple of the time that a look takes: the kernel adds up
/// all threads.
const LOOK_PART: u64 = 256;
/// Time that a look takes at most, in ns: the thread was suspended if it took longer.
const MAX_LOOK_NS: u64 = 100_000;
/// Number of samples of which the mean cost is taken, at most.
const RECENT_SAMPLES: f64 = 16_384.0;
/// Minimum number of trials of each kind by which the factor is measured.
const MIN_TRIALS: f64 = 32.0;

/// Interval in force, in bytes; 0 before the first session.
static INTERVAL: AtomicU64 = AtomicU64::new(0);
/// Bytes that a thread allocates in a trial; 0 while not known.
static TRIAL_BYTES: AtomicU64 = AtomicU64::new(0);
/// Value of the cycle counter at which the cost is looked at next.
static NEXT_LOOK: AtomicU64 = AtomicU64::new(0);
/// Thread that uses [`STATE`]: the number of the segment ([`session::segment_number`]); 0: none. A
/// forked child whose parent was in there has another number.
static HOLDER: AtomicU32 = AtomicU32::new(0);
/// Segment and session that [`STATE`] describes, 32 bits each.
static SESSION: AtomicU64 = AtomicU64::new(0);

/// State of the session's governor.
struct State {
    governor: Governor,
    /// Process's CPU clock at the last look, in ns; 0 if it could not be read.
    clock_ns: u64,
    /// Time of the last look, in ns of the coarse clock.
    looked_ns: u64,
    /// CPU time of the process since the session began, in ns.
    cpu_ns: u64,
    /// True once elapsed time has stood for CPU time.
    is_elapsed: bool,
    /// Estimated bytes allocated at the last decision, fixed point.
    bytes: u64,
    /// CPU time that sampling has taken, in ns.
    spent_ns: f64,
    /// Sums at the last look.
    sums: Sums,
    /// Samples by which the mean is taken, and the time that they and their frees spent in the
    /// agent, in ns.
    recent: (f64, f64),
}

struct Shared(UnsafeCell<State>);
// SAFETY: used only by the thread that has set `HOLDER`.
unsafe impl Sync for Shared {}
static STATE: Shared = Shared(UnsafeCell::new(State {
    governor: Governor::new(0.0, 0),
    clock_ns: 0,
    looked_ns: 0,
    cpu_ns: 0,
    is_elapsed: false,
    bytes: 0,
    spent_ns: 0.0,
    sums: Sums::NONE,
    recent: (0.0, 0.0),
}));

/// Trial of one thread: the time from a due sample until the thread has allocated a fixed number of
/// bytes. Other samples in that time are taken as usual.
#[derive(Clone, Copy, Debug)]
pub struct Trial {
    phase: Phase,
    /// Samples until the next trial.
    until: u32,
    /// Cycle counter at the start.
    started: u64,
    /// Time that the sample spent in the agent, in cycles; 0 if it was left out.
    inside: u64,
}

/// Next event of a thread's countdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No trial is running.
    Idle,
    /// A sample is due; the trial ends this many bytes later.
    Sample(i64),
    /// The trial ends; a sample is due this many bytes later.
    End(i64),
}

/// Fate of a sample that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Taken.
    Plain,
    /// Taken in a trial, and counted twice.
    Taken,
    /// Left out in a trial.
    Skipped,
}

impl Trial {
    /// No trial is running.
    pub const NONE: Self = Self {
        phase: Phase::Idle,
        until: TRIAL_EVERY,
        started: 0,
        inside: 0,
    };

    /// Returns true if a trial is running.
    #[inline(always)]
    pub fn is_running(&self) -> bool {
        self.phase != Phase::Idle
    }

    /// Discards a running trial, because the countdown is drawn again.
    #[inline(always)]
    pub fn discard(&mut self) {
        self.phase = Phase::Idle;
    }

    /// Returns true if the sample that is due may begin a trial.
    #[inline(always)]
    pub fn is_due(&mut self) -> bool {
        self.until = self.until.wrapping_sub(1);
        self.until == 0
    }

    /// Stores that the trial's sample has been taken.
    #[cold]
    #[inline(never)]
    pub fn note_taken(&mut self) {
        if let (true, Some(now)) = (self.is_running(), cycles::read()) {
            self.inside = now.wrapping_sub(self.started).max(1);
        }
    }

    /// Continues a trial when the countdown `left` has expired.
    fn expire(&mut self, left: &mut i64) -> Expiry {
        match self.phase {
            Phase::Idle => Expiry::Sample,
            Phase::Sample(after) if after + *left > 0 => {
                self.phase = Phase::Sample(after + *left);
                Expiry::Sample
            }
            Phase::Sample(_) => {
                self.phase = Phase::Idle;
                Expiry::EndAndSample
            }
            Phase::End(rest) => {
                self.phase = Phase::Idle;
                *left = left.saturating_add(rest);
                if *left < 0 {
                    Expiry::EndAndSample
                } else {
                    Expiry::End
                }
            }
        }
    }

    /// Divides the gap to the next sample, `left`, at the end of the trial, which is `bytes` away.
    fn split(&mut self, left: &mut i64, bytes: i64) {
        self.phase = if *left < bytes {
            Phase::Sample(bytes - *left)
        } else {
            let rest = *left - bytes;
            *left = bytes;
            Phase::End(rest)
        };
    }

    /// Divides the gap to the next sample, which was just drawn, if a trial is running.
    fn split_gap(&mut self, left: &mut i64) {
        if let Phase::Sample(bytes) = self.phase {
            self.split(left, bytes);
        }
    }
}

/// Meaning of an expired countdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expiry {
    /// A sample is due.
    Sample,
    /// A trial ends.
    End,
    /// A trial ends, and a sample is due.
    EndAndSample,
}

/// Continues a running trial when the countdown has expired. Returns true if a sample is due.
#[cold]
#[inline(never)]
pub fn continue_trial(local: &mut Local, thread: &mut Thread, epoch: &Epoch) -> bool {
    let expiry = thread.trial.expire(&mut local.left);
    if expiry != Expiry::Sample {
        end_trial(thread, epoch);
    }
    expiry != Expiry::End
}

/// Divides the gap to the next sample of a thread with a running trial. Called after
/// [`continue_trial`], when the gap has been drawn.
#[cold]
#[inline(never)]
pub fn split_gap(local: &mut Local, thread: &mut Thread) {
    thread.trial.split_gap(&mut local.left);
}

/// Begins a trial with a sample of `bytes` bytes that is due, if possible. The gap to the next one
/// has been drawn.
#[cold]
#[inline(never)]
pub fn begin_trial(local: &mut Local, thread: &mut Thread, bytes: usize) -> Kind {
    thread.trial.until = TRIAL_EVERY;
    let length = TRIAL_BYTES.load(Ordering::Relaxed) as i64;
    // With an interval of 1, every allocation is sampled.
    let is_small = bytes as f64 * MAX_OBJECT_PART < thread.interval;
    if length <= 0 || !is_small || thread.interval <= 1.0 || thread.trial.is_running() {
        return Kind::Plain;
    }
    let Some(started) = cycles::read() else {
        return Kind::Plain;
    };
    thread.trial.started = started;
    thread.trial.inside = 0;
    thread.trial.split(&mut local.left, length);
    if thread.gaps.is_one_in(1) {
        Kind::Taken
    } else {
        Kind::Skipped
    }
}

fn end_trial(thread: &mut Thread, epoch: &Epoch) {
    let trial = &thread.trial;
    let Some(now) = cycles::read() else { return };
    let (Some(ns), Some(inside_ns)) = (
        stats::cycles_to_ns(now.wrapping_sub(trial.started)),
        stats::cycles_to_ns(trial.inside),
    ) else {
        return;
    };
    if ns > MAX_TRIAL_NS {
        return;
    }
    let log = &epoch.bank.header.cost;
    let sums = if trial.inside != 0 {
        &log.taken
    } else {
        &log.skipped
    };
    sums.count.fetch_add(1, Ordering::Relaxed);
    sums.ns.fetch_add(ns, Ordering::Relaxed);
    sums.squares.fetch_add(ns * ns, Ordering::Relaxed);
    log.inside_ns.fetch_add(inside_ns, Ordering::Relaxed);
}

/// Returns the interval at which a thread begins to sample in an epoch.
pub fn enter(epoch: &Epoch) -> u64 {
    let session = key(epoch);
    if SESSION.load(Ordering::Acquire) != session {
        exclusively(|state| float_environment::apart(|| begin(state, epoch, session)));
    }
    if epoch.max_overhead == 0 || SESSION.load(Ordering::Acquire) != session {
        return epoch.interval;
    }
    INTERVAL.load(Ordering::Relaxed).max(epoch.interval)
}

/// Returns the interval in force in a governed session.
#[inline(always)]
pub fn interval() -> u64 {
    INTERVAL.load(Ordering::Relaxed)
}

/// Begins to govern a session.
fn begin(state: &mut State, epoch: &Epoch, session: u64) {
    *state = State {
        governor: Governor::new(epoch.max_overhead as f64 / 1e6, epoch.interval),
        clock_ns: cpu_clock(),
        looked_ns: clock::now_ns(),
        cpu_ns: 0,
        is_elapsed: false,
        bytes: 0,
        spent_ns: 0.0,
        sums: Sums::NONE,
        recent: (0.0, 0.0),
    };
    TRIAL_BYTES.store(0, Ordering::Relaxed);
    // Nothing is decided earlier.
    stats::calibrate();
    let now = cycles::read().unwrap_or(0);
    let next = now.wrapping_add(stats::ns_to_cycles(LOOK_EVERY_NS));
    NEXT_LOOK.store(next, Ordering::Relaxed);
    INTERVAL.store(epoch.interval, Ordering::Relaxed);
    if epoch.max_overhead != 0 {
        let start_ns = epoch.published_start_ns;
        log_interval(epoch, start_ns, epoch.interval);
    }
    SESSION.store(session, Ordering::Release);
}

/// Returns the CPU clock of the process, in ns; 0 if a seccomp filter might forbid the system call.
fn cpu_clock() -> u64 {
    if seccomp::lets_timers_pass() {
        timers::process_clock()
    } else {
        0
    }
}

/// Looks at the cost if it is time, and decides on the interval. Called after a timed sample.
#[cold]
#[inline(never)]
pub fn look(epoch: &Epoch) {
    let Some(now) = cycles::read() else { return };
    if (now.wrapping_sub(NEXT_LOOK.load(Ordering::Relaxed)) as i64) < 0
        || SESSION.load(Ordering::Relaxed) != key(epoch)
    {
        return;
    }
    exclusively(|state| {
        decide(state, epoch);
        let Some(taken) = cycles::read().map(|end| end.wrapping_sub(now)) else {
            return;
        };
        // The thread may have been suspended in between.
        let taken = taken.min(stats::ns_to_cycles(MAX_LOOK_NS));
        let wait = stats::ns_to_cycles(LOOK_EVERY_NS).max(taken * LOOK_PART);
        NEXT_LOOK.store(now.wrapping_add(wait), Ordering::Relaxed);
    });
}

/// Adds up the cost of a session that is running when the process exits. Keeps `errno`.
pub fn at_exit() {
    let is_known = SESSION.load(Ordering::Relaxed) >> 32 == u64::from(session::segment_number());
    if is_known && session::control().epoch(Ordering::Relaxed) != 0 {
        let saved = sys::errno();
        if let Some(epoch) =
            session::current().filter(|epoch| key(epoch) == SESSION.load(Ordering::Relaxed))
        {
            float_environment::apart(|| finish(&epoch));
        }
        sys::set_errno(saved);
    }
}

fn finish(epoch: &Epoch) {
    exclusively(|state| {
        let factor = Factor::of(epoch);
        let reading = advance(state, epoch, factor);
        state.governor.finish(reading);
        publish(state, epoch, factor);
    });
}

/// Adds up CPU time and cost since the last look. Where a filter might forbid reading the CPU clock,
/// elapsed time stands for it.
#[inline(never)]
fn advance(state: &mut State, epoch: &Epoch, factor: Factor) -> Reading {
    let clock_ns = cpu_clock();
    let now_ns = clock::now_ns();
    state.cpu_ns += if clock_ns != 0 && state.clock_ns != 0 {
        clock_ns.saturating_sub(state.clock_ns)
    } else {
        state.is_elapsed = true;
        now_ns.saturating_sub(state.looked_ns)
    };
    state.clock_ns = clock_ns;
    state.looked_ns = now_ns;
    let sums = Sums::of(epoch);
    let samples = sums.samples.saturating_sub(state.sums.samples) as f64;
    let agent_ns = sums.agent_ns.saturating_sub(state.sums.agent_ns) as f64;
    let long_ns = sums.long_ns.saturating_sub(state.sums.long_ns) as f64;
    state.spent_ns += agent_ns * factor.mean + long_ns;
    let (mut count, mut ns) = state.recent;
    count += samples;
    ns += agent_ns;
    if count > RECENT_SAMPLES {
        (count, ns) = (count / 2.0, ns / 2.0);
    }
    state.recent = (count, ns);
    state.sums = sums;
    Reading {
        cpu_ns: state.cpu_ns,
        spent_ns: state.spent_ns,
        samples: sums.samples,
        each_ns: ns / count.max(1.0) * factor.mean,
    }
}

/// Sums over all threads since the session's start.
#[derive(Clone, Copy)]
struct Sums {
    /// Number of samples.
    samples: u64,
    /// Time that samples and frees spent in the agent, in ns.
    agent_ns: u64,
    /// Time of single samples that took long, in ns.
    long_ns: u64,
    /// Estimated bytes allocated, fixed point.
    bytes: u64,
}

impl Sums {
    const NONE: Self = Self {
        samples: 0,
        agent_ns: 0,
        long_ns: 0,
        bytes: 0,
    };

    fn of(epoch: &Epoch) -> Self {
        let mut sums = Self::NONE;
        sums.long_ns = epoch.bank.header.cost.long_ns.load(Ordering::Relaxed);
        for shard in &epoch.bank.header.totals {
            sums.samples += shard.samples.load(Ordering::Relaxed);
            sums.agent_ns += shard.agent_ns.load(Ordering::Relaxed);
            sums.bytes += shard.alloc_bytes.load(Ordering::Relaxed);
        }
        sums
    }
}

/// CPU time that sampling costs for each ns in the agent.
#[derive(Clone, Copy)]
struct Factor {
    mean: f64,
    variance: f64,
}

impl Factor {
    /// Returns the factor by the trials so far, weighed with the assumption.
    #[inline(never)]
    fn of(epoch: &Epoch) -> Self {
        let log = &epoch.bank.header.cost;
        let (mean, variance) = PRIOR;
        let taken = Arm::of(&log.taken);
        let skipped = Arm::of(&log.skipped);
        let inside = log.inside_ns.load(Ordering::Relaxed) as f64 / taken.count;
        if taken.count < MIN_TRIALS || skipped.count < MIN_TRIALS || inside <= 0.0 {
            return Self { mean, variance };
        }
        let measured = (taken.mean - skipped.mean) / inside;
        let scatter = (taken.variance + skipped.variance) / (inside * inside);
        let sum = variance + scatter;
        Self {
            mean: ((measured * variance + mean * scatter) / sum).max(1.0),
            variance: variance * scatter / sum,
        }
    }
}

/// Trials of one kind.
struct Arm {
    count: f64,
    mean: f64,
    /// Variance of the mean.
    variance: f64,
}

impl Arm {
    fn of(sums: &TrialSums) -> Self {
        let count = sums.count.load(Ordering::Relaxed) as f64;
        let mean = sums.ns.load(Ordering::Relaxed) as f64 / count;
        let square = sums.squares.load(Ordering::Relaxed) as f64 / count;
        Self {
            count,
            mean,
            variance: (square - mean * mean) / count,
        }
    }
}

/// Decides on the interval.
fn decide(state: &mut State, epoch: &Epoch) {
    let factor = Factor::of(epoch);
    let reading = advance(state, epoch, factor);
    let last = state.governor.last();
    let step = state.governor.step(reading);
    if step == Step::Wait {
        return;
    }
    let sums = state.sums;
    let per_ns = sums.bytes.saturating_sub(state.bytes) as f64
        / BYTE_ONE
        / state.cpu_ns.saturating_sub(last.cpu_ns).max(1) as f64;
    state.bytes = sums.bytes;
    TRIAL_BYTES.store((per_ns * TRIAL_NS) as u64, Ordering::Relaxed);
    publish(state, epoch, factor);
    if let Step::Change(interval) = step {
        INTERVAL.store(interval, Ordering::Relaxed);
        log_interval(epoch, session::time::now_ns(), interval);
    }
}

/// Publishes the cost so far. Without the CPU clock, its share is not known.
#[inline(never)]
fn publish(state: &State, epoch: &Epoch, factor: Factor) {
    if state.is_elapsed {
        return;
    }
    let header = epoch.bank.header;
    let log = &header.cost;
    log.spent_ns.store(state.spent_ns as u64, Ordering::Relaxed);
    log.cpu_ns.store(state.cpu_ns, Ordering::Relaxed);
    log.factor.store(factor.mean.to_bits(), Ordering::Relaxed);
    log.factor_variance
        .store(factor.variance.to_bits(), Ordering::Relaxed);
    if epoch.max_overhead != 0
        && let Some(entry) = header.intervals.entries.get(
            header
                .intervals
                .count
                .load(Ordering::Relaxed)
                .wrapping_sub(1) as usize,
        )
    {
        let overhead = u64::from(state.governor.overhead()) + 1;
        entry.overhead.store(overhead, Ordering::Relaxed);
    }
}

/// Appends an interval to the history. If that is full, every other entry of its older half is
/// dropped, so that a long session keeps its outline.
#[inline(never)]
fn log_interval(epoch: &Epoch, from_ns: u64, interval: u64) {
    let log = &epoch.bank.header.intervals;
    let mut count = log.count.load(Ordering::Relaxed) as usize;
    if count >= INTERVALS_KEPT {
        let kept = (0..INTERVALS_KEPT).filter(|at| at % 2 == 0 || *at > INTERVALS_KEPT / 2);
        count = 0;
        for from in kept {
            let (from, to) = (&log.entries[from], &log.entries[count]);
            for (from, to) in [
                (&from.from_ns, &to.from_ns),
                (&from.interval, &to.interval),
                (&from.overhead, &to.overhead),
            ] {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            count += 1;
        }
        log.count.store(count as u64, Ordering::Release);
    }
    let entry = &log.entries[count];
    entry.from_ns.store(from_ns, Ordering::Relaxed);
    entry.interval.store(interval, Ordering::Relaxed);
    entry.overhead.store(0, Ordering::Relaxed);
    log.least.store(epoch.interval, Ordering::Relaxed);
    log.count.store(count as u64 + 1, Ordering::Release);
}

/// Returns the number that stands for an epoch's session in this process.
fn key(epoch: &Epoch) -> u64 {
    u64::from(session::segment_number()) << 32 | u64::from(epoch.session as u32)
}

/// Runs `work` with the state, unless another thread uses it.
fn exclusively(work: impl FnOnce(&mut State)) {
    let own = session::segment_number();
    let holder = HOLDER.load(Ordering::Relaxed);
    let is_free = holder != own
        && HOLDER
            .compare_exchange(holder, own, Ordering::Acquire, Ordering::Relaxed)
            .is_ok();
    if is_free {
        // SAFETY: this thread has set `HOLDER`, and resets it afterwards. A value of another
        // segment is the parent's, whose threads do not exist in this process.
        work(unsafe { &mut *STATE.0.get() });
        HOLDER.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::{Gaps, weight};

    /// Sampled thread that allocates objects, and its trials.
    struct Plant {
        gaps: Gaps,
        trial: Trial,
        left: i64,
        /// Bytes allocated since the running trial began.
        since: i64,
        trials: u32,
        interval: f64,
    }

    impl Plant {
        const INTERVAL: f64 = 1024.0;
        const TRIAL_BYTES: i64 = 3000;

        fn new(seed: u64) -> Self {
            let mut gaps = Gaps::new(seed);
            let left = gaps.next(Self::INTERVAL);
            Self {
                gaps,
                trial: Trial {
                    until: 4,
                    ..Trial::NONE
                },
                left,
                since: 0,
                trials: 0,
                interval: Self::INTERVAL,
            }
        }

        /// Adopts another interval, after a sample.
        fn adopt(&mut self, interval: f64) {
            self.interval = interval;
            self.trial.discard();
            self.left = self.gaps.next(interval);
        }

        /// Allocates an object. Returns the weight of its sample; 0 without one.
        fn allocate(&mut self, bytes: i64) -> f64 {
            self.left -= bytes;
            self.since += bytes;
            if self.left >= 0 {
                return 0.0;
            }
            let expiry = self.trial.expire(&mut self.left);
            if expiry != Expiry::Sample && self.since != bytes {
                let over = self.since - Self::TRIAL_BYTES;
                assert!(
                    (0..bytes.max(1)).contains(&(over - 1)) || over == 0,
                    "{over} {bytes}"
                );
                self.trials += 1;
            }
            if expiry == Expiry::End {
                return 0.0;
            }
            self.left = self.gaps.next(self.interval);
            self.trial.split_gap(&mut self.left);
            let weight = f64::from(weight(bytes as u64, self.interval));
            if !self.trial.is_due() {
                return weight;
            }
            self.trial.until = 4;
            if self.trial.is_running() {
                return weight;
            }
            self.since = 0;
            self.trial.split(&mut self.left, Self::TRIAL_BYTES);
            if self.gaps.is_one_in(1) {
                2.0 * weight
            } else {
                0.0
            }
        }
    }

    #[test]
    fn sums_are_unbiased_and_trials_have_their_length() {
        let mut plant = Plant::new(7);
        let sizes = [16, 40, 100, 900, 24];
        let mut found = [0.0; 5];
        let rounds = 400_000;
        for _ in 0..rounds {
            for (size, found) in sizes.iter().zip(&mut found) {
                *found += plant.allocate(*size);
            }
        }
        assert!(plant.trials > 10_000, "{}", plant.trials);
        for (size, found) in sizes.iter().zip(found) {
            let p = 1.0 - (-(f64::from(*size as i32)) / Plant::INTERVAL).exp();
            // A quarter of the samples counts twice or not at all.
            let error = (f64::from(rounds) * 1.5 / p).sqrt();
            let off = found - f64::from(rounds);
            assert!(off.abs() < 6.0 * error, "{size}: {off} ({error})");
        }
    }

    /// Runs a thread whose interval changes by what has happened so far, as the governor's does.
    /// Returns by how many of the claimed standard errors the estimated bytes are off.
    fn deviation(seed: u64) -> f64 {
        let mut plant = Plant::new(seed);
        let intervals = [1024.0, 4096.0, 2048.0, 6000.0];
        let mut samples = 0;
        let mut estimate = 0.0;
        let mut variance = 0.0;
        let mut bytes = 0.0;
        for index in 0..12_000 {
            let size = [16, 100, 900, 48][index % 4];
            bytes += f64::from(size);
            let weight = plant.allocate(i64::from(size));
            if weight == 0.0 {
                continue;
            }
            let size = f64::from(size);
            estimate += weight * size;
            variance += weight * (weight - 1.0) * size * size;
            samples += 1;
            let interval = intervals[samples / 60 % 4];
            if interval != plant.interval {
                plant.adopt(interval);
            }
        }
        (estimate - bytes) / variance.sqrt()
    }

    #[test]
    fn error_bars_of_governed_sessions_cover_the_truth() {
        const RUNS: u64 = 4000;
        let within = (0..RUNS).filter(|seed| deviation(seed + 1).abs() < 1.96);
        let coverage = within.count() as f64 / RUNS as f64;
        assert!((0.94..0.96).contains(&coverage), "{coverage}");
    }
}

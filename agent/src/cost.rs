//! Measures what sampling costs the process, and adapts the interval to a limit on it.
//!
//! Samples cost more than the time that they spend in the agent, since they also evict the
//! program's cache lines and branch history. So the cost is measured by trials: of some samples
//! that are due, half are skipped at random (the others count twice), and the time until the thread
//! has allocated a fixed number of bytes is measured. The difference of the means with and without
//! the sample is the cost of a sample; divided by the time that the sample spent in the agent, it
//! is the *factor*. Samples and frees are timed at intervals, and their time is multiplied by the
//! factor.
//!
//! The decisions are made by whichever thread takes a timed sample: there is no helper thread, and
//! a process without samples costs nothing.

// Decision 87: what a sample costs is measured by skipping samples.
use crate::float_environment;
use crate::session::{self, Epoch};
use crate::trial;
use crate::{cycles, seccomp, stats, sys, timers};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sampling::governor::{Decision, Governor, Reading};
use shm_protocol::clock;
use shm_protocol::layout::{MAX_INTERVALS, TrialSums};
use shm_protocol::record::BYTE_ONE;

/// Factor that is assumed before any trial, and its variance.
const PRIOR: Factor = Factor {
    mean: 2.0,
    variance: 0.5,
};
/// Ratio of the time that a sample and its free take to the time between the start and the stop of
/// their timers. The rest is spent before and after: on finding out that a sample is due or that an
/// object is sampled, and on saving registers. Measured on a machine whose clock counts
/// instructions.
const WHOLE_PER_TIMED: f64 = 1.25;
/// Length of a trial, in ns.
const TRIAL_NS: f64 = 5000.0;
/// Minimum time between two evaluations, each of which reads the CPU clock, in ns.
const MIN_EVALUATION_INTERVAL_NS: u64 = 1_000_000;
/// Minimum time between two evaluations, as a multiple of the time that one takes: to read the CPU
/// clock, the kernel adds up the times of all threads.
const MIN_INTERVAL_PER_EVALUATION: u64 = 256;
/// Maximum time that one evaluation is assumed to take, in ns. If it took longer, the thread was
/// suspended.
const MAX_EVALUATION_NS: u64 = 100_000;
/// Maximum number of samples over which the mean cost is computed.
const RECENT_SAMPLES: f64 = 16_384.0;
/// Minimum number of trials of each kind by which the factor is measured.
const MIN_TRIALS: f64 = 32.0;

/// Interval in force, in bytes; 0 before the first session.
static INTERVAL: AtomicU64 = AtomicU64::new(0);
/// Value of the cycle counter at which the next evaluation is due.
static NEXT_EVALUATION: AtomicU64 = AtomicU64::new(0);
/// Try-lock of [`STATE`]: the number of the process's segment ([`session::segment_number`]) while a
/// thread uses the state; otherwise 0. A forked child has another number, so a thread of its parent
/// does not keep it out.
static HOLDER: AtomicU32 = AtomicU32::new(0);
/// Segment and session that [`STATE`] describes, 32 bits each.
static SESSION: AtomicU64 = AtomicU64::new(0);

/// State of the session's governor.
struct State {
    governor: Governor,
    /// Process's CPU clock at the last evaluation, in ns; 0 if it could not be read.
    clock_ns: u64,
    /// Time of the last evaluation, in ns of the coarse clock.
    evaluated_ns: u64,
    /// CPU time of the process since the session began, in ns.
    cpu_ns: u64,
    /// True once elapsed time has been used in place of CPU time.
    is_elapsed: bool,
    /// Estimated bytes allocated at the last decision, fixed point.
    bytes: u64,
    /// CPU time that sampling has taken, in ns.
    spent_ns: f64,
    /// Sums at the last evaluation.
    sums: Sums,
    /// Samples over which the mean cost is computed.
    recent: Recent,
}

/// Sums over the latest samples.
#[derive(Clone, Copy)]
struct Recent {
    samples: f64,
    /// Time that the samples and their frees spent in the agent, in ns.
    agent_ns: f64,
    /// Additional time of unusually long samples, in ns.
    long_ns: f64,
}

impl Recent {
    const NONE: Self = Self {
        samples: 0.0,
        agent_ns: 0.0,
        long_ns: 0.0,
    };

    /// Adds the difference between two readings of the sums. Halves the sums when there are many
    /// samples, so that old samples count less.
    fn add(&mut self, earlier: &Sums, later: &Sums) {
        self.samples += later.samples.saturating_sub(earlier.samples) as f64;
        self.agent_ns += later.agent_ns.saturating_sub(earlier.agent_ns) as f64;
        self.long_ns += later.long_ns.saturating_sub(earlier.long_ns) as f64;
        if self.samples > RECENT_SAMPLES {
            self.samples /= 2.0;
            self.agent_ns /= 2.0;
            self.long_ns /= 2.0;
        }
    }

    /// Returns the mean cost of a sample, in ns.
    fn sample_ns(&self, factor: Factor) -> f64 {
        (self.agent_ns * factor.mean + self.long_ns) / self.samples.max(1.0)
    }
}

struct Shared(UnsafeCell<State>);
// SAFETY: used only by the thread that has set `HOLDER`.
unsafe impl Sync for Shared {}
static STATE: Shared = Shared(UnsafeCell::new(State {
    governor: Governor::new(0.0, 0),
    clock_ns: 0,
    evaluated_ns: 0,
    cpu_ns: 0,
    is_elapsed: false,
    bytes: 0,
    spent_ns: 0.0,
    sums: Sums::NONE,
    recent: Recent::NONE,
}));

/// Returns the interval at which a thread begins to sample in an epoch.
pub fn enter(epoch: &Epoch) -> u64 {
    let session = session_key(epoch);
    if SESSION.load(Ordering::Acquire) != session {
        try_with_state(|state| float_environment::with_default(|| begin(state, epoch, session)));
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
        evaluated_ns: clock::now_ns(),
        cpu_ns: 0,
        is_elapsed: false,
        bytes: 0,
        spent_ns: 0.0,
        sums: Sums::NONE,
        recent: Recent::NONE,
    };
    trial::LENGTH_BYTES.store(0, Ordering::Relaxed);
    stats::calibrate();
    // The first evaluation is due after one interval.
    let now = cycles::read().unwrap_or(0);
    let next = now.wrapping_add(stats::ns_to_cycles(MIN_EVALUATION_INTERVAL_NS));
    NEXT_EVALUATION.store(next, Ordering::Relaxed);
    INTERVAL.store(epoch.interval, Ordering::Relaxed);
    if epoch.max_overhead != 0 {
        let start_ns = epoch.published_start_ns;
        log_interval(epoch, start_ns, epoch.interval);
    }
    SESSION.store(session, Ordering::Release);
}

/// Returns the CPU clock of the process, in ns; 0 if a seccomp filter might forbid the system call.
fn cpu_clock() -> u64 {
    if seccomp::allows_timers() {
        timers::process_clock()
    } else {
        0
    }
}

/// Evaluates the cost if that is due, and decides on the interval. Called after a timed sample.
#[cold]
#[inline(never)]
pub fn evaluate(epoch: &Epoch) {
    let Some(now) = cycles::read() else { return };
    if (now.wrapping_sub(NEXT_EVALUATION.load(Ordering::Relaxed)) as i64) < 0
        || SESSION.load(Ordering::Relaxed) != session_key(epoch)
    {
        return;
    }
    try_with_state(|state| {
        decide(state, epoch);
        let Some(duration) = cycles::read().map(|end| end.wrapping_sub(now)) else {
            return;
        };
        // The thread may have been suspended in between.
        let duration = duration.min(stats::ns_to_cycles(MAX_EVALUATION_NS));
        let wait = stats::ns_to_cycles(MIN_EVALUATION_INTERVAL_NS)
            .max(duration * MIN_INTERVAL_PER_EVALUATION);
        NEXT_EVALUATION.store(now.wrapping_add(wait), Ordering::Relaxed);
    });
}

/// Adds up the cost of a session that is still running when the process exits. Keeps `errno`.
pub fn at_exit() {
    let is_known = SESSION.load(Ordering::Relaxed) >> 32 == u64::from(session::segment_number());
    if is_known && session::control().epoch(Ordering::Relaxed) != 0 {
        let saved = sys::errno();
        if let Some(epoch) =
            session::current().filter(|epoch| session_key(epoch) == SESSION.load(Ordering::Relaxed))
        {
            float_environment::with_default(|| finish(&epoch));
        }
        sys::set_errno(saved);
    }
}

fn finish(epoch: &Epoch) {
    try_with_state(|state| {
        let factor = Factor::of(epoch);
        let reading = advance(state, epoch, factor);
        state.governor.finish(reading);
        publish(state, epoch, factor);
    });
}

/// Adds up CPU time and cost since the last evaluation. Uses elapsed time where a seccomp filter
/// might forbid reading the CPU clock.
#[inline(never)]
fn advance(state: &mut State, epoch: &Epoch, factor: Factor) -> Reading {
    let clock_ns = cpu_clock();
    let now_ns = clock::now_ns();
    state.cpu_ns += if clock_ns != 0 && state.clock_ns != 0 {
        clock_ns.saturating_sub(state.clock_ns)
    } else {
        state.is_elapsed = true;
        now_ns.saturating_sub(state.evaluated_ns)
    };
    state.clock_ns = clock_ns;
    state.evaluated_ns = now_ns;
    let sums = Sums::of(epoch);
    let before = state.sums;
    let agent_ns = sums.agent_ns.saturating_sub(before.agent_ns) as f64;
    let unscaled_ns =
        (sums.first_ns + sums.long_ns).saturating_sub(before.first_ns + before.long_ns) as f64;
    state.spent_ns += agent_ns * factor.mean + unscaled_ns;
    state.recent.add(&before, &sums);
    state.sums = sums;
    Reading {
        cpu_ns: state.cpu_ns,
        spent_ns: state.spent_ns,
        samples: sums.samples,
        sample_ns: state.recent.sample_ns(factor),
    }
}

/// Sums over all threads since the session's start.
#[derive(Clone, Copy)]
struct Sums {
    /// Number of samples.
    samples: u64,
    /// Time that samples and frees spent in the agent, in ns.
    agent_ns: u64,
    /// Additional time of the first samples of each thread, in ns.
    first_ns: u64,
    /// Additional time of unusually long later samples, in ns.
    long_ns: u64,
    /// Estimated bytes allocated, fixed point.
    bytes: u64,
}

impl Sums {
    const NONE: Self = Self {
        samples: 0,
        agent_ns: 0,
        first_ns: 0,
        long_ns: 0,
        bytes: 0,
    };

    fn of(epoch: &Epoch) -> Self {
        let mut sums = Self::NONE;
        let log = &epoch.bank.header.cost;
        sums.first_ns = log.first_ns.load(Ordering::Relaxed);
        sums.long_ns = log.long_ns.load(Ordering::Relaxed);
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
    /// Returns the factor from the trials so far and the prior, each weighted by the inverse of its
    /// variance.
    #[inline(never)]
    fn of(epoch: &Epoch) -> Self {
        let log = &epoch.bank.header.cost;
        let Self { mean, variance } = PRIOR;
        let taken = TrialMeans::of(&log.taken);
        let skipped = TrialMeans::of(&log.skipped);
        let inside = log.inside_ns.load(Ordering::Relaxed) as f64 / taken.count;
        if taken.count < MIN_TRIALS || skipped.count < MIN_TRIALS || inside <= 0.0 {
            return Self { mean, variance };
        }
        // Skipped samples enter and leave the slow path, too, so the difference of the means lacks
        // that time.
        let scale = WHOLE_PER_TIMED / inside;
        let measured = (taken.mean - skipped.mean) * scale;
        let scatter = (taken.variance + skipped.variance) * scale * scale;
        let sum = variance + scatter;
        Self {
            mean: ((measured * variance + mean * scatter) / sum).max(1.0),
            variance: variance * scatter / sum,
        }
    }
}

/// Trials of one kind.
struct TrialMeans {
    count: f64,
    mean: f64,
    /// Variance of the mean.
    variance: f64,
}

impl TrialMeans {
    fn of(sums: &TrialSums) -> Self {
        let count = sums.count.load(Ordering::Relaxed) as f64;
        let mean = sums.ns.load(Ordering::Relaxed) as f64 / count;
        let square = sums.squares.load(Ordering::Relaxed) as f64 / count;
        Self {
            count,
            mean,
            variance: (square - mean * mean).max(0.0) / count,
        }
    }
}

/// Decides on the interval.
fn decide(state: &mut State, epoch: &Epoch) {
    let factor = Factor::of(epoch);
    let reading = advance(state, epoch, factor);
    let last = state.governor.last();
    let decision = state.governor.decide(reading);
    if decision == Decision::Wait {
        return;
    }
    let sums = state.sums;
    let per_ns = sums.bytes.saturating_sub(state.bytes) as f64
        / BYTE_ONE
        / state.cpu_ns.saturating_sub(last.cpu_ns).max(1) as f64;
    state.bytes = sums.bytes;
    trial::LENGTH_BYTES.store((per_ns * TRIAL_NS) as u64, Ordering::Relaxed);
    publish(state, epoch, factor);
    if let Decision::Change(interval) = decision {
        INTERVAL.store(interval, Ordering::Relaxed);
        log_interval(epoch, session::time::now_ns(), interval);
    }
}

/// Publishes the cost so far, unless the CPU clock could not be read: the cost's share of the CPU
/// time is then not known.
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
/// dropped, so that it still covers all of a long session.
#[inline(never)]
fn log_interval(epoch: &Epoch, from_ns: u64, interval: u64) {
    let log = &epoch.bank.header.intervals;
    let mut count = log.count.load(Ordering::Relaxed) as usize;
    if count >= MAX_INTERVALS {
        let kept = (0..MAX_INTERVALS).filter(|at| at % 2 == 0 || *at > MAX_INTERVALS / 2);
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

/// Returns a key that identifies the session of an epoch, and the segment that it is recorded in.
fn session_key(epoch: &Epoch) -> u64 {
    u64::from(session::segment_number()) << 32 | u64::from(epoch.session as u32)
}

/// Runs `work` with the state. Does nothing if another thread is using the state.
fn try_with_state(work: impl FnOnce(&mut State)) {
    let this_segment = session::segment_number();
    let holder = HOLDER.load(Ordering::Relaxed);
    let is_free = holder != this_segment
        && HOLDER
            .compare_exchange(holder, this_segment, Ordering::Acquire, Ordering::Relaxed)
            .is_ok();
    if is_free {
        // SAFETY: this thread has set `HOLDER`, and resets it afterwards. A number of another
        // segment was set by a thread of the parent, which does not exist in this process.
        work(unsafe { &mut *STATE.0.get() });
        HOLDER.store(0, Ordering::Release);
    }
}

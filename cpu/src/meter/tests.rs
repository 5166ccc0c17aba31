//! Tests of the meter of one process, with simulated clocks.

use std::collections::HashMap;

use super::*;

pub(crate) const FIRST: StackKey = Some((1, 1));
pub(crate) const OTHER: StackKey = Some((1, 2));
const PERIOD: u64 = 10;
const PID: i32 = 7;

/// Simulated clocks.
#[derive(Default)]
pub(crate) struct FakeClocks {
    pub processes: HashMap<i32, u64>,
    pub threads: HashMap<i32, u64>,
}

impl Clock for FakeClocks {
    fn process(&self, pid: i32) -> Option<u64> {
        self.processes.get(&pid).copied()
    }

    fn thread(&self, _: i32, tid: i32) -> Option<u64> {
        self.threads.get(&tid).copied()
    }
}

/// Simulated process with threads that use CPU time.
struct Process {
    meter: Meter,
    clocks: FakeClocks,
    /// CPU time reported for each stack.
    times: Times,
}

impl Process {
    fn new(tids: &[i32]) -> Self {
        let clocks = FakeClocks {
            processes: HashMap::from([(PID, 1000)]),
            threads: tids.iter().map(|tid| (*tid, 500)).collect(),
        };
        Self {
            meter: Meter::new(PID, tids, &clocks),
            clocks,
            times: Times::new(),
        }
    }

    fn use_up(&mut self, tid: i32, ns: u64) {
        *self.clocks.threads.entry(tid).or_default() += ns;
        *self.clocks.processes.entry(PID).or_default() += ns;
    }

    fn sampled(&mut self, tid: i32, stack: StackKey, times: u64) {
        (0..times).for_each(|_| self.meter.count(tid, stack));
    }

    fn handle_fork(&mut self, tid: i32) {
        self.clocks.threads.insert(tid, 0);
        self.meter.handle_fork(tid);
    }

    fn handle_exit(&mut self, tid: i32) {
        self.clocks.threads.remove(&tid);
        self.meter.handle_exit(tid);
    }

    fn weigh(&mut self, scale: Weighting) -> Vec<(StackKey, u64)> {
        let reported = self.meter.weigh(PID, PERIOD, scale, &self.clocks);
        let times = reported.unwrap_or_default().times;
        for (stack, ns) in &times {
            *self.times.entry(*stack).or_default() += ns;
        }
        times.into_iter().collect()
    }

    fn reported(&self) -> u64 {
        self.times.values().sum()
    }
}

#[test]
fn a_thread_is_weighted_by_its_own_clock() {
    let mut process = Process::new(&[1, 2]);
    process.use_up(1, 300);
    process.use_up(2, 100);
    // Equally many samples of each: scheduling was in step with sampling.
    process.sampled(1, FIRST, 20);
    process.sampled(2, OTHER, 20);
    assert_eq!(
        process.weigh(Weighting::Clock),
        [(FIRST, 300), (OTHER, 100)]
    );
    // If samples were lost, the thread's others get more weight.
    process.use_up(1, 900);
    process.use_up(2, 100);
    process.sampled(1, FIRST, 1);
    process.sampled(2, OTHER, 10);
    assert_eq!(
        process.weigh(Weighting::Clock),
        [(FIRST, 900), (OTHER, 100)]
    );
}

#[test]
fn samples_of_threads_that_used_little_stay_pending() {
    let mut process = Process::new(&[1, 2]);
    process.use_up(1, 30);
    process.use_up(2, 100);
    process.sampled(1, FIRST, 5);
    process.sampled(2, OTHER, 8);
    assert_eq!(process.weigh(Weighting::Clock), [(OTHER, 100)]);
    process.use_up(1, 30);
    assert_eq!(process.weigh(Weighting::Clock), []);
    process.sampled(1, OTHER, 1);
    assert_eq!(process.weigh(Weighting::Clock), [(FIRST, 50), (OTHER, 10)]);
    // The last time, no samples stay pending.
    process.use_up(1, 14);
    process.sampled(1, FIRST, 1);
    assert_eq!(process.weigh(Weighting::Last), [(FIRST, 14)]);
    assert_eq!(process.reported(), 174);
}

#[test]
fn time_not_yet_in_thread_clocks_is_reported_at_the_end() {
    let mut process = Process::new(&[1, 2, 3]);
    process.use_up(1, 100);
    process.use_up(2, 100);
    process.use_up(3, 50);
    process.clocks.threads.insert(2, 560);
    process.sampled(1, FIRST, 1);
    process.sampled(2, OTHER, 1);
    assert_eq!(process.weigh(Weighting::Last), [(FIRST, 156), (OTHER, 94)]);
    // Now that the clock includes that time, it is not reported again.
    process.clocks.threads.insert(2, 600);
    process.sampled(2, OTHER, 1);
    assert_eq!(process.weigh(Weighting::Clock), []);
    process.use_up(2, 100);
    process.sampled(2, OTHER, 1);
    assert_eq!(process.weigh(Weighting::Clock), [(OTHER, 100)]);
}

#[test]
fn exited_threads_share_the_remaining_time() {
    let mut process = Process::new(&[1]);
    process.use_up(1, 200);
    process.sampled(1, FIRST, 10);
    for tid in 2..102 {
        process.handle_fork(tid);
        process.use_up(tid, 3);
        if tid % 10 == 0 {
            process.sampled(tid, OTHER, 1);
        }
        process.handle_exit(tid);
    }
    // A thread whose creation was not recorded.
    process.use_up(200, 5);
    process.sampled(200, FIRST, 1);
    process.handle_exit(200);
    let times = process.weigh(Weighting::Clock);
    assert_eq!(times, [(FIRST, 200 + 27), (OTHER, 305 - 27)]);
}

#[test]
fn without_thread_clocks_samples_are_weighted_by_count() {
    let mut process = Process::new(&[1, 2]);
    process.clocks.threads = HashMap::from([(1, 0), (2, 0)]);
    process.meter = Meter::new(PID, &[1, 2], &process.clocks);
    for _ in 0..20 {
        process
            .clocks
            .processes
            .entry(PID)
            .and_modify(|ns| *ns += 40);
        process.sampled(1, FIRST, 3);
        process.sampled(2, OTHER, 1);
        process.weigh(Weighting::Clock);
    }
    assert!(
        process.reported() >= 400,
        "samples do not stay pending forever"
    );
    process.weigh(Weighting::Last);
    assert_eq!(process.times, Times::from([(FIRST, 600), (OTHER, 200)]));
}

#[test]
fn an_exited_process_is_weighted_by_its_samples() {
    let mut process = Process::new(&[1]);
    process.sampled(1, FIRST, 2);
    process.sampled(2, OTHER, 1);
    process.clocks = FakeClocks::default();
    assert_eq!(process.weigh(Weighting::Clock), [(FIRST, 20), (OTHER, 10)]);
    assert_eq!(process.weigh(Weighting::Last), []);
}

#[test]
fn samples_before_an_exec_do_not_get_time_after_it() {
    let mut process = Process::new(&[1, PID]);
    process.use_up(1, 100);
    process.sampled(1, FIRST, 2);
    process.sampled(PID, None, 1);
    assert_eq!(process.weigh(Weighting::Periods), [(None, 10), (FIRST, 20)]);
    // The thread that called exec now has the process's id as tid, but keeps its clock.
    process.clocks.threads = HashMap::from([(PID, 600)]);
    process.meter.handle_exec(PID, &process.clocks);
    process.use_up(PID, 50);
    process.sampled(PID, OTHER, 5);
    assert_eq!(process.weigh(Weighting::Clock), [(OTHER, 50)]);
    process.sampled(PID, OTHER, 1);
    assert_eq!(process.weigh(Weighting::Last), [(OTHER, 70)]);
}

#[test]
fn a_clock_that_goes_backwards_reports_nothing_twice() {
    let mut process = Process::new(&[1]);
    process.use_up(1, 100);
    process.sampled(1, FIRST, 10);
    process.weigh(Weighting::Clock);
    process.clocks.processes.insert(PID, 1000);
    process.clocks.threads.insert(1, 700);
    process.sampled(1, FIRST, 10);
    // A thread is not assigned more than its process has used.
    assert_eq!(process.weigh(Weighting::Last), [(FIRST, 0)]);
    process.clocks.processes.insert(PID, 1130);
    process.sampled(1, FIRST, 3);
    process.weigh(Weighting::Last);
    assert_eq!(process.reported(), 130);
}

/// Threads of all kinds with random samples: no kind is over- or underestimated.
#[test]
fn no_kind_of_thread_is_favoured() {
    const BUSY: StackKey = Some((0, 0));
    const LIGHT: StackKey = Some((0, 1));
    const SHORT_LIVED: StackKey = Some((0, 2));
    const ROUNDS: u64 = 2000;
    let mut seed = 1_u64;
    let mut sampled = |ns: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % (1000 * PERIOD) < 1000 * ns
    };
    let light: Vec<i32> = (100..140).collect();
    let mut process = Process::new(&[&[1, 2][..], &light].concat());
    let mut used = Times::new();
    for round in 0..ROUNDS {
        let mut pass = |process: &mut Process, tid, ns, stack| {
            process.use_up(tid, ns);
            *used.entry(stack).or_default() += ns;
            if sampled(ns) {
                process.sampled(tid, stack, 1);
            }
        };
        (0..10).for_each(|_| pass(&mut process, 1, 9, BUSY));
        (0..5).for_each(|_| pass(&mut process, 2, 9, BUSY));
        light
            .iter()
            .for_each(|tid| pass(&mut process, *tid, 2, LIGHT));
        for tid in 1000..1020 {
            process.handle_fork(tid);
            pass(&mut process, tid, 4, SHORT_LIVED);
            process.handle_exit(tid);
        }
        let is_shown = round % 10 == 0;
        process.weigh(if is_shown {
            Weighting::Last
        } else {
            Weighting::Clock
        });
    }
    process.weigh(Weighting::Last);
    assert_eq!(process.reported(), used.values().sum::<u64>());
    for (stack, ns) in used {
        let reported = process.times[&stack] as f64 / ns as f64;
        assert!((reported - 1.0).abs() < 0.03, "{stack:?}: {reported}");
    }
}

//! Meters of one process, whose clocks say what the test says.

use std::collections::HashMap;

use super::*;

pub(crate) const FIRST: Place = Some((1, 1));
pub(crate) const OTHER: Place = Some((1, 2));
const PERIOD: u64 = 10;
const PID: i32 = 7;

/// Clocks that say this.
#[derive(Default)]
pub(crate) struct Said {
    pub processes: HashMap<i32, u64>,
    pub threads: HashMap<i32, u64>,
}

impl Clock for Said {
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
    said: Said,
    /// CPU time reported for each place.
    times: Times,
}

impl Process {
    fn new(tids: &[i32]) -> Self {
        let said = Said {
            processes: HashMap::from([(PID, 1000)]),
            threads: tids.iter().map(|tid| (*tid, 500)).collect(),
        };
        Self {
            meter: Meter::new(PID, tids, &said),
            said,
            times: Times::new(),
        }
    }

    fn use_up(&mut self, tid: i32, ns: u64) {
        *self.said.threads.entry(tid).or_default() += ns;
        *self.said.processes.entry(PID).or_default() += ns;
    }

    fn sampled(&mut self, tid: i32, place: Place, times: u64) {
        (0..times).for_each(|_| self.meter.count(tid, place));
    }

    fn forked(&mut self, tid: i32) {
        self.said.threads.insert(tid, 0);
        self.meter.forked(tid);
    }

    fn exit(&mut self, tid: i32) {
        self.said.threads.remove(&tid);
        self.meter.exit(tid);
    }

    fn weigh(&mut self, scale: Scale) -> Vec<(Place, u64)> {
        let reported = self.meter.weigh(PID, PERIOD, scale, &self.said);
        let times = reported.unwrap_or_default().times;
        for (place, ns) in &times {
            *self.times.entry(*place).or_default() += ns;
        }
        times.into_iter().collect()
    }

    fn reported(&self) -> u64 {
        self.times.values().sum()
    }
}

#[test]
fn a_thread_has_what_its_own_clock_says() {
    let mut process = Process::new(&[1, 2]);
    process.use_up(1, 300);
    process.use_up(2, 100);
    // As many samples of each: their turns kept time with them.
    process.sampled(1, FIRST, 20);
    process.sampled(2, OTHER, 20);
    assert_eq!(process.weigh(Scale::Clock), [(FIRST, 300), (OTHER, 100)]);
    // Samples that were lost make the others heavier, in the same thread.
    process.use_up(1, 900);
    process.use_up(2, 100);
    process.sampled(1, FIRST, 1);
    process.sampled(2, OTHER, 10);
    assert_eq!(process.weigh(Scale::Clock), [(FIRST, 900), (OTHER, 100)]);
}

#[test]
fn who_has_used_little_waits_for_the_next_time() {
    let mut process = Process::new(&[1, 2]);
    process.use_up(1, 30);
    process.use_up(2, 100);
    process.sampled(1, FIRST, 5);
    process.sampled(2, OTHER, 8);
    assert_eq!(process.weigh(Scale::Clock), [(OTHER, 100)]);
    process.use_up(1, 30);
    assert_eq!(process.weigh(Scale::Clock), []);
    process.sampled(1, OTHER, 1);
    assert_eq!(process.weigh(Scale::Clock), [(FIRST, 50), (OTHER, 10)]);
    // The last time, there is nothing to wait for.
    process.use_up(1, 14);
    process.sampled(1, FIRST, 1);
    assert_eq!(process.weigh(Scale::Last), [(FIRST, 14)]);
    assert_eq!(process.reported(), 174);
}

#[test]
fn what_clocks_do_not_show_yet_is_reported_at_the_end() {
    let mut process = Process::new(&[1, 2, 3]);
    process.use_up(1, 100);
    process.use_up(2, 100);
    process.use_up(3, 50);
    process.said.threads.insert(2, 560);
    process.sampled(1, FIRST, 1);
    process.sampled(2, OTHER, 1);
    assert_eq!(process.weigh(Scale::Last), [(FIRST, 156), (OTHER, 94)]);
    // It is not reported twice, now that the clock includes it.
    process.said.threads.insert(2, 600);
    process.sampled(2, OTHER, 1);
    assert_eq!(process.weigh(Scale::Clock), []);
    process.use_up(2, 100);
    process.sampled(2, OTHER, 1);
    assert_eq!(process.weigh(Scale::Clock), [(OTHER, 100)]);
}

#[test]
fn threads_that_have_ended_share_what_is_left() {
    let mut process = Process::new(&[1]);
    process.use_up(1, 200);
    process.sampled(1, FIRST, 10);
    for tid in 2..102 {
        process.forked(tid);
        process.use_up(tid, 3);
        if tid % 10 == 0 {
            process.sampled(tid, OTHER, 1);
        }
        process.exit(tid);
    }
    // Of a birth that is not known.
    process.use_up(200, 5);
    process.sampled(200, FIRST, 1);
    process.exit(200);
    let times = process.weigh(Scale::Clock);
    assert_eq!(times, [(FIRST, 200 + 27), (OTHER, 305 - 27)]);
}

#[test]
fn a_kernel_without_clocks_of_threads_leaves_the_samples() {
    let mut process = Process::new(&[1, 2]);
    process.said.threads = HashMap::from([(1, 0), (2, 0)]);
    process.meter = Meter::new(PID, &[1, 2], &process.said);
    for _ in 0..20 {
        process.said.processes.entry(PID).and_modify(|ns| *ns += 40);
        process.sampled(1, FIRST, 3);
        process.sampled(2, OTHER, 1);
        process.weigh(Scale::Clock);
    }
    assert!(process.reported() >= 400, "they do not wait forever");
    process.weigh(Scale::Last);
    assert_eq!(process.times, Times::from([(FIRST, 600), (OTHER, 200)]));
}

#[test]
fn a_process_that_has_ended_is_known_by_its_samples() {
    let mut process = Process::new(&[1]);
    process.sampled(1, FIRST, 2);
    process.sampled(2, OTHER, 1);
    process.said = Said::default();
    assert_eq!(process.weigh(Scale::Clock), [(FIRST, 20), (OTHER, 10)]);
    assert_eq!(process.weigh(Scale::Last), []);
}

#[test]
fn samples_before_a_program_is_executed_do_not_have_the_next_ones_time() {
    let mut process = Process::new(&[1, PID]);
    process.use_up(1, 100);
    process.sampled(1, FIRST, 2);
    process.sampled(PID, None, 1);
    assert_eq!(process.weigh(Scale::Periods), [(None, 10), (FIRST, 20)]);
    // The thread that did so has the process's number and its own clock.
    process.said.threads = HashMap::from([(PID, 600)]);
    process.meter.executed(PID, &process.said);
    process.use_up(PID, 50);
    process.sampled(PID, OTHER, 5);
    assert_eq!(process.weigh(Scale::Clock), [(OTHER, 50)]);
    process.sampled(PID, OTHER, 1);
    assert_eq!(process.weigh(Scale::Last), [(OTHER, 70)]);
}

#[test]
fn clocks_that_go_backwards_are_waited_for() {
    let mut process = Process::new(&[1]);
    process.use_up(1, 100);
    process.sampled(1, FIRST, 10);
    process.weigh(Scale::Clock);
    process.said.processes.insert(PID, 1000);
    process.said.threads.insert(1, 700);
    process.sampled(1, FIRST, 10);
    // What its process has not used cannot be its own.
    assert_eq!(process.weigh(Scale::Last), [(FIRST, 0)]);
    process.said.processes.insert(PID, 1130);
    process.sampled(1, FIRST, 3);
    process.weigh(Scale::Last);
    assert_eq!(process.reported(), 130);
}

/// Threads of all kinds, whose samples are random: none has more than it used, or less, because
/// of its kind.
#[test]
fn no_kind_of_thread_is_preferred() {
    const BUSY: Place = Some((0, 0));
    const LIGHT: Place = Some((0, 1));
    const SHORT_LIVED: Place = Some((0, 2));
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
        let mut pass = |process: &mut Process, tid, ns, place| {
            process.use_up(tid, ns);
            *used.entry(place).or_default() += ns;
            if sampled(ns) {
                process.sampled(tid, place, 1);
            }
        };
        (0..10).for_each(|_| pass(&mut process, 1, 9, BUSY));
        (0..5).for_each(|_| pass(&mut process, 2, 9, BUSY));
        light
            .iter()
            .for_each(|tid| pass(&mut process, *tid, 2, LIGHT));
        for tid in 1000..1020 {
            process.forked(tid);
            pass(&mut process, tid, 4, SHORT_LIVED);
            process.exit(tid);
        }
        let is_shown = round % 10 == 0;
        process.weigh(if is_shown { Scale::Last } else { Scale::Clock });
    }
    process.weigh(Scale::Last);
    assert_eq!(process.reported(), used.values().sum::<u64>());
    for (place, ns) in used {
        let reported = process.times[&place] as f64 / ns as f64;
        assert!((reported - 1.0).abs() < 0.03, "{place:?}: {reported}");
    }
}

//! Models of starting and stopping sessions while threads of the process enter them.

use super::memory::{SHARDS, Segment, count, session};
use crate::layout::MAGIC;
use crate::owner::{
    EnteredSession, Mapping, NONE, SegmentState, Sessions, Setting, enter, publish,
};
use crate::sync::{AtomicU8, AtomicU64, Ordering};
use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::Arc;
use loom::thread;
use std::vec::Vec;

/// Process: its segment, and the state of its agent.
struct Process {
    segment: Segment,
    sessions: Sessions,
    base: Mapping,
    /// True if a thread's own mapping of the segment exists. Loom reports a use that races with its
    /// creation or removal.
    mapped: [UnsafeCell<bool>; SHARDS as usize],
}

// SAFETY: loom reports every access to `mapped` that is not ordered.
unsafe impl Sync for Process {}
// SAFETY: the pointer in `base` points to a part of the process itself.
unsafe impl Send for Process {}

impl Process {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            segment: Segment::new(),
            sessions: Sessions::new(),
            base: Mapping::new(),
            mapped: core::array::from_fn(|_| UnsafeCell::new(false)),
        })
    }

    /// Models the agent's `attach` in the thread of a shard.
    fn attach(&self, shard: u32) -> &UnsafeCell<bool> {
        let mapped = |base: *mut u8| {
            // SAFETY: this is the address of an element of `mapped`, which lives as long as `self`.
            unsafe { &*base.cast::<UnsafeCell<bool>>() }
        };
        if let Some(base) = self.base.get() {
            return mapped(base);
        }
        let own_mapping = &self.mapped[shard as usize];
        // SAFETY: loom reports every access that is not ordered with this one.
        own_mapping.with_mut(|at| unsafe { *at = true });
        match self.base.offer((&raw const *own_mapping).cast_mut().cast()) {
            Ok(()) => own_mapping,
            Err(first) => {
                // SAFETY: loom reports every access that is not ordered with this one.
                own_mapping.with_mut(|at| unsafe { *at = false });
                mapped(first)
            }
        }
    }

    /// Models a thread of the agent that enters a session.
    fn enter(&self, shard: u32) -> Option<EnteredSession<'_>> {
        let bank = |session| {
            // SAFETY: loom reports every access that is not ordered with this one.
            let is_mapped = self.attach(shard).with(|at| unsafe { *at });
            assert!(is_mapped, "used where it is not mapped");
            Some(self.segment.bank(session))
        };
        let entered = enter(&self.segment.control, &self.sessions, bank, |ns| ns as u32)?;
        check(&entered);
        Some(entered)
    }
}

/// Checks that all of a thread's sampling state belongs to one session.
fn check(entered: &EnteredSession<'_>) {
    let published = session(entered.setting.session);
    let expected = Setting {
        epoch: entered.setting.epoch,
        session: published.number,
        interval: published.interval,
        deadline_ns: published.deadline_ns,
        start_ns: published.start_ns,
        range_limit: published.range_limit,
        thinning: published.thinning,
        max_overhead: published.max_overhead,
        cpu: published.cpu,
    };
    assert_eq!(entered.setting, expected, "parameters of two sessions");
    assert_eq!(u64::from(entered.start_tick), published.start_ns);
}

fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// Models a thread's slow path `samples` times. Returns the session of each sample that it counted.
fn run(process: &Process, shard: u32, samples: u32) -> Vec<u64> {
    let control = &process.segment.control;
    let mut counted = Vec::new();
    let mut known: Option<EnteredSession<'_>> = None;
    for _ in 0..samples {
        let current = known.as_ref().is_some_and(|entered| {
            let number = control.epoch(Ordering::Relaxed);
            let Setting {
                epoch,
                session,
                deadline_ns,
                ..
            } = entered.setting;
            epoch == number && Setting::is_current(control, epoch, session, deadline_ns)
        });
        if !current {
            known = process.enter(shard);
        }
        if let Some(entered) = &known {
            count(&entered.bank, shard);
            counted.push(entered.setting.session);
        }
    }
    counted
}

/// Checks that every sample is in the totals and in the records of the session in which it was
/// taken.
fn check_counts(process: &Process, session: u64, counted: &[u64]) {
    let samples = counted
        .iter()
        .filter(|taken_in| **taken_in == session)
        .count() as u64;
    let bank = process.segment.of_session(session);
    assert_eq!(bank.session(), session);
    assert_eq!(bank.samples(), [samples; 2], "samples of session {session}");
}

/// Two threads enter the first session of a process while it begins. One mapping of the tables is
/// kept, no thread uses the other one or a bank that is not prepared, and every sample is counted.
#[test]
fn threads_enter_a_session_that_begins() {
    explore(2, || {
        let process = Process::new();
        let other = Arc::clone(&process);
        let thread = thread::spawn(move || run(&other, 1, 1));
        let third = Arc::clone(&process);
        let second = thread::spawn(move || run(&third, 0, 1));
        process.segment.start_session(1);
        let mut counted = thread.join().unwrap();
        counted.extend(second.join().unwrap());
        check_counts(&process, 1, &counted);
        assert_eq!(run(&process, 0, 1), [1], "a later thread enters it");
        // SAFETY: loom reports every access that is not ordered with this one.
        let mapped = |place: &&UnsafeCell<bool>| place.with(|at| unsafe { *at });
        assert_eq!(process.mapped.iter().filter(mapped).count(), 1);
    });
}

/// A thread is still taking a sample when its session ends and the next begins. Each sample is in
/// the bank of its own session, and none is lost.
#[test]
fn slow_thread_enters_the_next_session() {
    explore(2, || {
        let process = Process::new();
        process.segment.start_session(1);
        let other = Arc::clone(&process);
        let thread = thread::spawn(move || run(&other, 1, 2));
        process.segment.stop();
        process.segment.start_session(2);
        let mut counted = run(&process, 0, 1);
        assert_eq!(counted, [2], "the running session is entered");
        counted.extend(thread.join().unwrap());
        check_counts(&process, 1, &counted);
        check_counts(&process, 2, &counted);
    });
}

/// A thread that is entering a session sleeps until the session after the next, which uses the same
/// bank and the same parameters in memory. The thread does not mix the parameters of two sessions,
/// and does not use a bank that is being cleared. Frees of the new session's objects are counted.
#[test]
fn thread_sleeps_through_two_sessions() {
    explore(2, || {
        let process = Process::new();
        process.segment.start_session(1);
        count(&process.segment.bank(1), 0);
        let other = Arc::clone(&process);
        let thread = thread::spawn(move || {
            if let Some(entered) = other
                .enter(1)
                .filter(|entered| entered.setting.session == 3)
            {
                let record = entered.bank.records.record(1).unwrap();
                let samples = record.alloc_samples.load(Ordering::Relaxed);
                assert_eq!(samples, 0, "a bank with a sample of another session");
            }
        });
        process.segment.stop();
        process.segment.start_session(2);
        process.segment.stop();
        process.segment.start_session(3);
        let entered = process.enter(0).expect("a session that runs");
        let born = entered.start_tick;
        thread.join().unwrap();
        assert_eq!(
            process.sessions.of_object(3, born, born),
            Some((3, born)),
            "frees are lost"
        );
        check_counts(&process, 3, &[]);
    });
}

/// A session is published while its bank still belongs to the last session: no sample is counted
/// for it.
#[test]
fn bank_of_another_session_is_not_used() {
    explore(3, || {
        let process = Process::new();
        process.segment.start_session(1);
        let other = Arc::clone(&process);
        let thread = thread::spawn(move || run(&other, 1, 2));
        process.segment.stop();
        process.segment.file().publish(&session(3)).unwrap();
        let counted = thread.join().unwrap();
        assert_eq!(run(&process, 0, 1), []);
        check_counts(&process, 1, &counted);
    });
}

/// A thread detects that its session's deadline has passed while the controller starts the next
/// session. It does not end the next session.
#[test]
fn deadline_ends_no_other_session() {
    explore(3, || {
        let process = Process::new();
        process.segment.start_session(1);
        let other = Arc::clone(&process);
        let thread = thread::spawn(move || {
            if let Some(entered) = other.enter(1) {
                let ended = Setting::end(&other.segment.control, entered.setting.epoch);
                assert!(entered.setting.session == 1 || ended);
                return ended.then_some(entered.setting.session);
            }
            None
        });
        process.segment.stop();
        process.segment.start_session(2);
        let ended = thread.join().unwrap();
        let runs = Setting::in_force(&process.segment.control).map(|setting| setting.session);
        assert_eq!(runs, (ended != Some(2)).then_some(2));
    });
}

/// A process starts a session together with its segment while a controller discovers the segment.
/// The controller finds no segment, or a running session, and does not start another one. A thread
/// that sees the session also sees that the process has a segment.
#[test]
fn the_first_session_begins_before_the_segment_is_visible() {
    explore(3, || {
        let process = Process::new();
        let words = Arc::new((AtomicU64::new(0), SegmentState(AtomicU8::new(NONE))));
        let other = Arc::clone(&process);
        let shared = Arc::clone(&words);
        let thread = thread::spawn(move || {
            let (magic, life) = &*shared;
            life.make();
            other.segment.prepare(2);
            publish(&other.segment.control, magic, Some(&session(2)));
            life.own(None);
            other.enter(1).map(|entered| entered.setting.session)
        });
        let (magic, life) = &*words;
        if process.segment.control.epoch(Ordering::Relaxed) != 0 {
            assert_ne!(life.since_epoch(), NONE, "the thread would never sample");
        }
        if magic.load(Ordering::Acquire) == MAGIC && !process.segment.had_session() {
            process.segment.start_session(1);
        }
        assert_eq!(thread.join().unwrap(), Some(2));
        assert_eq!(run(&process, 0, 1), [2]);
    });
}

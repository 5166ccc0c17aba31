//! What the kernel's events have counted for each thread, and how much of that was reported
//! already.
//!
//! Records in, nanoseconds out, each at most once: bookkeeping without system calls. It works both
//! where samples come with their thread's clock (Linux 6.13) and where they stand for one period
//! each.
//!
//! - A thread that was born while its process was attached has inherited events, and then got its
//!   own: only the latter count for it, and for the threads that it starts.
//! - The end of a thread is reported first (EXIT); what its inherited events have counted comes
//!   after that (READ), possibly much later. Events of its own report nothing.
//! - A thread that executes a program takes over the ID of the process's first thread. All others
//!   have ended by then, and this was reported.

use std::collections::{HashMap, VecDeque};

/// Maximum number of threads that have ended and whose last counts may still come.
const MOST_ENDED: usize = 1024;

/// Where a count comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At {
    pub time: u64,
    pub pid: i32,
    pub tid: i32,
    /// The event; those that were inherited have the number of the one that was opened.
    pub id: u64,
}

/// A time, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Share {
    /// What a sample stands for; of a thread that has ended, what no sample stands for.
    pub ns: u64,
    /// Besides, what was in the kernel where that is not sampled.
    pub hidden: u64,
}

/// An event that was opened, with all that were inherited from it.
struct Event {
    /// Those of one thread are a group.
    group: u64,
    /// What was reported of its count.
    told: u64,
    /// What it counted of threads for which others count.
    doubled: u64,
}

struct Thread {
    pid: i32,
    /// The events that count for it; `None`: the first that are seen.
    group: Option<u64>,
    /// The round in which it got events of its own.
    opened: Option<u64>,
    /// What is known of its counts, by event.
    counted: HashMap<u64, u64>,
    /// When something was last heard of it.
    last: u64,
    ended: Option<u64>,
}

impl Thread {
    fn new(pid: i32, group: Option<u64>, time: u64) -> Self {
        Self {
            pid,
            group,
            opened: None,
            counted: HashMap::new(),
            last: time,
            ended: None,
        }
    }
}

/// All counts.
pub(crate) struct Clocks {
    period: u64,
    /// Whether samples that would be in the kernel are swallowed.
    hides_kernel: bool,
    events: HashMap<u64, Event>,
    threads: HashMap<i32, Thread>,
    /// Threads that have ended, and when: the first of them is forgotten first.
    ended: VecDeque<(i32, u64)>,
    /// By process: what the samples of threads that have ended stood for beyond what they used.
    /// Periods are an estimate; one thread's excess is another one's deficit.
    excess: HashMap<i32, u64>,
    groups: u64,
    round: u64,
}

impl Clocks {
    pub(crate) fn new(period: u64, hides_kernel: bool) -> Self {
        Self {
            period: period.max(1),
            hides_kernel,
            events: HashMap::new(),
            threads: HashMap::new(),
            ended: VecDeque::new(),
            excess: HashMap::new(),
            groups: 0,
            round: 0,
        }
    }

    /// A thread gets events of its own: the number of their group.
    pub(crate) fn begin(&mut self, pid: i32, tid: i32) -> u64 {
        self.groups += 1;
        let mut thread = Thread::new(pid, Some(self.groups), 0);
        thread.opened = Some(self.round);
        self.threads.insert(tid, thread);
        self.groups
    }

    /// It got this one.
    pub(crate) fn opened(&mut self, id: u64, group: u64) {
        let event = Event {
            group,
            told: 0,
            doubled: 0,
        };
        self.events.insert(id, event);
    }

    /// It got none after all.
    pub(crate) fn cancel(&mut self, tid: i32) {
        self.threads.remove(&tid);
    }

    /// Whether a thread has events of its own.
    pub(crate) fn has_own(&self, tid: i32) -> bool {
        let thread = self.threads.get(&tid);
        thread.is_some_and(|thread| thread.opened.is_some() && thread.ended.is_none())
    }

    /// All records were seen that were written before this round began.
    pub(crate) fn end_round(&mut self) {
        self.round += 1;
    }

    /// A thread was born.
    pub(crate) fn born(&mut self, time: u64, (pid, tid): (i32, i32), parent: i32) {
        let known = self.threads.get(&tid);
        if known.is_some_and(|known| known.ended.is_none() && known.opened == Some(self.round)) {
            // The record is older than its own events.
            return;
        }
        let group = self.threads.get(&parent).and_then(|parent| parent.group);
        self.threads.insert(tid, Thread::new(pid, group, time));
    }

    /// A thread ended: nothing comes but its last counts.
    pub(crate) fn exit(&mut self, time: u64, pid: i32, tid: i32) {
        let thread = self.threads.entry(tid);
        let thread = thread.or_insert_with(|| Thread::new(pid, None, time));
        if thread.ended.is_some() {
            return;
        }
        thread.ended = Some(time);
        self.ended.push_back((tid, time));
        if self.ended.len() > MOST_ENDED
            && let Some((tid, time)) = self.ended.pop_front()
            && self
                .threads
                .get(&tid)
                .is_some_and(|thread| thread.ended == Some(time))
        {
            self.threads.remove(&tid);
        }
    }

    /// A process executes a program: the thread that did so has the process's number now.
    pub(crate) fn executed(&mut self, pid: i32) {
        let left = self.threads.iter();
        let left = left.filter(|(_, thread)| thread.pid == pid && thread.ended.is_none());
        let mut left: Vec<(u64, i32)> = left.map(|(tid, thread)| (thread.last, *tid)).collect();
        left.sort_unstable();
        let Some((_, newest)) = left.pop() else {
            return;
        };
        let Some(mut heir) = self.threads.remove(&newest) else {
            return;
        };
        // There are more where records were lost. Which counts continue is not known then: the
        // highest are those for which nothing is reported twice.
        for (_, tid) in left {
            let Some(other) = self.threads.remove(&tid) else {
                continue;
            };
            if other.group != heir.group {
                (heir.group, heir.opened) = (None, None);
            }
            for (id, count) in other.counted {
                let known = heir.counted.entry(id).or_default();
                *known = count.max(*known);
            }
        }
        self.threads.insert(pid, heir);
    }

    /// What a sample stands for, of which the thread's clock may be known. `None`: it comes from
    /// an event that does not count.
    pub(crate) fn sample(&mut self, at: At, count: Option<u64>) -> Option<Share> {
        let group = self.events.get(&at.id)?.group;
        self.revive(at);
        let thread = self.threads.entry(at.tid);
        let thread = thread.or_insert_with(|| Thread::new(at.pid, None, at.time));
        if *thread.group.get_or_insert(group) != group {
            return None;
        }
        thread.last = thread.last.max(at.time);
        let known = thread.counted.entry(at.id).or_default();
        let now = count.unwrap_or(known.saturating_add(self.period));
        let ns = now.saturating_sub(*known);
        *known = now.max(*known);
        let event = self.events.get_mut(&at.id)?;
        event.told = event.told.saturating_add(ns);
        let hidden = match self.hides_kernel {
            // Ticks that came in the kernel were swallowed: whole periods.
            true => ns.saturating_add(self.period / 2) / self.period * self.period,
            false => 0,
        };
        let hidden = hidden.saturating_sub(self.period).min(ns);
        Some(Share {
            ns: ns - hidden,
            hidden,
        })
    }

    /// A thread that ended still runs: it was born again, or executed a program, and the record
    /// of that was lost.
    fn revive(&mut self, at: At) {
        let thread = self.threads.get(&at.tid).and_then(|thread| thread.ended);
        if thread.is_some_and(|end| end < at.time) {
            self.threads.remove(&at.tid);
            if at.tid == at.pid {
                self.executed(at.pid);
            }
        }
    }

    /// What no sample stands for of a thread that ended, by one of its events. `None`: the event
    /// does not count.
    pub(crate) fn read(&mut self, at: At, count: u64) -> Option<Share> {
        let event = self.events.get_mut(&at.id)?;
        let mut told = 0;
        if let Some(thread) = self.threads.get_mut(&at.tid) {
            if *thread.group.get_or_insert(event.group) != event.group {
                event.doubled = event.doubled.saturating_add(count);
                return None;
            }
            told = thread.counted.remove(&at.id).unwrap_or(0);
        }
        let mut ns = count.saturating_sub(told);
        if told > count {
            let excess = self.excess.entry(at.pid).or_default();
            *excess = excess.saturating_add(told - count);
        } else if let Some(excess) = self.excess.get_mut(&at.pid) {
            let taken = ns.min(*excess);
            *excess -= taken;
            ns -= taken;
        }
        event.told = event.told.saturating_add(ns);
        let hidden = self.swallowed(ns);
        Some(Share {
            ns: ns - hidden,
            hidden,
        })
    }

    /// For a time without a sample, that in the kernel where it is hidden: a sample would have come
    /// after each period.
    fn swallowed(&self, ns: u64) -> u64 {
        match self.hides_kernel {
            true => ns / self.period * self.period,
            false => 0,
        }
    }

    /// For an event's value: what counts; and of that, what was in the kernel since the last
    /// samples of those threads that have not said so themselves.
    pub(crate) fn conclude(&mut self, id: u64, value: u64) -> Share {
        let Some(event) = self.events.get(&id) else {
            return Share::default();
        };
        let ns = value.saturating_sub(event.doubled);
        let hidden = self.swallowed(ns.saturating_sub(event.told));
        if let Some(event) = self.events.get_mut(&id) {
            event.told += hidden;
        }
        Share { ns, hidden }
    }

    /// An event was closed.
    pub(crate) fn closed(&mut self, id: u64) {
        self.events.remove(&id);
    }

    /// Processes ended, and all that they wrote was seen.
    pub(crate) fn forget(&mut self, pids: &[i32]) {
        self.threads.retain(|_, thread| !pids.contains(&thread.pid));
        self.excess.retain(|pid, _| !pids.contains(pid));
    }

    /// All events were closed.
    pub(crate) fn clear(&mut self) {
        self.events.clear();
        self.threads.clear();
        self.ended.clear();
        self.excess.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: u64 = 10;
    const PID: i32 = 100;

    /// Clocks with one thread that has the events 1 and 2.
    fn clocks(hides_kernel: bool) -> Clocks {
        let mut clocks = Clocks::new(PERIOD, hides_kernel);
        own(&mut clocks, PID, &[1, 2]);
        clocks.end_round();
        clocks
    }

    fn own(clocks: &mut Clocks, tid: i32, ids: &[u64]) {
        let group = clocks.begin(PID, tid);
        ids.iter().for_each(|id| clocks.opened(*id, group));
    }

    fn at(time: u64, tid: i32, id: u64) -> At {
        At {
            time,
            pid: PID,
            tid,
            id,
        }
    }

    fn shown(ns: u64) -> Option<Share> {
        Some(Share { ns, hidden: 0 })
    }

    #[test]
    fn a_thread_that_ends_is_counted_once_with_its_clock_and_without() {
        for with_clock in [true, false] {
            let mut clocks = clocks(false);
            let count = |ns| with_clock.then_some(ns);
            clocks.born(1, (PID, 101), PID);
            assert_eq!(clocks.sample(at(2, 101, 1), count(10)), shown(10));
            assert_eq!(clocks.sample(at(3, 101, 2), count(10)), shown(10));
            assert_eq!(clocks.sample(at(4, 101, 1), count(20)), shown(10));
            clocks.exit(5, PID, 101);
            assert_eq!(clocks.read(at(6, 101, 1), 27), shown(7));
            assert_eq!(clocks.read(at(6, 101, 2), 10), shown(0));
            // Another one with its number begins at nothing.
            clocks.born(7, (PID, 101), PID);
            assert_eq!(clocks.sample(at(8, 101, 1), count(10)), shown(10));
        }
    }

    #[test]
    fn a_clock_shows_what_lost_samples_stood_for() {
        let mut clocks = clocks(false);
        assert_eq!(clocks.sample(at(2, PID, 1), Some(10)), shown(10));
        assert_eq!(clocks.sample(at(3, PID, 1), Some(55)), shown(45));
        // Never backwards.
        assert_eq!(clocks.sample(at(3, PID, 1), Some(50)), shown(0));
        assert_eq!(clocks.sample(at(4, PID, 1), Some(60)), shown(5));
    }

    #[test]
    fn what_one_thread_got_too_much_another_one_lacks() {
        let mut clocks = clocks(false);
        clocks.sample(at(2, 101, 1), None);
        clocks.exit(3, PID, 101);
        assert_eq!(clocks.read(at(4, 101, 1), 6), shown(0));
        clocks.exit(5, PID, 102);
        assert_eq!(clocks.read(at(6, 102, 1), 9), shown(5));
        assert_eq!(clocks.read(at(6, 102, 2), 9), shown(9));
    }

    #[test]
    fn a_program_executed_by_a_later_thread_begins_with_what_is_new() {
        for with_clock in [true, false] {
            let mut clocks = clocks(false);
            let count = |ns| with_clock.then_some(ns);
            for tid in [101, 102] {
                clocks.born(1, (PID, tid), PID);
                assert_eq!(clocks.sample(at(2, tid, 1), count(10)), shown(10));
            }
            assert_eq!(clocks.sample(at(3, PID, 1), count(10)), shown(10));
            // 101 executes: the others end, the first one too.
            clocks.exit(4, PID, 102);
            assert_eq!(clocks.read(at(4, 102, 1), 12), shown(2));
            clocks.exit(5, PID, PID);
            clocks.executed(PID);
            // A second record, by a second event.
            clocks.executed(PID);
            assert_eq!(clocks.sample(at(6, PID, 1), count(20)), shown(10));
            clocks.exit(7, PID, PID);
            assert_eq!(clocks.read(at(8, PID, 1), 25), shown(5));
        }
    }

    #[test]
    fn a_lost_record_of_a_program_counts_nothing_twice() {
        let mut clocks = clocks(false);
        clocks.born(1, (PID, 101), PID);
        assert_eq!(clocks.sample(at(2, 101, 1), Some(70)), shown(70));
        clocks.exit(3, PID, PID);
        assert_eq!(clocks.sample(at(4, PID, 1), Some(80)), shown(10));
        // An end that was lost besides.
        clocks.born(5, (PID, 102), PID);
        assert_eq!(clocks.sample(at(6, 102, 1), Some(30)), shown(30));
        clocks.executed(PID);
        assert_eq!(clocks.sample(at(7, PID, 1), Some(90)), shown(10));
    }

    #[test]
    fn a_program_executed_by_the_first_thread_is_still_sampled() {
        let mut clocks = clocks(false);
        assert_eq!(clocks.sample(at(2, PID, 1), Some(10)), shown(10));
        clocks.executed(PID);
        assert_eq!(clocks.sample(at(3, PID, 1), Some(20)), shown(10));
        assert!(clocks.has_own(PID));
    }

    #[test]
    fn a_thread_with_two_sets_of_events_is_counted_by_its_own() {
        for with_clock in [true, false] {
            let mut clocks = Clocks::new(PERIOD, false);
            let count = |ns| with_clock.then_some(ns);
            own(&mut clocks, PID, &[1]);
            own(&mut clocks, 101, &[3]);
            // Read only now, but older than its own events.
            clocks.born(1, (PID, 101), PID);
            clocks.end_round();
            assert!(clocks.has_own(101));
            assert_eq!(clocks.sample(at(2, 101, 1), count(12)), None);
            assert_eq!(clocks.sample(at(2, 101, 3), count(10)), shown(10));
            // What it starts has both as well.
            clocks.born(3, (PID, 102), 101);
            assert_eq!(clocks.sample(at(4, 102, 1), count(10)), None);
            assert_eq!(clocks.sample(at(4, 102, 3), count(10)), shown(10));
            for tid in [101, 102] {
                clocks.exit(5, PID, tid);
                assert!(!clocks.has_own(tid));
                // Rounds later.
                clocks.end_round();
                clocks.end_round();
            }
            assert_eq!(clocks.read(at(6, 101, 1), 15), None);
            assert_eq!(clocks.read(at(6, 102, 1), 14), None);
            assert_eq!(clocks.read(at(6, 102, 3), 14), shown(4));
            // Event 1: 50 of its own thread, and those of both others.
            assert_eq!(clocks.conclude(1, 50 + 15 + 14).ns, 50);
            assert_eq!(clocks.conclude(3, 13 + 14).ns, 27);
            // The number is free for one that has inherited events only.
            clocks.born(7, (PID, 101), PID);
            assert_eq!(clocks.sample(at(8, 101, 1), count(10)), shown(10));
        }
    }

    #[test]
    fn hidden_time_is_whole_periods_of_what_has_no_sample() {
        let mut clocks = clocks(true);
        let share = |ns, hidden| Some(Share { ns, hidden });
        assert_eq!(clocks.sample(at(2, 101, 1), Some(41)), share(11, 30));
        clocks.exit(3, PID, 101);
        assert_eq!(clocks.read(at(4, 101, 1), 95), share(4, 50));
        // Without the clock the rest has it all.
        assert_eq!(clocks.sample(at(5, 102, 1), None), share(10, 0));
        clocks.exit(6, PID, 102);
        assert_eq!(clocks.read(at(7, 102, 1), 47), share(7, 30));
    }

    #[test]
    fn hidden_time_of_threads_that_say_nothing_at_their_end_is_found_by_their_events() {
        let mut clocks = clocks(true);
        clocks.sample(at(2, PID, 1), Some(10));
        let hidden = clocks.conclude(1, 48);
        assert_eq!((hidden.ns, hidden.hidden), (48, 30));
        assert_eq!(clocks.conclude(1, 48).hidden, 0);
        assert_eq!(clocks.conclude(2, 9).hidden, 0);
    }

    #[test]
    fn events_that_were_closed_count_no_more_and_what_ended_is_forgotten() {
        let mut clocks = clocks(false);
        clocks.closed(1);
        assert_eq!(clocks.sample(at(2, PID, 1), Some(10)), None);
        assert_eq!(clocks.read(at(2, PID, 1), 10), None);
        for tid in 0..10_000 {
            clocks.exit(3, PID + 1, 1000 + tid);
        }
        assert!(clocks.threads.len() <= MOST_ENDED + 1);
        clocks.forget(&[PID + 1]);
        assert_eq!(clocks.threads.len(), 1);
        clocks.clear();
        assert!(clocks.threads.is_empty() && clocks.events.is_empty());
    }
}

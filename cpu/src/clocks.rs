//! Converts perf records to CPU time, so that each nanosecond is reported at most once. Tracks the
//! count of each event in each thread, and how much of it was reported. Makes no system calls.
//!
//! A sample comes with its thread's clock (Linux 6.13 and later), or stands for one period.
//!
//! - A thread created during attach may hold both inherited and own events. Only its own events
//!   count, for it and for its children.
//! - The exit of a thread is reported first (EXIT). The final counts of its inherited events follow
//!   (READ), possibly much later. There are no READ records of a thread's own events.
//! - A thread that calls exec takes over the id of the main thread. All other threads have exited
//!   by then, and their exits were reported.

use std::collections::{HashMap, VecDeque};

/// Maximum number of exited threads whose final counts are awaited.
const MAX_EXITED_THREADS: usize = 1024;

/// Origin of a record: when, in which thread, and by which event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub time: u64,
    pub pid: i32,
    pub tid: i32,
    /// Id of the event. Inherited events have the id of the one that was opened.
    pub id: u64,
}

/// CPU time in nanoseconds, from a sample or a count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CpuTime {
    /// Time that was sampled; for an exited thread, the time that no sample covers.
    pub ns: u64,
    /// Additional time in the kernel, if the kernel is not sampled.
    pub hidden: u64,
}

/// Opened event, with all events inherited from it.
struct Event {
    /// Group of the event. Events of one thread share a group.
    group: u64,
    /// Part of its count that was reported, in ns.
    reported: u64,
    /// Part of its count that belongs to threads counted by their own events instead, in ns.
    uncounted: u64,
}

struct Thread {
    pid: i32,
    /// Group of the events that count for the thread; `None` until its first record.
    group: Option<u64>,
    /// Round in which the thread was given its own events; `None` if it has inherited ones only.
    opened_round: Option<u64>,
    /// Last known count of each event, by id.
    counted: HashMap<u64, u64>,
    /// Time of its last record.
    last_time: u64,
    exit_time: Option<u64>,
}

impl Thread {
    fn new(pid: i32, group: Option<u64>, time: u64) -> Self {
        Self {
            pid,
            group,
            opened_round: None,
            counted: HashMap::new(),
            last_time: time,
            exit_time: None,
        }
    }
}

/// Counts of all events and threads.
pub(crate) struct Clocks {
    period: u64,
    /// True if the kernel is not sampled, so that samples due there are dropped.
    hides_kernel: bool,
    events: HashMap<u64, Event>,
    threads: HashMap<i32, Thread>,
    /// Exited threads and the time of their exit, in the order in which they are dropped.
    ended: VecDeque<(i32, u64)>,
    /// Excess by process: CPU time that was reported for samples of exited threads although the
    /// threads had not used it. Periods are an estimate, so one thread's excess offsets another's
    /// deficit.
    excess: HashMap<i32, u64>,
    /// Number of groups so far.
    groups: u64,
    /// Number of rounds of reading records so far.
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

    /// Registers a thread whose own events are about to be opened. Returns their group number.
    pub(crate) fn begin(&mut self, pid: i32, tid: i32) -> u64 {
        self.groups += 1;
        let mut thread = Thread::new(pid, Some(self.groups), 0);
        thread.opened_round = Some(self.round);
        self.threads.insert(tid, thread);
        self.groups
    }

    /// Records that one of a thread's own events was opened.
    pub(crate) fn add_event(&mut self, id: u64, group: u64) {
        let event = Event {
            group,
            reported: 0,
            uncounted: 0,
        };
        self.events.insert(id, event);
    }

    /// Records that opening a thread's own events failed.
    pub(crate) fn cancel(&mut self, tid: i32) {
        self.threads.remove(&tid);
    }

    /// Returns true if a thread has events of its own.
    pub(crate) fn has_own(&self, tid: i32) -> bool {
        let thread = self.threads.get(&tid);
        thread.is_some_and(|thread| thread.opened_round.is_some() && thread.exit_time.is_none())
    }

    /// Ends a round. All records that were written before the round began have been processed.
    pub(crate) fn end_round(&mut self) {
        self.round += 1;
    }

    /// Handles `PERF_RECORD_FORK` of a thread.
    pub(crate) fn handle_fork(&mut self, time: u64, pid: i32, tid: i32, parent: i32) {
        let known = self.threads.get(&tid);
        if known.is_some_and(|thread| {
            thread.exit_time.is_none() && thread.opened_round == Some(self.round)
        }) {
            // The record was written before the thread was given its own events.
            return;
        }
        let group = self.threads.get(&parent).and_then(|parent| parent.group);
        self.threads.insert(tid, Thread::new(pid, group, time));
    }

    /// Handles `PERF_RECORD_EXIT`. Only READ records of inherited events may follow.
    pub(crate) fn handle_exit(&mut self, time: u64, pid: i32, tid: i32) {
        let thread = self.threads.entry(tid);
        let thread = thread.or_insert_with(|| Thread::new(pid, None, time));
        if thread.exit_time.is_some() {
            return;
        }
        thread.exit_time = Some(time);
        self.ended.push_back((tid, time));
        if self.ended.len() > MAX_EXITED_THREADS
            && let Some((tid, time)) = self.ended.pop_front()
            && self
                .threads
                .get(&tid)
                .is_some_and(|thread| thread.exit_time == Some(time))
        {
            self.threads.remove(&tid);
        }
    }

    /// Handles an exec: the thread that called it has the process's id now.
    pub(crate) fn handle_exec(&mut self, pid: i32) {
        let live = (self.threads.iter())
            .filter(|(_, thread)| thread.pid == pid && thread.exit_time.is_none());
        let mut live: Vec<(u64, i32)> =
            live.map(|(tid, thread)| (thread.last_time, *tid)).collect();
        live.sort_unstable();
        let Some((_, newest)) = live.pop() else {
            return;
        };
        let Some(mut heir) = self.threads.remove(&newest) else {
            return;
        };
        // If exit records were lost, more than one thread seems to live, and it is not known whose
        // counts continue. With the highest counts, nothing is reported twice.
        for (_, tid) in live {
            let Some(other) = self.threads.remove(&tid) else {
                continue;
            };
            if other.group != heir.group {
                heir.group = None;
                heir.opened_round = None;
            }
            for (id, count) in other.counted {
                let known = heir.counted.entry(id).or_default();
                *known = count.max(*known);
            }
        }
        self.threads.insert(pid, heir);
    }

    /// Returns the CPU time of a sample. `count` is the thread's clock, if known. Returns `None` if
    /// the sample comes from an event that does not count.
    pub(crate) fn sample(&mut self, origin: Origin, count: Option<u64>) -> Option<CpuTime> {
        let group = self.events.get(&origin.id)?.group;
        self.drop_exited(origin);
        let thread = self.threads.entry(origin.tid);
        let thread = thread.or_insert_with(|| Thread::new(origin.pid, None, origin.time));
        if *thread.group.get_or_insert(group) != group {
            return None;
        }
        thread.last_time = thread.last_time.max(origin.time);
        let counted = thread.counted.entry(origin.id).or_default();
        let now = count.unwrap_or(counted.saturating_add(self.period));
        let ns = now.saturating_sub(*counted);
        *counted = now.max(*counted);
        let event = self.events.get_mut(&origin.id)?;
        event.reported = event.reported.saturating_add(ns);
        let hidden = if self.hides_kernel {
            // Samples due in the kernel were dropped, each a whole period.
            ns.saturating_add(self.period / 2) / self.period * self.period
        } else {
            0
        };
        let hidden = hidden.saturating_sub(self.period).min(ns);
        Some(CpuTime {
            ns: ns - hidden,
            hidden,
        })
    }

    /// Drops the state of an exited thread if a later record names its id: either the id was reused,
    /// or a thread called exec and the record of that was lost.
    fn drop_exited(&mut self, origin: Origin) {
        let exit_time = self
            .threads
            .get(&origin.tid)
            .and_then(|thread| thread.exit_time);
        if exit_time.is_some_and(|exit| exit < origin.time) {
            self.threads.remove(&origin.tid);
            if origin.tid == origin.pid {
                self.handle_exec(origin.pid);
            }
        }
    }

    /// Returns the CPU time of an exited thread that no sample covers, from one event's final
    /// count. Returns `None` if the event does not count.
    pub(crate) fn read_final_count(&mut self, origin: Origin, count: u64) -> Option<CpuTime> {
        let event = self.events.get_mut(&origin.id)?;
        let mut reported = 0;
        if let Some(thread) = self.threads.get_mut(&origin.tid) {
            if *thread.group.get_or_insert(event.group) != event.group {
                event.uncounted = event.uncounted.saturating_add(count);
                return None;
            }
            reported = thread.counted.remove(&origin.id).unwrap_or(0);
        }
        let mut ns = count.saturating_sub(reported);
        if reported > count {
            let excess = self.excess.entry(origin.pid).or_default();
            *excess = excess.saturating_add(reported - count);
        } else if let Some(excess) = self.excess.get_mut(&origin.pid) {
            let offset = ns.min(*excess);
            *excess -= offset;
            ns -= offset;
        }
        event.reported = event.reported.saturating_add(ns);
        let hidden = self.dropped_ns(ns);
        Some(CpuTime {
            ns: ns - hidden,
            hidden,
        })
    }

    /// Returns how much of a time without samples was spent in the kernel, if the kernel is not
    /// sampled: all whole periods, since in user mode each would have ended with a sample.
    fn dropped_ns(&self, ns: u64) -> u64 {
        if self.hides_kernel {
            ns / self.period * self.period
        } else {
            0
        }
    }

    /// Returns the part of an event's value that counts, and the hidden kernel time since the last
    /// samples.
    pub(crate) fn total(&mut self, id: u64, value: u64) -> CpuTime {
        let Some(event) = self.events.get(&id) else {
            return CpuTime::default();
        };
        let ns = value.saturating_sub(event.uncounted);
        let hidden = self.dropped_ns(ns.saturating_sub(event.reported));
        if let Some(event) = self.events.get_mut(&id) {
            event.reported += hidden;
        }
        CpuTime { ns, hidden }
    }

    /// Drops an event that was closed.
    pub(crate) fn remove_event(&mut self, id: u64) {
        self.events.remove(&id);
    }

    /// Drops processes that have exited and whose records were all processed.
    pub(crate) fn forget(&mut self, pids: &[i32]) {
        self.threads.retain(|_, thread| !pids.contains(&thread.pid));
        self.excess.retain(|pid, _| !pids.contains(pid));
    }

    /// Drops everything, after all events were closed.
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

    /// Returns clocks with one thread that has the events 1 and 2.
    fn clocks(hides_kernel: bool) -> Clocks {
        let mut clocks = Clocks::new(PERIOD, hides_kernel);
        give_events(&mut clocks, PID, &[1, 2]);
        clocks.end_round();
        clocks
    }

    /// Gives a thread its own events.
    fn give_events(clocks: &mut Clocks, tid: i32, ids: &[u64]) {
        let group = clocks.begin(PID, tid);
        ids.iter().for_each(|id| clocks.add_event(*id, group));
    }

    fn origin(time: u64, tid: i32, id: u64) -> Origin {
        Origin {
            time,
            pid: PID,
            tid,
            id,
        }
    }

    /// Returns a share of which nothing is hidden.
    fn visible(ns: u64) -> Option<CpuTime> {
        Some(CpuTime { ns, hidden: 0 })
    }

    #[test]
    fn an_exited_thread_is_counted_once_with_and_without_its_clock() {
        for with_clock in [true, false] {
            let mut clocks = clocks(false);
            let count = |ns| with_clock.then_some(ns);
            clocks.handle_fork(1, PID, 101, PID);
            assert_eq!(clocks.sample(origin(2, 101, 1), count(10)), visible(10));
            assert_eq!(clocks.sample(origin(3, 101, 2), count(10)), visible(10));
            assert_eq!(clocks.sample(origin(4, 101, 1), count(20)), visible(10));
            clocks.handle_exit(5, PID, 101);
            assert_eq!(clocks.read_final_count(origin(6, 101, 1), 27), visible(7));
            assert_eq!(clocks.read_final_count(origin(6, 101, 2), 10), visible(0));
            // A new thread with the same id starts at 0.
            clocks.handle_fork(7, PID, 101, PID);
            assert_eq!(clocks.sample(origin(8, 101, 1), count(10)), visible(10));
        }
    }

    #[test]
    fn a_clock_includes_the_time_of_lost_samples() {
        let mut clocks = clocks(false);
        assert_eq!(clocks.sample(origin(2, PID, 1), Some(10)), visible(10));
        assert_eq!(clocks.sample(origin(3, PID, 1), Some(55)), visible(45));
        // A clock that goes backwards counts nothing.
        assert_eq!(clocks.sample(origin(3, PID, 1), Some(50)), visible(0));
        assert_eq!(clocks.sample(origin(4, PID, 1), Some(60)), visible(5));
    }

    #[test]
    fn excess_time_of_one_thread_is_subtracted_from_another() {
        let mut clocks = clocks(false);
        clocks.sample(origin(2, 101, 1), None);
        clocks.handle_exit(3, PID, 101);
        assert_eq!(clocks.read_final_count(origin(4, 101, 1), 6), visible(0));
        clocks.handle_exit(5, PID, 102);
        assert_eq!(clocks.read_final_count(origin(6, 102, 1), 9), visible(5));
        assert_eq!(clocks.read_final_count(origin(6, 102, 2), 9), visible(9));
    }

    #[test]
    fn after_an_exec_only_new_time_is_counted() {
        for with_clock in [true, false] {
            let mut clocks = clocks(false);
            let count = |ns| with_clock.then_some(ns);
            for tid in [101, 102] {
                clocks.handle_fork(1, PID, tid, PID);
                assert_eq!(clocks.sample(origin(2, tid, 1), count(10)), visible(10));
            }
            assert_eq!(clocks.sample(origin(3, PID, 1), count(10)), visible(10));
            // Thread 101 calls exec: the others exit, the main thread too.
            clocks.handle_exit(4, PID, 102);
            assert_eq!(clocks.read_final_count(origin(4, 102, 1), 12), visible(2));
            clocks.handle_exit(5, PID, PID);
            clocks.handle_exec(PID);
            // A second record of the same exec, by the other event.
            clocks.handle_exec(PID);
            assert_eq!(clocks.sample(origin(6, PID, 1), count(20)), visible(10));
            clocks.handle_exit(7, PID, PID);
            assert_eq!(clocks.read_final_count(origin(8, PID, 1), 25), visible(5));
        }
    }

    #[test]
    fn nothing_is_counted_twice_if_an_exec_record_is_lost() {
        let mut clocks = clocks(false);
        clocks.handle_fork(1, PID, 101, PID);
        assert_eq!(clocks.sample(origin(2, 101, 1), Some(70)), visible(70));
        clocks.handle_exit(3, PID, PID);
        assert_eq!(clocks.sample(origin(4, PID, 1), Some(80)), visible(10));
        // The record of an exit is lost as well.
        clocks.handle_fork(5, PID, 102, PID);
        assert_eq!(clocks.sample(origin(6, 102, 1), Some(30)), visible(30));
        clocks.handle_exec(PID);
        assert_eq!(clocks.sample(origin(7, PID, 1), Some(90)), visible(10));
    }

    #[test]
    fn sampling_continues_after_an_exec_by_the_main_thread() {
        let mut clocks = clocks(false);
        assert_eq!(clocks.sample(origin(2, PID, 1), Some(10)), visible(10));
        clocks.handle_exec(PID);
        assert_eq!(clocks.sample(origin(3, PID, 1), Some(20)), visible(10));
        assert!(clocks.has_own(PID));
    }

    #[test]
    fn a_thread_with_inherited_and_own_events_is_counted_by_its_own() {
        for with_clock in [true, false] {
            let mut clocks = Clocks::new(PERIOD, false);
            let count = |ns| with_clock.then_some(ns);
            give_events(&mut clocks, PID, &[1]);
            give_events(&mut clocks, 101, &[3]);
            // This record is read only now, but was written before the thread had its own events.
            clocks.handle_fork(1, PID, 101, PID);
            clocks.end_round();
            assert!(clocks.has_own(101));
            assert_eq!(clocks.sample(origin(2, 101, 1), count(12)), None);
            assert_eq!(clocks.sample(origin(2, 101, 3), count(10)), visible(10));
            // A thread that it creates inherits both.
            clocks.handle_fork(3, PID, 102, 101);
            assert_eq!(clocks.sample(origin(4, 102, 1), count(10)), None);
            assert_eq!(clocks.sample(origin(4, 102, 3), count(10)), visible(10));
            for tid in [101, 102] {
                clocks.handle_exit(5, PID, tid);
                assert!(!clocks.has_own(tid));
                // Final counts come rounds later.
                clocks.end_round();
                clocks.end_round();
            }
            assert_eq!(clocks.read_final_count(origin(6, 101, 1), 15), None);
            assert_eq!(clocks.read_final_count(origin(6, 102, 1), 14), None);
            assert_eq!(clocks.read_final_count(origin(6, 102, 3), 14), visible(4));
            // Event 1 counted 50 of its own thread, in addition to the time of the other two.
            assert_eq!(clocks.total(1, 50 + 15 + 14).ns, 50);
            assert_eq!(clocks.total(3, 13 + 14).ns, 27);
            // The id can be reused by a thread that has only inherited events.
            clocks.handle_fork(7, PID, 101, PID);
            assert_eq!(clocks.sample(origin(8, 101, 1), count(10)), visible(10));
        }
    }

    #[test]
    fn hidden_time_is_whole_periods_without_a_sample() {
        let mut clocks = clocks(true);
        let share = |ns, hidden| Some(CpuTime { ns, hidden });
        assert_eq!(clocks.sample(origin(2, 101, 1), Some(41)), share(11, 30));
        clocks.handle_exit(3, PID, 101);
        assert_eq!(clocks.read_final_count(origin(4, 101, 1), 95), share(4, 50));
        // Without the clock, all hidden time is in the final count.
        assert_eq!(clocks.sample(origin(5, 102, 1), None), share(10, 0));
        clocks.handle_exit(6, PID, 102);
        assert_eq!(clocks.read_final_count(origin(7, 102, 1), 47), share(7, 30));
    }

    #[test]
    fn hidden_time_without_final_counts_is_found_by_event_totals() {
        let mut clocks = clocks(true);
        clocks.sample(origin(2, PID, 1), Some(10));
        let hidden = clocks.total(1, 48);
        assert_eq!((hidden.ns, hidden.hidden), (48, 30));
        assert_eq!(clocks.total(1, 48).hidden, 0);
        assert_eq!(clocks.total(2, 9).hidden, 0);
    }

    #[test]
    fn closed_events_do_not_count_and_exited_threads_are_dropped() {
        let mut clocks = clocks(false);
        clocks.remove_event(1);
        assert_eq!(clocks.sample(origin(2, PID, 1), Some(10)), None);
        assert_eq!(clocks.read_final_count(origin(2, PID, 1), 10), None);
        for tid in 0..10_000 {
            clocks.handle_exit(3, PID + 1, 1000 + tid);
        }
        assert!(clocks.threads.len() <= MAX_EXITED_THREADS + 1);
        clocks.forget(&[PID + 1]);
        assert_eq!(clocks.threads.len(), 1);
        clocks.clear();
        assert!(clocks.threads.is_empty() && clocks.events.is_empty());
    }
}

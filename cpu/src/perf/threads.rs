//! Events of threads, used if processors are not sampled: each thread has one event per processor.
//! Also sums the counts of a process's events.

use std::collections::HashSet;
use std::time::Instant;

use super::{Event, Perf};
use crate::clocks::CpuTime;
use crate::copies::CopyStatistics;
use crate::event;
use crate::recording::Recording;
use crate::refusal::Refusal;

impl Perf {
    /// Opens events for all threads of a process. Repeats until no thread is new, since a thread
    /// created by one without events has none.
    pub(super) fn open_threads(&mut self, pid: i32) -> Result<(), Refusal> {
        proc::allow_files();
        let mut tried: HashSet<i32> = HashSet::new();
        let mut any_opened = false;
        loop {
            let mut new = proc::threads(pid);
            new.retain(|tid| !self.clocks.has_own(*tid) && tried.insert(*tid));
            if new.is_empty() {
                return if any_opened {
                    Ok(())
                } else {
                    Err(Refusal::Gone { pid })
                };
            }
            for tid in new {
                any_opened |= self.open_thread(pid, tid)?;
            }
        }
    }

    /// Opens a thread's events. Returns false if the thread has exited.
    pub(super) fn open_thread(&mut self, pid: i32, tid: i32) -> Result<bool, Refusal> {
        let group = self.clocks.begin(pid, tid);
        let before = self.events.len();
        for processor in &self.rings.processors {
            match processor.open(&self.config, tid) {
                Ok((fd, id)) => {
                    self.clocks.add_event(id, group);
                    self.events.push(Event { fd, pid, id });
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::ESRCH) => {
                        if self.events.len() == before {
                            // The thread's inherited events count instead.
                            self.clocks.cancel(tid);
                        }
                        return Ok(false);
                    }
                    Some(libc::ENODEV) => {}
                    _ => return Err(Refusal::of_thread(pid, error, self.events.len())),
                },
            }
        }
        Ok(true)
    }

    /// Closes all events of a process.
    pub(super) fn close(&mut self, pid: i32) {
        for event in self.events.extract_if(.., |event| event.pid == pid) {
            self.clocks.remove_event(event.id);
        }
        self.clocks.forget(&[pid]);
    }

    /// Reopens all events after the size of stack copies has changed. The time in between is not
    /// sampled, but it is counted.
    pub(super) fn reopen(&mut self, before: u32, recording: &mut Recording) {
        self.drain(recording);
        self.copies = CopyStatistics::default();
        self.boosted_since = Instant::now();
        if self.meters.is_some() {
            return self.reopen_processors(before);
        }
        for pid in self.processes.clone() {
            self.add_hidden_time(pid, recording);
            if let Some(process) = recording.process(pid) {
                // While a thread runs, its old and new events cannot be distinguished.
                self.ns_before_reopening.insert(pid, process.elapsed_ns());
            }
        }
        self.events.clear();
        self.clocks.clear();
        let mut known: HashSet<i32> = HashSet::new();
        loop {
            // A child created in the meantime has no events, unless its parent already had some
            // again.
            let processes = if self.config.children {
                recording.family()
            } else {
                self.processes.clone()
            };
            let new: Vec<i32> = processes
                .into_iter()
                .filter(|pid| known.insert(*pid))
                .collect();
            if new.is_empty() {
                return;
            }
            for pid in new {
                // Fails if the process has exited, which needs no samples then.
                let _ = self.open_threads(pid);
            }
        }
    }

    /// Returns true if the events of a process count neither its children nor other processes.
    fn counts_this_process_only(&self) -> bool {
        !self.config.children && self.config.threads_only && self.meters.is_none()
    }

    /// Returns the total count of a process's events, and the part that was hidden since its
    /// threads' last samples.
    fn total(&mut self, pid: i32) -> CpuTime {
        let mut sum = CpuTime::default();
        for event in self.events.iter().filter(|event| event.pid == pid) {
            let value = event::value(&event.fd).unwrap_or(0);
            let share = self.clocks.total(event.id, value);
            sum.ns = sum.ns.saturating_add(share.ns);
            sum.hidden = sum.hidden.saturating_add(share.hidden);
        }
        sum
    }

    /// Adds the hidden time of a running process to the recording.
    pub(super) fn add_hidden_time(&mut self, pid: i32, recording: &mut Recording) {
        if self.config.kernel || !self.counts_this_process_only() {
            return;
        }
        let hidden = self.total(pid).hidden;
        if let Some(process) = recording.process(pid) {
            process.elapsed_ns();
            process.add_hidden_ns(hidden);
        }
    }

    /// Adds the total count of a process that has exited to the recording.
    pub(super) fn add_exit_total(&mut self, pid: i32, recording: &mut Recording) {
        if !self.counts_this_process_only() {
            return;
        }
        let sum = self.total(pid);
        let before = self.ns_before_reopening.remove(&pid).unwrap_or(0);
        if let Some(process) = recording.process(pid) {
            process.set_counted(before.saturating_add(sum.ns));
            process.add_hidden_ns(sum.hidden);
        }
        self.close(pid);
    }
}

//! Off-CPU engine: observes waiting threads without stopping them. The kernel shows where a thread
//! sleeps (`/proc/PID/task/TID/syscall`), and its stack does not change while it sleeps. Each
//! sample stands for the time that the thread waited since its last one. Time in a processor's run
//! queue, in which the thread could have run, is reported separately, since it is not sleep.

mod clock;
mod thread;

use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};

use crate::perf::Sampling;
use crate::programs::add_children;
use crate::recording::Recording;
use crate::refusal::Refusal;
use proc::Program;
use thread::{StackCopy, Thread};

/// Time between searches for new threads.
const SEARCH_INTERVAL: Duration = Duration::from_millis(50);
/// Searches for children take at most 1 / `SEARCH_COST_FACTOR` of the time, since each examines all
/// processes.
const SEARCH_COST_FACTOR: u32 = 20;

/// Program that a process ran at the last search.
struct KnownProgram {
    program: Program,
    /// Serial number in the recording.
    serial: u64,
    /// True if another program was seen that was not reported yet.
    may_have_changed: bool,
}

/// Off-CPU engine.
pub struct Waiting {
    period: Duration,
    threads: HashMap<i32, Thread>,
    programs: HashMap<i32, KnownProgram>,
    /// True if children are observed too. This engine searches for them only if it is attached to a
    /// process itself; otherwise the engine that started the program reports them.
    children: bool,
    is_attached: bool,
    /// Time of the next round of samples.
    next_round: Instant,
    /// Time of the last search for new threads.
    searched: Option<Instant>,
    /// Time of the next search for children.
    next_children: Instant,
    copy: StackCopy,
}

impl Waiting {
    /// Frame that stands for a processor's run queue.
    pub const QUEUE: u64 = 0x500;

    /// Creates an engine without processes.
    #[must_use]
    pub fn new(sampling: Sampling) -> Self {
        Self {
            period: Duration::from_secs(1) / sampling.rate.max(1),
            threads: HashMap::new(),
            programs: HashMap::new(),
            children: sampling.children,
            is_attached: false,
            next_round: Instant::now(),
            searched: None,
            next_children: Instant::now(),
            copy: StackCopy::default(),
        }
    }

    /// Starts to observe a process, if that is allowed.
    pub fn attach(&mut self, pid: i32) -> Result<(), Refusal> {
        if let Some(refusal) = Refusal::of_tracing(pid) {
            return Err(refusal);
        }
        match self.search(pid) {
            Ok(()) if self.threads.values().any(|thread| thread.pid == pid) => {}
            Ok(()) if proc::has_exited(pid) => return Err(Refusal::Gone { pid }),
            Ok(()) => {
                let error = "this kernel has no schedstat or syscall there";
                let error = io::Error::new(io::ErrorKind::NotFound, error);
                return Err(Refusal::Proc { pid, error });
            }
            Err(error) if proc::is_full(&error) => {
                let threads = self.threads.len();
                return Err(Refusal::Files { threads });
            }
            Err(error) => return Err(Refusal::of_proc(pid, error)),
        }
        self.is_attached = true;
        Ok(())
    }

    /// Returns the time until [`collect`](Self::collect) is due.
    #[must_use]
    pub fn max_wait(&self) -> Duration {
        self.next_round.saturating_duration_since(Instant::now())
    }

    /// Samples all threads that are due.
    pub fn collect(&mut self, recording: &mut Recording) {
        if Instant::now() < self.next_round {
            return;
        }
        self.next_round = Instant::now() + self.period;
        if self
            .searched
            .is_none_or(|at| at.elapsed() >= SEARCH_INTERVAL)
        {
            self.searched = Some(Instant::now());
            self.search_all(recording);
        }
        let copy = &mut self.copy;
        let period = self.period;
        let programs = &self.programs;
        self.threads.retain(|&tid, thread| {
            let exe = programs.get(&thread.pid).map(|known| known.program.exe);
            match thread.sample_if_due(tid, exe, period, copy, recording) {
                Err(error) if proc::is_gone(&error) => {
                    thread.count_unsampled(recording);
                    if let Some(process) = recording.process(thread.pid) {
                        process.thread_ended(tid);
                    }
                    false
                }
                // Without a descriptor, the thread is skipped; its next sample covers the time.
                _ => true,
            }
        });
    }

    /// Counts the time since each thread's last sample. Called once, when sampling ends.
    pub fn finish(&mut self, recording: &mut Recording) {
        for thread in self.threads.values_mut() {
            // If the thread has just exited, the last known values count.
            let _ = thread.read_times();
            thread.count_unsampled(recording);
        }
    }

    fn search_all(&mut self, recording: &mut Recording) {
        if self.children && self.is_attached && Instant::now() >= self.next_children {
            let start = Instant::now();
            add_children(recording);
            self.next_children = Instant::now() + start.elapsed() * SEARCH_COST_FACTOR;
        }
        for pid in recording.pids() {
            self.detect_exec(pid, recording);
            // Errors may be temporary; the next search tries again.
            let _ = self.search(pid);
            // A main thread that has exited remains listed, but does not wait.
            if self.threads.contains_key(&pid)
                && proc::living_thread(pid) != pid
                && let Some(mut main_thread) = self.threads.remove(&pid)
            {
                main_thread.count_unsampled(recording);
            }
        }
        self.programs
            .retain(|pid, _| recording.process(*pid).is_some());
    }

    /// Adds the new threads of a process.
    fn search(&mut self, pid: i32) -> io::Result<()> {
        let main_is_alive = proc::living_thread(pid) == pid;
        for tid in proc::try_threads(pid)? {
            if self.threads.contains_key(&tid) || (tid == pid && !main_is_alive) {
                continue;
            }
            match Thread::new(pid, tid) {
                Ok(thread) => {
                    self.threads.insert(tid, thread);
                }
                Err(error) if proc::is_gone(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Detects that a process executes another program. Another engine may be about to report the
    /// exec, so it is handled only at the next search. Until then, the process is not sampled.
    fn detect_exec(&mut self, pid: i32, recording: &mut Recording) {
        let Some(program) = proc::program(pid) else {
            return;
        };
        let Some(serial) = recording.process(pid).map(|process| process.serial) else {
            return;
        };
        let seen = KnownProgram {
            program,
            serial,
            may_have_changed: false,
        };
        let Some(known) = self.programs.get_mut(&pid) else {
            self.programs.insert(pid, seen);
            return;
        };
        if known.program == program || known.serial != serial {
            *known = seen;
        } else if known.program.start != program.start {
            // The pid was reused.
            self.programs.remove(&pid);
            self.stop_observing(pid, recording);
            recording.handle_exit(pid);
        } else if !known.may_have_changed {
            known.may_have_changed = true;
        } else {
            self.stop_observing(pid, recording);
            recording.handle_exec(pid);
            let serial = recording.process(pid).map_or(serial, |new| new.serial);
            self.programs.insert(pid, KnownProgram { serial, ..seen });
        }
    }

    /// Counts the remaining time of a process's threads, and stops observing them.
    fn stop_observing(&mut self, pid: i32, recording: &mut Recording) {
        self.threads.retain(|_, thread| {
            let stays = thread.pid != pid;
            if !stays {
                thread.count_unsampled(recording);
            }
            stays
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exec_is_reported_once_at_the_second_search() {
        let pid = std::process::id() as i32;
        let mut recording = Recording::new(false);
        recording.add(pid);
        let serial = |recording: &mut Recording| recording.process(pid).map(|p| p.serial);
        let first = serial(&mut recording);
        let mut waiting = Waiting::new(Sampling {
            rate: 99,
            children: false,
        });
        waiting.detect_exec(pid, &mut recording);
        let known = waiting.programs.get_mut(&pid).expect("a program");
        known.program.exe.1 += 1;
        waiting.detect_exec(pid, &mut recording);
        assert_eq!(serial(&mut recording), first);
        waiting.detect_exec(pid, &mut recording);
        let second = serial(&mut recording);
        assert_ne!(second, first);
        waiting.detect_exec(pid, &mut recording);
        waiting.detect_exec(pid, &mut recording);
        assert_eq!(serial(&mut recording), second);
        // The other engine has reported it.
        let known = waiting.programs.get_mut(&pid).expect("a program");
        known.program.exe.1 += 1;
        recording.handle_exec(pid);
        let third = serial(&mut recording);
        waiting.detect_exec(pid, &mut recording);
        waiting.detect_exec(pid, &mut recording);
        assert_eq!(serial(&mut recording), third);
        let known = waiting.programs.get_mut(&pid).expect("a program");
        known.program.start += 1;
        waiting.detect_exec(pid, &mut recording);
        assert_eq!(serial(&mut recording), None);
    }
}

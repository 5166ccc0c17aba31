//! Ptrace engine: stops threads one by one for a few microseconds.
//!
//! A thread is stopped only if it has used at least one period of CPU time since its last sample,
//! and is running: stopping a sleeping thread could interrupt its system call. A thread that goes
//! to sleep just before it is stopped cannot be avoided. If it sleeps in `epoll_wait` or another
//! call that the kernel does not restart, the call returns `EINTR`.

use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};

use capture::{Glimpse, Glimpses};

use crate::continued::{Continued, RestBuffers};
use crate::memory::Copied;
use crate::perf::Sampling;
use crate::programs::{Change, Programs};
use crate::recording::{Recording, Sample, Time};
use crate::refusal::Refusal;
use crate::registers::LiveRegisters;
use proc::Reread;

/// Initial and maximum size of stack copies in bytes. Few stacks are larger than the initial size,
/// and a copy ends where the stack does.
const INITIAL_STACK_BYTES: usize = 64 << 10;
const MAX_STACK_BYTES: usize = 1 << 20;
/// Maximum time to wait for a thread to stop.
const STOP_TIMEOUT: Duration = Duration::from_millis(2);
/// Time between searches for new threads.
const SEARCH_INTERVAL: Duration = Duration::from_millis(50);

/// Thread that may be sampled.
struct Thread {
    pid: i32,
    /// File from which its CPU time is read.
    clock: Reread,
    /// CPU time in ns at its last sample.
    last_ns: u64,
    /// Size of copies of its stack, in bytes.
    stack_bytes: usize,
}

/// Ptrace engine. Between two calls, no thread is stopped or traced.
pub struct Ptrace {
    period: Duration,
    threads: HashMap<i32, Thread>,
    programs: Programs,
    glimpses: Glimpses,
    /// Time of the next check of all threads.
    next_check: Instant,
    /// Time of the last search for processes and threads.
    searched: Option<Instant>,
    /// Buffer for stack copies.
    buffer: Vec<u8>,
    rest: RestBuffers,
}

impl Thread {
    /// Opens a thread. If `is_first`, this is the first search of its process: the thread may have
    /// run before, and that time is not sampled.
    fn new(pid: i32, tid: i32, is_first: bool) -> io::Result<Self> {
        let file = Reread::new(format!("/proc/{pid}/task/{tid}/schedstat"))?;
        let last_ns = if is_first { clock(&file)? } else { 0 };
        Ok(Self {
            pid,
            clock: file,
            last_ns,
            stack_bytes: INITIAL_STACK_BYTES,
        })
    }

    /// Returns the thread's CPU time, and how much of it was used since its last sample, in ns.
    fn read_cpu_time(&mut self) -> io::Result<(u64, u64)> {
        let now = clock(&self.clock)?;
        if now < self.last_ns {
            // The thread id was reused.
            self.last_ns = 0;
        }
        Ok((now, now - self.last_ns))
    }
}

impl Ptrace {
    /// Creates an engine without threads.
    #[must_use]
    pub fn new(sampling: Sampling) -> Self {
        Self {
            period: Duration::from_secs(1) / sampling.rate.max(1),
            threads: HashMap::new(),
            programs: Programs::new(sampling.children),
            glimpses: Glimpses::default(),
            next_check: Instant::now(),
            searched: None,
            buffer: Vec::new(),
            rest: RestBuffers::default(),
        }
    }

    /// Starts to sample a process, if that is allowed.
    pub fn attach(&mut self, pid: i32) -> Result<(), Refusal> {
        if let Some(refusal) = Refusal::of_tracing(pid) {
            return Err(refusal);
        }
        self.search(pid, true).map_err(|error| {
            let threads = self.threads.len();
            self.drop_threads(pid);
            if proc::is_full(&error) {
                Refusal::Files { threads }
            } else {
                Refusal::of_proc(pid, error)
            }
        })
    }

    /// Returns the time until [`collect`](Self::collect) is due.
    #[must_use]
    pub fn max_wait(&self) -> Duration {
        self.next_check.saturating_duration_since(Instant::now())
    }

    /// Checks all threads, and samples those that are due.
    pub fn collect(&mut self, recording: &mut Recording) {
        if Instant::now() < self.next_check {
            return;
        }
        // Missed periods are not made up for; the weights account for them.
        self.next_check = Instant::now() + self.period;
        if self
            .searched
            .is_none_or(|at| at.elapsed() >= SEARCH_INTERVAL)
        {
            self.searched = Some(Instant::now());
            self.search_all(recording);
        }
        let due = self.due_threads(recording);
        let mut pids: Vec<i32> = due.iter().map(|&(pid, ..)| pid).collect();
        pids.sort_unstable();
        pids.dedup();
        for pid in pids {
            self.check(pid, recording);
        }
        for (_, tid, now) in due {
            self.sample(tid, now, recording);
        }
    }

    /// Finds new processes and threads, and processes that have exited.
    fn search_all(&mut self, recording: &mut Recording) {
        self.programs.search(recording);
        for pid in recording.pids() {
            self.check(pid, recording);
            // Errors may be temporary; the next search tries again.
            let _ = self.search(pid, false);
        }
        for pid in recording.poll_exited() {
            self.drop_threads(pid);
            recording.handle_exit(pid);
        }
    }

    /// Checks that a process still runs the same program.
    fn check(&mut self, pid: i32, recording: &mut Recording) {
        match self.programs.check(pid, recording) {
            Change::None => {}
            Change::Executed => {
                // The thread that called exec has the main thread's id now.
                self.drop_threads(pid);
                let _ = self.search(pid, true);
            }
            Change::Ended => self.drop_threads(pid),
        }
    }

    /// Stops sampling the threads of a process.
    fn drop_threads(&mut self, pid: i32) {
        self.threads.retain(|_, thread| thread.pid != pid);
    }

    /// Returns the threads that have used at least a period since their last sample: pid, tid and
    /// CPU time in ns.
    fn due_threads(&mut self, recording: &mut Recording) -> Vec<(i32, i32, u64)> {
        let mut due = Vec::new();
        let period = self.period.as_nanos() as u64;
        self.threads.retain(|&tid, thread| {
            // The pid may belong to another process by now, which is not recorded.
            let Some(process) = recording.process(thread.pid) else {
                return false;
            };
            if process.is_foreign() {
                return true;
            }
            match thread.read_cpu_time() {
                Ok((now, ns)) if ns >= period => due.push((thread.pid, tid, now)),
                Err(error) if proc::is_gone(&error) => {
                    process.thread_ended(tid);
                    return false;
                }
                _ => {}
            }
            true
        });
        due
    }

    /// Adds the new threads of a process. For `is_first`, see [`Thread::new`].
    fn search(&mut self, pid: i32, is_first: bool) -> io::Result<()> {
        for tid in proc::try_threads(pid)? {
            if self.threads.contains_key(&tid) {
                continue;
            }
            match Thread::new(pid, tid, is_first) {
                Ok(thread) => {
                    self.threads.insert(tid, thread);
                }
                Err(error) if proc::is_gone(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn sample(&mut self, tid: i32, now: u64, recording: &mut Recording) {
        let Some(thread) = self.threads.get_mut(&tid) else {
            return;
        };
        let ns = now.saturating_sub(thread.last_ns);
        if Duration::from_nanos(ns) < self.period {
            // The process has executed another program since.
            return;
        }
        let pid = thread.pid;
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(thread.stack_bytes, 0);
        let python = recording.python(pid);
        let read_stopped = move |glimpse: &Glimpse<'_>| {
            let live = LiveRegisters::of_all(glimpse.registers, glimpse.pc);
            let sp = live.unwind_registers().sp;
            let read = capture::read_memory(pid, sp, &mut buffer);
            let python_frames = python.and_then(|python| {
                let pointer = glimpse.thread_pointer()?;
                Some(python.read_frames(pointer, Copied::new(sp, &buffer[..read])))
            });
            (live, buffer, read, python_frames)
        };
        let glimpsed = self.glimpses.take(pid, tid, STOP_TIMEOUT, read_stopped);
        let Ok(Some((live, buffer, read, script))) = glimpsed else {
            return;
        };
        let copied = Copied::new(live.unwind_registers().sp, &buffer[..read]);
        let mut memory = Continued::new(copied, pid, &mut self.rest);
        thread.last_ns = now;
        let sample = Sample {
            pid,
            tid,
            live: Some(&live),
            kernel: &mut std::iter::empty(),
            script,
            ns,
            time: Time::Running,
        };
        recording.sample(sample, &mut memory);
        // The next copy will be large enough.
        if memory.is_short() && read == thread.stack_bytes {
            thread.stack_bytes = (thread.stack_bytes * 2).min(MAX_STACK_BYTES);
        }
        self.buffer = buffer;
    }
}

/// Reads the CPU time of a thread: the first number of its `schedstat`.
fn clock(file: &Reread) -> io::Result<u64> {
    let mut text = [0; 64];
    let read = file.read(&mut text)?;
    let number = proc::first_number(&text[..read]);
    number.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::running::Running;
    use std::process::{Command, Stdio};

    const TEST_TIMEOUT: Duration = Duration::from_secs(60);
    const SAMPLING: Sampling = Sampling {
        rate: 1000,
        children: true,
    };

    fn start(script: &str) -> Running {
        let mut command = Command::new("sh");
        Running::start(command.args(["-c", script]).stdin(Stdio::piped()))
    }

    /// Samples until the condition is true.
    fn until(
        what: &str,
        ptrace: &mut Ptrace,
        recording: &mut Recording,
        is_so: impl Fn(&Recording) -> bool,
    ) {
        let end = Instant::now() + TEST_TIMEOUT;
        while !is_so(recording) {
            assert!(Instant::now() < end, "waited {TEST_TIMEOUT:?} for {what}");
            std::thread::sleep(ptrace.max_wait());
            ptrace.collect(recording);
        }
    }

    fn is_traced(pid: i32) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        !status.contains("TracerPid:\t0\n")
    }

    #[test]
    fn programs_before_and_after_an_exec_are_recorded_separately() {
        let busy = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        let running = start(&format!("{busy}; exec sh -c 'while :; do :; done'"));
        let pid = running.pid();
        let mut recording = Recording::new(false);
        recording.add(pid);
        let mut ptrace = Ptrace::new(Sampling {
            children: false,
            ..SAMPLING
        });
        ptrace.attach(pid).unwrap();
        until("both", &mut ptrace, &mut recording, |recording| {
            let mut processes = recording.running();
            processes.any(|p| p.serial > 1 && p.counts.samples > 10)
        });
        drop(ptrace);
        let end = Instant::now() + TEST_TIMEOUT;
        while is_traced(pid) {
            assert!(Instant::now() < end, "it is still traced");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn children_are_sampled_and_reaped_by_their_parents() {
        let burn = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        let mut running = start(&format!("sh -c '{burn}' & wait $!; exit 7"));
        let pid = running.pid();
        let mut recording = Recording::new(true);
        recording.add_new(pid);
        let mut ptrace = Ptrace::new(SAMPLING);
        ptrace.attach(pid).unwrap();
        until("a child", &mut ptrace, &mut recording, |recording| {
            let mut processes = recording.running();
            processes.any(|p| p.pid != pid && p.counts.samples > 0)
        });
        until("the end", &mut ptrace, &mut recording, |recording| {
            recording.running().next().is_none()
        });
        assert_eq!(running.0.wait().unwrap().code(), Some(7));
    }
}

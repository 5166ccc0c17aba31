//! Stops all threads of a process, by tracing them.

use std::time::{Duration, Instant};

use crate::arch::{self, General};
use crate::code::SyscallCode;
use crate::request::{self, Event};
use crate::waiter::{Waiter, is_own_child};
use crate::{Refusal, Thread};
use proc::Status;

/// Trace options of every thread. Not EXITKILL: it would kill the process if this one dies.
pub const OPTIONS: i32 = libc::PTRACE_O_TRACEEXEC | libc::PTRACE_O_TRACESYSGOOD;
/// Maximum time to wait for threads that were killed while they were stopped.
const REAP_TIMEOUT: Duration = Duration::from_secs(2);

/// A traced thread.
pub struct TracedThread {
    /// Thread id.
    pub tid: i32,
    /// True if the thread has stopped.
    pub stopped: bool,
    /// General registers; valid once it has stopped.
    pub regs: General,
    /// Vector registers; empty before it has stopped.
    pub vector: Vec<u8>,
}

/// A process whose threads are traced.
pub struct Seizure {
    /// Process id.
    pub pid: i32,
    /// Seized threads that have not exited.
    pub threads: Vec<TracedThread>,
    /// Instructions with which its threads can make system calls; `None` if none were found.
    pub code: Option<SyscallCode>,
    /// Time just before the first thread was stopped.
    pub began: Instant,
    /// True if the process is a child of this one.
    pub is_own_child: bool,
    /// True if the process is the init process of its pid namespace.
    pub is_namespace_init: bool,
}

impl Seizure {
    /// Stops every thread. On failure, all threads continue.
    pub fn new(pid: i32, limit: Duration) -> Result<Self, Refusal> {
        let is_namespace_init = identify(pid)?.is_namespace_init();
        // The search takes time, so it is done before the stop. If reading is not permitted,
        // seizing reports that.
        let code = SyscallCode::find(pid).ok();
        let is_own_child = is_own_child(pid);
        let began = Instant::now();
        let mut seizure = Self {
            pid,
            threads: Vec::new(),
            code,
            began,
            is_own_child,
            is_namespace_init,
        };
        let result = seizure.stop(limit).and_then(|()| seizure.read_registers());
        if let Err(refusal) = result {
            seizure.release();
            return Err(refusal);
        }
        Ok(seizure)
    }

    /// Stops all threads. Ends when the kernel counts as many threads as have stopped, or when two
    /// readings in a row of the thread list found no new thread. While the list is read, a running
    /// thread may create another, but once all have stopped, none can. The count alone does not
    /// suffice, since an exited thread may stay in it for long.
    fn stop(&mut self, limit: Duration) -> Result<(), Refusal> {
        let mut waiter = Waiter::new(limit);
        let mut readings_without_new = 0;
        while readings_without_new < 2 {
            if self.seize_new()? {
                readings_without_new = 0;
            } else {
                readings_without_new += 1;
            }
            self.await_stops(&mut waiter)?;
            let count = Status::of(self.pid).and_then(|status| status.threads());
            if count == Some(self.threads.len()) {
                break;
            }
        }
        if self.threads.is_empty() {
            return Err(Refusal::Ended { pid: self.pid });
        }
        Ok(())
    }

    /// Seizes the threads that are not seized yet. Returns true if there were any.
    fn seize_new(&mut self) -> Result<bool, Refusal> {
        let mut seized: Vec<i32> = self.threads.iter().map(|thread| thread.tid).collect();
        seized.sort_unstable();
        let count_before = self.threads.len();
        for tid in proc::threads(self.pid) {
            if seized.binary_search(&tid).is_ok() {
                continue;
            }
            if let Err(error) = request::seize(tid, OPTIONS) {
                self.check_seize_error(tid, error)?;
                continue;
            }
            let regs = General::empty();
            self.threads.push(TracedThread {
                tid,
                stopped: false,
                regs,
                vector: Vec::new(),
            });
            // Interrupting fails if the thread has exited, which waiting for it detects.
            let _ = request::interrupt(tid);
        }
        Ok(self.threads.len() > count_before)
    }

    /// Returns `Ok` if a thread could not be seized because it has exited, or else the reason.
    fn check_seize_error(&self, tid: i32, error: std::io::Error) -> Result<(), Refusal> {
        let pid = self.pid;
        let Some(status) = Status::of_thread(pid, tid) else {
            return Ok(());
        };
        if status.is_dead() {
            return Ok(());
        }
        match (error.raw_os_error(), status.tracer()) {
            (Some(libc::ESRCH), _) => Ok(()),
            (Some(libc::EPERM), Some(tracer)) => Err(traced_refusal(pid, tracer)),
            (Some(libc::EPERM), None) => Err(Refusal::denied(pid)),
            _ => Err(Refusal::kernel(pid, "trace", error)),
        }
    }

    /// Waits until every seized thread has stopped or exited.
    fn await_stops(&mut self, waiter: &mut Waiter) -> Result<(), Refusal> {
        loop {
            let mut index = 0;
            while index < self.threads.len() {
                if self.threads[index].stopped || self.poll_thread(index)? {
                    index += 1;
                } else {
                    self.threads.swap_remove(index);
                }
            }
            self.drop_dead_leader(waiter);
            let Some(running) = self.threads.iter().find(|thread| !thread.stopped) else {
                waiter.record_response();
                return Ok(());
            };
            if !waiter.wait(running.tid) {
                return Err(waiter.timed_out(self.pid, running.tid));
            }
        }
    }

    /// Handles a thread's next event, if there is one. Returns false if the thread has exited.
    fn poll_thread(&mut self, index: usize) -> Result<bool, Refusal> {
        let pid = self.pid;
        let thread = &mut self.threads[index];
        let tid = thread.tid;
        let event = request::poll(tid, self.is_own_child && tid == pid);
        let event = event.map_err(|error| Refusal::kernel(pid, "wait for", error))?;
        let signal = match event {
            None => return Ok(true),
            Some(Event::Stop) => {
                thread.stopped = true;
                return Ok(true);
            }
            Some(Event::Exited) if tid == pid => return Err(Refusal::Ended { pid }),
            Some(Event::Exited | Event::NotTraced) => return Ok(false),
            Some(Event::Exec) => {
                // The other threads are gone, and the thread that called exec now has the process's
                // tid.
                thread.stopped = true;
                self.threads.retain(|thread| thread.tid == pid);
                return Err(Refusal::Executed { pid });
            }
            // The signal is delivered now, as it would be anyway. The thread stops before the
            // handler runs.
            Some(Event::Signal(signal)) => signal,
            Some(Event::Call | Event::NewChild | Event::Other) => 0,
        };
        // Resuming fails if the thread was killed. Its exit is then the next event.
        let _ = request::proceed(tid, signal);
        Ok(true)
    }

    /// Drops a thread-group leader that exited before the other threads. It never stops, and its
    /// exit is not reported.
    fn drop_dead_leader(&mut self, waiter: &Waiter) {
        let pid = self.pid;
        if waiter.may_check() && Status::of(pid).is_none_or(|status| status.is_dead()) {
            self.threads
                .retain(|thread| thread.tid != pid || thread.stopped);
        }
    }

    /// Reads the registers of every thread, and sorts the threads by id.
    fn read_registers(&mut self) -> Result<(), Refusal> {
        let pid = self.pid;
        for thread in &mut self.threads {
            let failed = |error| Refusal::kernel(pid, "read the registers of", error);
            let regs = request::general(thread.tid).map_err(failed)?;
            thread.regs = regs.ok_or(Refusal::Width { pid })?;
            thread.vector = arch::vector(thread.tid).map_err(failed)?;
        }
        self.threads.sort_unstable_by_key(|thread| thread.tid);
        Ok(())
    }

    /// Returns the threads with their registers.
    pub fn describe_threads(&self) -> Result<Vec<Thread>, Refusal> {
        let failed = |error| Refusal::kernel(self.pid, "read the registers of", error);
        let describe = |thread: &TracedThread| {
            let regs = &thread.regs;
            let thread_pointer = arch::thread_pointer(thread.tid, regs).map_err(failed)?;
            let mut words: Vec<u64> = regs.0.into_iter().chain([thread_pointer]).collect();
            let mut scratch = Vec::with_capacity(thread.vector.len() / 8);
            for (index, word) in thread.vector.as_chunks().0.iter().enumerate() {
                let word = u64::from_le_bytes(*word);
                if arch::is_preserved(index) {
                    words.push(word)
                } else {
                    scratch.push(word)
                }
            }
            Ok(Thread {
                tid: thread.tid,
                sp: regs.sp(),
                pc: regs.pc(),
                in_call: arch::is_in_call(thread.tid, regs),
                thread_pointer,
                words,
                scratch,
            })
        };
        self.threads.iter().map(describe).collect()
    }

    /// Resumes every thread and returns the time at which that was done. A thread that has not
    /// stopped is released when the tracing thread exits.
    pub fn release(&mut self) -> Instant {
        let pid = self.pid;
        let stopped = self
            .threads
            .iter()
            .filter(|thread| thread.stopped)
            .map(|thread| thread.tid);
        let mut killed: Vec<i32> = stopped
            .filter(|&tid| request::detach(tid).is_err())
            .collect();
        let released = Instant::now();
        self.threads.clear();
        // A killed thread remains until its tracer has reaped it. The thread-group leader's exit is
        // reported last.
        let mut waiter = Waiter::new(REAP_TIMEOUT);
        loop {
            killed.retain(|&tid| {
                let event = request::poll(tid, self.is_own_child && tid == pid);
                !matches!(event, Ok(Some(Event::Exited | Event::NotTraced)))
            });
            let Some(&tid) = killed.first() else {
                return released;
            };
            if !waiter.wait(tid) {
                return released;
            }
        }
    }
}

/// Checks that a process can be captured, before anything is touched.
fn identify(pid: i32) -> Result<Status, Refusal> {
    let status = Status::of(pid).ok_or(Refusal::Gone { pid })?;
    if status.tgid != pid {
        return Err(Refusal::Thread {
            tid: pid,
            pid: status.tgid,
        });
    }
    if pid == std::process::id().cast_signed() {
        return Err(Refusal::Own { pid });
    }
    if let Some(tracer) = status.tracer() {
        return Err(traced_refusal(pid, tracer));
    }
    let is_dead = |&tid: &i32| Status::of_thread(pid, tid).is_none_or(|status| status.is_dead());
    if status.is_dead() && proc::threads(pid).iter().all(is_dead) {
        return Err(Refusal::Zombie { pid });
    }
    Ok(status)
}

/// Returns the refusal for a process that the given thread traces.
fn traced_refusal(pid: i32, tracing_thread: i32) -> Refusal {
    let tracer = Status::of(tracing_thread).map_or(tracing_thread, |status| status.tgid);
    let name = proc::thread_name(tracer, tracer).unwrap_or_default();
    Refusal::Traced {
        pid,
        tracer,
        name: String::from_utf8_lossy(&name).trim().to_owned(),
    }
}

/// Reaps killed threads of a process, from a thread other than the tracer. A thread that calls exec
/// kills the others, and holds a kernel lock until they have been reaped. Seizing takes the same
/// lock, so the tracer itself may be blocked.
pub fn reap_dead_threads(pid: i32) {
    // Only dead threads: waiting for a stopped thread would take its stop from the tracer.
    let is_dead = |&tid: &i32| Status::of_thread(pid, tid).is_some_and(|status| status.is_dead());
    let threads = proc::threads(pid).into_iter();
    threads
        .filter(|&tid| tid != pid)
        .filter(is_dead)
        .for_each(request::reap);
}

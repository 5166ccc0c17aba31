//! Seizure: stops all threads of a process.

use std::time::{Duration, Instant};

use crate::arch::{self, General};
use crate::code::Code;
use crate::waiter::{Waiter, is_own_child};
use proc::Status;

use crate::request::{self, Event};
use crate::{Refusal, Thread};

/// Trace options of every thread. Nothing that outlives this process: no EXITKILL.
pub const OPTIONS: i32 = libc::PTRACE_O_TRACEEXEC | libc::PTRACE_O_TRACESYSGOOD;
/// Maximum time to wait for threads that were killed while they were stopped.
const REAP_TIMEOUT: Duration = Duration::from_secs(2);

/// Traced thread.
pub struct Seized {
    /// Thread id.
    pub tid: i32,
    /// True if the thread has stopped.
    pub stopped: bool,
    /// General registers; valid once it has stopped.
    pub regs: General,
    /// Vector registers; empty before it has stopped.
    pub vector: Vec<u8>,
}

/// Process whose threads are traced.
pub struct Seizure {
    /// Process id.
    pub pid: i32,
    /// Threads that are alive.
    pub threads: Vec<Seized>,
    /// Instructions by which its threads can make system calls; `None` if there are none.
    pub code: Option<Code>,
    /// Time of the first thread's stop.
    pub began: Instant,
    /// True if this process is also its parent.
    pub own_child: bool,
    /// True if it is the first process of its pid namespace.
    pub is_first: bool,
}

impl Seizure {
    /// Stops every thread. On failure, all continue.
    pub fn new(pid: i32, limit: Duration) -> Result<Self, Refusal> {
        let is_first = identify(pid)?.is_first();
        // Before the stop, since it takes time. If reading is not permitted, seizing reports that.
        let code = Code::find(pid).ok();
        let own_child = is_own_child(pid);
        let began = Instant::now();
        let mut seizure = Self {
            pid,
            threads: Vec::new(),
            code,
            began,
            own_child,
            is_first,
        };
        let stopped = seizure.stop(limit).and_then(|()| seizure.read_registers());
        if let Err(refusal) = stopped {
            seizure.release();
            return Err(refusal);
        }
        Ok(seizure)
    }

    /// Stops all threads. Ends when there are no more threads than have stopped, or their list
    /// twice contained no new one. While the list is read, a running thread may create another, but
    /// once all have stopped, none can. (An exited thread may be counted for long.)
    fn stop(&mut self, limit: Duration) -> Result<(), Refusal> {
        let mut waiter = Waiter::new(limit);
        let mut quiet = 0;
        while quiet < 2 {
            quiet = if self.seize_new()? { 0 } else { quiet + 1 };
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
        let mut known: Vec<i32> = self.threads.iter().map(|thread| thread.tid).collect();
        known.sort_unstable();
        let before = self.threads.len();
        for tid in proc::threads(self.pid) {
            if known.binary_search(&tid).is_ok() {
                continue;
            }
            if let Err(error) = request::seize(tid, OPTIONS) {
                self.judge(tid, error)?;
                continue;
            }
            let regs = General::empty();
            self.threads.push(Seized {
                tid,
                stopped: false,
                regs,
                vector: Vec::new(),
            });
            // It may have ended meanwhile, which waiting for it detects.
            let _ = request::interrupt(tid);
        }
        Ok(self.threads.len() > before)
    }

    /// Returns the reason why a thread could not be seized, or `Ok` if it is dead.
    fn judge(&self, tid: i32, error: std::io::Error) -> Result<(), Refusal> {
        let pid = self.pid;
        let status = Status::of_thread(pid, tid).filter(|status| !status.is_dead());
        let Some(status) = status else { return Ok(()) };
        match (error.raw_os_error(), status.tracer()) {
            (Some(libc::ESRCH), _) => Ok(()),
            (Some(libc::EPERM), Some(tracer)) => Err(traced(pid, tracer)),
            (Some(libc::EPERM), None) => Err(Refusal::denied(pid)),
            _ => Err(Refusal::kernel(pid, "trace", error)),
        }
    }

    /// Waits until every seized thread has stopped or ended.
    fn await_stops(&mut self, waiter: &mut Waiter) -> Result<(), Refusal> {
        loop {
            let mut index = 0;
            while index < self.threads.len() {
                if self.threads[index].stopped || self.look_at(index)? {
                    index += 1;
                } else {
                    self.threads.swap_remove(index);
                }
            }
            self.forget_dead_leader(waiter);
            let Some(running) = self.threads.iter().find(|thread| !thread.stopped) else {
                waiter.answered();
                return Ok(());
            };
            if !waiter.wait(running.tid) {
                return Err(waiter.ended(self.pid, running.tid));
            }
        }
    }

    /// Processes a thread's event. Returns false if it has ended.
    fn look_at(&mut self, index: usize) -> Result<bool, Refusal> {
        let pid = self.pid;
        let thread = &mut self.threads[index];
        let tid = thread.tid;
        let event = request::poll(tid, self.own_child && tid == pid);
        let event = event.map_err(|error| Refusal::kernel(pid, "wait for", error))?;
        let signal = match event {
            None => return Ok(true),
            Some(Event::Stop) => {
                thread.stopped = true;
                return Ok(true);
            }
            Some(Event::End) if tid == pid => return Err(Refusal::Ended { pid }),
            Some(Event::End | Event::None) => return Ok(false),
            Some(Event::Exec) => {
                // The other threads are gone, and this one has the process's id now.
                thread.stopped = true;
                self.threads.retain(|thread| thread.tid == pid);
                return Err(Refusal::Executed { pid });
            }
            // It is delivered now, as it would be anyway. The thread stops before its handler runs.
            Some(Event::Signal(signal)) => signal,
            Some(Event::Call | Event::Birth | Event::Other) => 0,
        };
        // If it was killed meanwhile, its end comes next.
        let _ = request::proceed(tid, signal);
        Ok(true)
    }

    /// Drops a first thread that exited before the others. It never stops, and its end is not
    /// reported.
    fn forget_dead_leader(&mut self, waiter: &Waiter) {
        let pid = self.pid;
        if waiter.seldom() && Status::of(pid).is_none_or(|s| s.is_dead()) {
            self.threads
                .retain(|thread| thread.tid != pid || thread.stopped);
        }
    }

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
    pub fn described(&self) -> Result<Vec<Thread>, Refusal> {
        let failed = |error| Refusal::kernel(self.pid, "read the registers of", error);
        let describe = |thread: &Seized| {
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

    /// Resumes every thread, and returns when that was done. A thread that has not stopped is
    /// released when the tracing thread ends.
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
        // A traced thread that was killed remains until its tracer has waited for it. The first
        // thread's end comes last.
        let mut waiter = Waiter::new(REAP_TIMEOUT);
        loop {
            let ended = |tid: i32| {
                let event = request::poll(tid, self.own_child && tid == pid);
                !matches!(event, Ok(Some(Event::End | Event::None)))
            };
            killed.retain(|&tid| ended(tid));
            let Some(&left) = killed.first() else {
                return released;
            };
            if !waiter.wait(left) {
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
        return Err(traced(pid, tracer));
    }
    let ended = |&tid: &i32| Status::of_thread(pid, tid).is_none_or(|status| status.is_dead());
    if status.is_dead() && proc::threads(pid).iter().all(ended) {
        return Err(Refusal::Zombie { pid });
    }
    Ok(status)
}

fn traced(pid: i32, thread: i32) -> Refusal {
    let tracer = Status::of(thread).map_or(thread, |status| status.tgid);
    let name = proc::thread_name(tracer, tracer).unwrap_or_default();
    Refusal::Traced {
        pid,
        tracer,
        name: String::from_utf8_lossy(&name).trim().to_owned(),
    }
}

/// Waits, on another thread than the tracing one, for threads that were killed while they are
/// traced. A thread that makes an exec kills the others, and holds a kernel lock until they have
/// been waited for; seizing takes the same lock.
pub fn reap_dead_threads(pid: i32) {
    // Only for those: waiting for a thread that has stopped would take its stop from the tracer.
    let is_dead = |&tid: &i32| Status::of_thread(pid, tid).is_some_and(|status| status.is_dead());
    let threads = proc::threads(pid).into_iter();
    threads
        .filter(|&tid| tid != pid)
        .filter(is_dead)
        .for_each(request::reap);
}

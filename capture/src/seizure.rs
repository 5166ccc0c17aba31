//! All threads of a process, stopped.

use std::time::{Duration, Instant};

use crate::arch::{self, General};
use crate::code::Code;
use crate::patience::{Patience, is_own_child};
use proc::Status;

use crate::request::{self, Event};
use crate::{Refusal, Thread};

/// What every thread is traced with. Nothing that outlives us: no EXITKILL.
pub const OPTIONS: i32 = libc::PTRACE_O_TRACEEXEC | libc::PTRACE_O_TRACESYSGOOD;
/// For threads that were killed while they were stopped.
const REAPING: Duration = Duration::from_secs(2);

/// A thread that is traced.
pub struct Seized {
    /// Its number.
    pub tid: i32,
    /// Whether it has stopped.
    pub stopped: bool,
    /// Its general registers, once it has.
    pub regs: General,
    /// Its vector registers.
    pub vector: Vec<u8>,
}

/// A process whose threads are traced.
pub struct Seizure {
    /// The process.
    pub pid: i32,
    /// Its threads that are alive.
    pub threads: Vec<Seized>,
    /// Where its threads make system calls for us, if there is such a place.
    pub code: Option<Code>,
    /// When the first one was stopped.
    pub began: Instant,
    /// Whether we are also its parent.
    pub own_child: bool,
    /// Whether it is the first process of its pid namespace.
    pub is_first: bool,
}

impl Seizure {
    /// Stops every thread; or stops none, and says why.
    pub fn new(pid: i32, limit: Duration) -> Result<Self, Refusal> {
        let is_first = identify(pid)?.is_first();
        // Before the stop, since it takes time; without a right to look, seizing says so.
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

    /// Until there are no more threads than have stopped, or their list has twice held no new one:
    /// while it is read, a thread that still runs may start another, but when all have stopped,
    /// none can. (One that has ended may be counted for long.)
    fn stop(&mut self, limit: Duration) -> Result<(), Refusal> {
        let mut patience = Patience::new(limit);
        let mut quiet = 0;
        while quiet < 2 {
            quiet = if self.seize_new()? { 0 } else { quiet + 1 };
            self.await_stops(&mut patience)?;
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

    /// Seizes the threads that are not seized yet; says whether there were any.
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
            // It may have ended meanwhile, which is found out by waiting for it.
            let _ = request::interrupt(tid);
        }
        Ok(self.threads.len() > before)
    }

    /// Why a thread could not be seized: nothing to mind if it is dead.
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
    fn await_stops(&mut self, patience: &mut Patience) -> Result<(), Refusal> {
        loop {
            let mut index = 0;
            while index < self.threads.len() {
                if self.threads[index].stopped || self.look_at(index)? {
                    index += 1;
                } else {
                    self.threads.swap_remove(index);
                }
            }
            self.forget_dead_leader(patience);
            let Some(running) = self.threads.iter().find(|thread| !thread.stopped) else {
                patience.answered();
                return Ok(());
            };
            if !patience.wait(running.tid) {
                return Err(patience.ended(self.pid, running.tid));
            }
        }
    }

    /// Notes what happened to a thread; false if it has ended.
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
                // The other threads are gone, and this one has the process's number now.
                thread.stopped = true;
                self.threads.retain(|thread| thread.tid == pid);
                return Err(Refusal::Executed { pid });
            }
            // It is delivered now, as without us; the thread stops before its handler runs.
            Some(Event::Signal(signal)) => signal,
            Some(Event::Call | Event::Birth | Event::Other) => 0,
        };
        // If it was killed meanwhile, its end comes next.
        let _ = request::proceed(tid, signal);
        Ok(true)
    }

    /// A first thread that ended before the others never stops, and its end is not reported.
    fn forget_dead_leader(&mut self, patience: &Patience) {
        let pid = self.pid;
        if patience.seldom() && Status::of(pid).is_none_or(|s| s.is_dead()) {
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

    /// The threads' registers for the caller.
    pub fn described(&self) -> Result<Vec<Thread>, Refusal> {
        let failed = |error| Refusal::kernel(self.pid, "read the registers of", error);
        let describe = |thread: &Seized| {
            let regs = &thread.regs;
            let thread_pointer = arch::thread_pointer(thread.tid, regs).map_err(failed)?;
            let mut words: Vec<u64> = regs.0.into_iter().chain([thread_pointer]).collect();
            let mut scratch = Vec::with_capacity(thread.vector.len() / 8);
            for (index, word) in thread.vector.as_chunks().0.iter().enumerate() {
                let word = u64::from_le_bytes(*word);
                match arch::is_preserved(index) {
                    true => words.push(word),
                    false => scratch.push(word),
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

    /// Resumes every thread, and returns when that was done. One that has not stopped is let go
    /// when the tracing thread ends.
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
        // A traced thread that was killed stays until its tracer has looked at it; the first
        // thread's end comes last.
        let mut patience = Patience::new(REAPING);
        loop {
            let ended = |tid: i32| {
                let event = request::poll(tid, self.own_child && tid == pid);
                !matches!(event, Ok(Some(Event::End | Event::None)))
            };
            killed.retain(|&tid| ended(tid));
            let Some(&left) = killed.first() else {
                return released;
            };
            if !patience.wait(left) {
                return released;
            }
        }
    }
}

/// Finds out what cannot be captured, before anything is touched.
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

/// Waits for threads that were killed while they are traced, from another thread than the
/// tracing one. A thread that executes a program kills the others, and holds a lock of the
/// kernel's until they have been waited for; seizing takes the same lock.
pub fn reap_dead_threads(pid: i32) {
    // Only of those: waiting for a thread that has stopped would take that from the tracer.
    let is_dead = |&tid: &i32| Status::of_thread(pid, tid).is_some_and(|status| status.is_dead());
    let threads = proc::threads(pid).into_iter();
    threads
        .filter(|&tid| tid != pid)
        .filter(is_dead)
        .for_each(request::reap);
}

//! Stops a live process briefly and takes a copy-on-write copy of it.
//!
//! ```no_run
//! # fn main() -> Result<(), capture::Refusal> {
//! let second = std::time::Duration::from_secs(1);
//! let (stopped, copy) = capture::Stopped::stop_with_copy(4711, second)?;
//! let (registers, copy) = (stopped.threads().to_vec(), copy?);
//! let pause = stopped.resume();
//! println!("stopped for {:?}; /proc/{}/mem is as it was then", pause.stopped, copy.pid());
//! # Ok(()) }
//! ```
//!
//! # Guarantees
//! - The target runs no injected function, and none of its own functions is called. One of its
//!   threads makes three system calls for this process (`prctl`, `clone`, `wait4`), and that is
//!   all.
//! - Afterwards the target is as before: registers, blocked signals, memory, children, group-stop.
//!   The kernel restarts an interrupted system call as after any stop. Signals that arrive during
//!   the stop are delivered once. The target gets no child that it can see, and no `SIGCHLD`.
//! - Whenever this process is killed, the target recovers by itself. While one of its threads makes
//!   system calls for this process, signal frames on the unused part of that thread's stack restore
//!   its state if this process dies (`src/frames.rs`). A copy that is being created at that moment
//!   exits. No copy ever runs the program's code, and none outlives this process.
//! - A [`Copy`](struct@Copy) has the target's memory as of the stop, byte for byte, except for the
//!   word in which the kernel records the processor that a thread runs on (rseq). Once the target
//!   continues, its copy has no open files and so keeps none open, and the OOM killer picks it
//!   first.
//! - After a [`Refusal`], the target continues as before.
//! - A [`Copy`](struct@Copy) runs only a function of this program, if a [`Worker`] is asked to. The
//!   function writes only to memory that this process shares with the copy; neither the target's
//!   memory nor the copy's own is changed. Other processes of the target's user may be able to
//!   write to the shared memory, so nothing in it is trusted.
//!
//! While this process waits for the target's threads, it is interrupted by a timer, whose signal is
//! `SIGRTMAX - 1`.
//!
//! This process is not suspended from its terminal while a target is stopped: at the first stop, it
//! installs handlers for those of `SIGTSTP`, `SIGTTIN` and `SIGTTOU` that have their default
//! action. Such a signal takes effect as soon as the target continues.
//!
//! A single thread can be stopped just long enough to read its registers ([`Glimpses`]).
//!
//! # Callers must
//! - keep a [`Stopped`] short: the target is stopped, and so is everything that waits for it
//!   ([`RaisedPriority`]);
//! - not wait for the target, or for any child at all (`waitpid(-1)`), in another thread while it
//!   is stopped;
//! - drop the [`Copy`](struct@Copy) soon: as long as it exists, the target's first write to each
//!   page costs a copy of that page;
//! - read from the stopped target what a copy lacks: memory that is shared, or withheld from
//!   children (`MADV_DONTFORK`, `MADV_WIPEONFORK`).
//!
//! # Limits
//! - 64-bit programs on x86-64 and aarch64. Tested on Linux 6.18 only. The aarch64 code has been
//!   compiled, but not run, since qemu's user mode has no ptrace. Copies cannot do work there
//!   ([`Failure::Processor`]).
//! - As after every ptrace stop, `epoll_wait`, `semop`, `sigtimedwait` and socket calls with a
//!   timeout return `EINTR`. If this process is killed during the few milliseconds of
//!   [`Stopped::copy`], the chosen thread's `nanosleep`, `poll` or timed futex returns `EINTR`, and
//!   another thread's `waitpid` with `__WALL` or `__WCLONE` may see a child for a moment. On
//!   aarch64 a chosen thread's sleep may start over; another thread is chosen if there is one.
//! - A process is not copied if all its threads have a seccomp filter, if it has shadow stacks, if
//!   all its threads are on foreign stacks (coroutines), or if it adopts orphans. Its threads can
//!   still be stopped, and its memory read during the stop.
//! - A target that executes another program or exits during the stop is refused; try again.
//! - `SIGSTOP` cannot be postponed: if this process gets it at the wrong moment, the target, or the
//!   thread of a glimpse, stays stopped until `SIGCONT`.
//! - The stop needs CPU time: with hundreds of busy threads it takes longer, especially without
//!   permission to raise a thread's priority.
//! - The copy counts against the target's limits on processes and memory. It is a child of the
//!   target's init process (or subreaper), which is notified of its exit and has to reap it. If
//!   that process does not, each copy leaves a zombie.
//! - The chosen thread is one whose stack is the end of its mapping. A stack inside other memory
//!   (`pthread_attr_setstack`) with less than 16 KiB of room would lose the bytes below it if this
//!   process were killed in [`Stopped::copy`].

mod alarm;
mod arch;
mod choice;
mod code;
mod copying;
mod frames;
mod glimpse;
mod image;
mod priority;
mod process;
mod refusal;
mod request;
mod seizure;
mod suspension;
mod tracer;
mod waiter;
mod worker;

use std::sync::Arc;
use std::time::{Duration, Instant};

pub use code::is_c_library;
pub use glimpse::{Glimpse, Glimpses};
pub use priority::RaisedPriority;
pub use refusal::Refusal;
pub use request::{
    read as read_memory, read_error as read_memory_error, read_parts as read_memory_parts,
};
pub use worker::{Failure, Work, Worker};

use code::SyscallCode;
use copying::NewCopy;
use proc::Status;
use seizure::Seizure;
use suspension::Hold;
use tracer::Tracer;

/// A thread of a stopped process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Thread id.
    pub tid: i32,
    /// Stack pointer.
    pub sp: u64,
    /// Program counter.
    pub pc: u64,
    /// True if the thread is in a system call.
    pub in_call: bool,
    /// Thread pointer.
    pub thread_pointer: u64,
    /// Words that may hold pointers: general registers, the thread pointer, and the vector
    /// registers that a callee preserves.
    pub words: Vec<u64>,
    /// The remaining vector and floating-point state, as words. A caller keeps nothing in it across
    /// a call.
    pub scratch: Vec<u64>,
}

/// A process whose threads are all stopped. It continues when this is dropped.
pub struct Stopped {
    tracer: Arc<Tracer>,
    /// Traced threads; `None` while they are moved to the tracer's thread, which alone uses them.
    seizure: Option<Seizure>,
    threads: Vec<Thread>,
    /// Copies that are completed when the process continues.
    new_copies: Vec<NewCopy>,
    began: Instant,
    cloned: Duration,
    /// Prevents suspension of this process until the target continues.
    hold: Option<Hold>,
}

/// Times of a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// Time from the first thread's stop to the last one's release.
    pub stopped: Duration,
    /// Part of that time spent on making copies.
    pub cloned: Duration,
    /// Number of stopped threads.
    pub threads: usize,
}

/// A copy of a process. It is stopped except while a [`Worker`] runs in it, and ends when this is
/// dropped or this process exits.
pub struct Copy {
    tracer: Arc<Tracer>,
    pid: i32,
    code: SyscallCode,
}

impl Stopped {
    /// Stops every thread of a process. If one does not stop by the deadline, resumes all.
    pub fn stop(pid: i32, deadline: Duration) -> Result<Self, Refusal> {
        Self::stop_and(pid, deadline, |_| ()).map(|(stopped, ())| stopped)
    }

    /// Stops a process and copies it in one step, which is faster than [`stop`](Self::stop) and
    /// [`copy`](Self::copy). The process is stopped even if the copy fails.
    pub fn stop_with_copy(
        pid: i32,
        deadline: Duration,
    ) -> Result<(Self, Result<Copy, Refusal>), Refusal> {
        let copy = |seizure: &mut Seizure| {
            let began = Instant::now();
            (copying::copy(seizure), began.elapsed())
        };
        let (mut stopped, (result, duration)) = Self::stop_and(pid, deadline, copy)?;
        stopped.cloned = duration;
        let copy = result.map(|new_copy| stopped.adopt(new_copy));
        Ok((stopped, copy))
    }

    /// Stops a process, and then runs a function on the tracer's thread.
    fn stop_and<R: Send + 'static>(
        pid: i32,
        deadline: Duration,
        then: impl FnOnce(&mut Seizure) -> R + Send + 'static,
    ) -> Result<(Self, R), Refusal> {
        let failed = |error| Refusal::kernel(pid, "start a thread to trace", error);
        // Declared before the tracer and so dropped after it: if this function fails, the exit of
        // the tracer's thread releases the target.
        let hold = Some(Hold::new());
        let tracer = Arc::new(Tracer::start().map_err(failed)?);
        let stop = move || {
            let mut seizure = Seizure::new(pid, deadline)?;
            let threads = match seizure.describe_threads() {
                Ok(threads) => threads,
                Err(refusal) => {
                    seizure.release();
                    return Err(refusal);
                }
            };
            let result = then(&mut seizure);
            Ok((threads, seizure, result))
        };
        let outcome = tracer.run_while(stop, || seizure::reap_dead_threads(pid));
        let (threads, seizure, result) = outcome.unwrap_or(Err(Refusal::Ended { pid }))?;
        let began = seizure.began;
        let stopped = Self {
            tracer,
            seizure: Some(seizure),
            threads,
            new_copies: Vec::new(),
            began,
            cloned: Duration::ZERO,
            hold,
        };
        Ok((stopped, result))
    }

    /// Returns the threads, by id.
    #[must_use]
    pub fn threads(&self) -> &[Thread] {
        &self.threads
    }

    /// Copies the process. The copy shares the process's open files until the process continues.
    pub fn copy(&mut self) -> Result<Copy, Refusal> {
        let began = Instant::now();
        let result = self.with_seizure(copying::copy);
        self.cloned += began.elapsed();
        let new_copy = result.unwrap_or(Err(Refusal::Ended { pid: 0 }))?;
        Ok(self.adopt(new_copy))
    }

    /// Takes ownership of a copy that was just made.
    fn adopt(&mut self, new_copy: NewCopy) -> Copy {
        let copy = Copy {
            tracer: Arc::clone(&self.tracer),
            pid: new_copy.pid,
            code: new_copy.code,
        };
        self.new_copies.push(new_copy);
        copy
    }

    /// Resumes the process.
    pub fn resume(mut self) -> Pause {
        let released = self.release().unwrap_or_else(Instant::now);
        Pause {
            stopped: released.duration_since(self.began),
            cloned: self.cloned,
            threads: self.threads.len(),
        }
    }

    /// Resumes the process, then completes its copies.
    fn release(&mut self) -> Option<Instant> {
        let new_copies = std::mem::take(&mut self.new_copies);
        let released = self.with_seizure(|seizure| {
            let released = seizure.release();
            new_copies.into_iter().for_each(NewCopy::complete);
            released
        });
        self.hold = None;
        released
    }

    /// Runs a function with the seizure on the tracer's thread. Returns `None` if it panicked.
    fn with_seizure<R: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut Seizure) -> R + Send + 'static,
    ) -> Option<R> {
        let mut seizure = self.seizure.take()?;
        let job = move || {
            let result = work(&mut seizure);
            (seizure, result)
        };
        let (seizure, result) = self.tracer.run(job)?;
        self.seizure = Some(seizure);
        Some(result)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.release();
    }
}

impl Copy {
    /// Returns the copy's process id.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns true if the copy still has its memory. The kernel or a user may have killed it;
    /// memory that was read since must not be trusted.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        // A killed process is no longer in the stopped state.
        Status::of(self.pid).is_some_and(|status| status.state() == 't')
    }

    /// Prepares the copy for work, with this many zeroed words of shared memory.
    pub fn worker(&self, work: Work, words: usize) -> Result<Worker, Failure> {
        Worker::new(&self.tracer, self.pid, self.code, work, words)
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let pid = self.pid;
        self.tracer.run(move || copying::kill_and_reap(pid));
    }
}

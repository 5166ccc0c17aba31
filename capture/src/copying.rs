//! Creation of the copy, by system calls that the target makes for this process.
//!
//! 1. A thread of the target clones itself: the first child, with a copy of the memory.
//! 2. The first child clones itself: the second child, which shares that copy.
//! 3. The first child is killed, and the target is made to reap it. The second child is now an
//!    orphan, and the target has no unknown child.
//! 4. The thread gets back its registers, its blocked signals and the bytes of its stack.
//! 5. When the target runs again, the second child gets a file descriptor table of its own, and
//!    closes all files in it.
//!
//! Each stop of a thread costs two context switches, one of which often wakes a processor: about
//! 50 µs. So no unnecessary stop is requested, and everything that can wait is done in step 5.

use std::io::Error;
use std::time::Duration;

use crate::Refusal;
use crate::arch::{General, restart};
use crate::choice::{Chosen, choose};
use crate::code::SyscallCode;
use crate::frames::ALL_SIGNALS;
use crate::priority;
use crate::process;
use crate::request::{self, Event};
use crate::seizure::{OPTIONS, Seizure};
use crate::waiter::next_event;
use crate::worker;

/// Maximum time of one system call. Copying the page tables of a terabyte takes less.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Trace options that report and trace new children.
const CHILD_EVENTS: i32 =
    libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_TRACEFORK | libc::PTRACE_O_TRACEVFORK;
/// Trace options of the children that this module creates: they are killed if this process dies.
const CHILD_OPTIONS: i32 = libc::PTRACE_O_EXITKILL | libc::PTRACE_O_TRACESYSGOOD;
const CLOSE_RANGE_UNSHARE: u64 = 2;

/// A copy that still shares the target's open files.
pub struct NewCopy {
    /// Process id.
    pub pid: i32,
    /// Instructions with which it can make system calls.
    pub code: SyscallCode,
    /// Registers with which it closes the files.
    closing: General,
    /// Nice level of the thread that was copied.
    nice: i32,
}

/// Copies a stopped process.
pub fn copy(seizure: &mut Seizure) -> Result<NewCopy, Refusal> {
    let pid = seizure.pid;
    // If the process was killed, that is the reason to report, whichever request failed.
    let is_ending = || process::mappings(pid).map_or(true, |mappings| mappings.is_empty());
    try_copy(seizure).map_err(|refusal| {
        if is_ending() {
            Refusal::Ended { pid }
        } else {
            refusal
        }
    })
}

fn try_copy(seizure: &mut Seizure) -> Result<NewCopy, Refusal> {
    let pid = seizure.pid;
    let code = match seizure.code.filter(|code| code.is_current(pid)) {
        Some(code) => code,
        None => SyscallCode::find(pid)?,
    };
    seizure.code = Some(code);
    let chosen = choose(seizure, &code)?;
    // The first process of a pid namespace adopts orphans, and so would its copy.
    if seizure.is_namespace_init {
        return Err(Refusal::Reaper { pid });
    }
    let tid = chosen.tid;
    let mut thread = TargetThread::prepare(seizure, chosen, code)?;
    let copy = thread.make_copy();
    let restored = thread.restore();
    if restored.is_err() {
        if let Ok(copy) = &copy {
            kill_and_reap(copy.pid);
        }
        // The thread recovers by itself when the tracing thread exits.
        seizure.threads.retain(|thread| thread.tid != tid);
    }
    let copy = copy?;
    restored.map(|()| copy)
}

/// Kills a traced process and waits for its exit.
pub fn kill_and_reap(pid: i32) {
    // The process may be dead already.
    let _ = request::kill(pid);
    while let Ok(event) = next_event(pid, pid, false, CALL_TIMEOUT) {
        if matches!(event, Event::Exited | Event::NotTraced) {
            return;
        }
        // This was a stop that had not been consumed yet; the exit comes next.
    }
}

impl NewCopy {
    /// Gives the copy the target's priority and its own file descriptor table, and closes all files
    /// in it.
    pub fn complete(self) {
        priority::set_nice(self.pid, self.nice);
        // Before Linux 5.9, this call fails, and the copy keeps sharing the target's open files.
        if worker::call(self.pid, &self.closing).is_some() {
            process::offer_to_oom_killer(self.pid);
        }
    }
}

/// Point at which a thread has stopped.
enum StopPoint {
    /// Start or end of a system call.
    Call,
    /// Middle of a system call that has created this child.
    NewChild(i32),
}

/// Result of a system call, and the child that it created.
struct CallResult {
    value: i64,
    child: Option<i32>,
}

/// First child: its pid in this pid namespace, and in the target's.
struct Child {
    pid: i32,
    pid_in_target: i64,
}

/// Thread of the target that makes the system calls.
struct TargetThread {
    /// Pid of the target.
    pid: i32,
    chosen: Chosen,
    code: SyscallCode,
    /// Original contents of the stack where the return frames are.
    saved: Vec<u8>,
    /// First child, until it has been reaped.
    child: Option<Child>,
    /// True if the target is a child of this process.
    is_own_child: bool,
}

impl TargetThread {
    /// Writes the return frames to the thread's stack.
    fn prepare(seizure: &Seizure, chosen: Chosen, code: SyscallCode) -> Result<Self, Refusal> {
        let pid = seizure.pid;
        let failed = |error| Refusal::kernel(pid, "write to the stack of", error);
        let frames = &chosen.frames;
        let mut saved = vec![0; frames.bytes.len()];
        if request::read(pid, frames.bottom, &mut saved) < saved.len() {
            return Err(failed(Error::from_raw_os_error(libc::EFAULT)));
        }
        request::write(pid, frames.bottom, &frames.bytes).map_err(failed)?;
        Ok(Self {
            pid,
            chosen,
            code,
            saved,
            child: None,
            is_own_child: seizure.is_own_child,
        })
    }

    /// Creates the copy.
    fn make_copy(&mut self) -> Result<NewCopy, Refusal> {
        let tid = self.chosen.tid;
        let wait = self.chosen.frames.wait;
        let exit = self.chosen.frames.exit;
        if self.adopts_orphans()? {
            return Err(Refusal::Reaper { pid: self.pid });
        }
        self.check(request::set_options(tid, OPTIONS | CHILD_EVENTS))?;
        // Without an exit signal, nobody is notified of the child's exit. With a shared file
        // descriptor table, no file stays open longer, and none is flushed when the child exits.
        let flags = (libc::CLONE_FILES | libc::CLONE_PARENT_SETTID)
            .cast_unsigned()
            .into();
        let cloned = self.call_in_target(
            libc::SYS_clone,
            [flags, exit, self.chosen.frames.child_pid_address(), 0, 0, 0],
            wait,
        )?;
        let child = self.created_child(&cloned)?;
        self.child = Some(Child {
            pid: child,
            pid_in_target: cloned.value,
        });
        self.await_child(child, CHILD_EVENTS)?;
        let copy = self.second_child(child, exit)?;
        let completed = self.await_child(copy, 0).and_then(|()| {
            self.check(request::write(copy, self.chosen.frames.bottom, &self.saved))
        });
        if let Err(refusal) = completed {
            kill_and_reap(copy);
            return Err(refusal);
        }
        let all_files = [0, u32::MAX.into(), CLOSE_RANGE_UNSHARE, 0, 0, 0];
        let closing = self
            .chosen
            .regs
            .calling(&self.code, libc::SYS_close_range, all_files, exit);
        Ok(NewCopy {
            pid: copy,
            code: self.code,
            closing,
            nice: priority::nice_level(self.chosen.tid),
        })
    }

    /// Makes the first child clone itself and returns the second child's pid. The first child is
    /// left in the middle of that call.
    fn second_child(&self, child: i32, exit: u64) -> Result<i32, Refusal> {
        let flags = (libc::CLONE_FILES | libc::CLONE_VM).cast_unsigned().into();
        let args = [flags, exit, 0, 0, 0, 0];
        let regs = self
            .chosen
            .regs
            .calling(&self.code, libc::SYS_clone, args, exit);
        self.check(request::set_general(child, &regs))?;
        self.run_to_stop(child)?;
        match self.run_to_stop(child)? {
            StopPoint::NewChild(second) => Ok(second),
            StopPoint::Call => Err(self.clone_refusal(self.result(child)?)),
        }
    }

    /// Returns true if orphans become children of the target.
    fn adopts_orphans(&self) -> Result<bool, Refusal> {
        let frames = &self.chosen.frames;
        let option = libc::PR_GET_CHILD_SUBREAPER as u64;
        let args = [option, frames.result, 0, 0, 0, 0];
        self.call_in_target(libc::SYS_prctl, args, frames.restore)?;
        let mut bytes = [0; 4];
        request::read(self.pid, frames.result, &mut bytes);
        Ok(bytes != [0; 4])
    }

    /// Makes a system call in the target. Signals that arrive during the call stay pending.
    fn call_in_target(
        &self,
        number: i64,
        args: [u64; 6],
        frame: u64,
    ) -> Result<CallResult, Refusal> {
        self.start_call_in_target(number, args, frame)?;
        self.finish_call(self.chosen.tid)
    }

    /// Starts a system call in the target, and runs the thread to the start of the call.
    fn start_call_in_target(&self, number: i64, args: [u64; 6], frame: u64) -> Result<(), Refusal> {
        let tid = self.chosen.tid;
        let regs = self.chosen.regs.calling(&self.code, number, args, frame);
        // The registers are set first: once they lead to the return frames, the frames restore the
        // set of blocked signals too.
        self.check(request::set_general(tid, &regs))?;
        self.check(request::set_mask(tid, ALL_SIGNALS))?;
        self.run_to_stop(tid).map(drop)
    }

    /// Runs a thread to the end of the system call that it has started.
    fn finish_call(&self, tid: i32) -> Result<CallResult, Refusal> {
        let mut child = None;
        loop {
            if let StopPoint::NewChild(pid) = self.run_to_stop(tid)? {
                child = Some(pid);
                continue;
            }
            let value = self.result(tid)?;
            if !restart::is_restart_error(value) {
                return Ok(CallResult { value, child });
            }
            // The kernel restarts the system call.
            self.run_to_stop(tid)?;
        }
    }

    /// Resumes a thread until the start or end of a system call, or the creation of a child.
    fn run_to_stop(&self, tid: i32) -> Result<StopPoint, Refusal> {
        let mut signal = 0;
        loop {
            self.check(request::proceed_to_call(tid, signal))?;
            signal = match next_event(self.pid, tid, self.keeps_exit(tid), CALL_TIMEOUT)? {
                Event::Call => return Ok(StopPoint::Call),
                Event::NewChild => {
                    let child = self.check(request::child_of_event(tid))?;
                    // The target waits for the child.
                    priority::raise(child);
                    return Ok(StopPoint::NewChild(child));
                }
                Event::Stop | Event::Other | Event::Exec => 0,
                Event::Signal(number) => self.accept_signal(number)?,
                Event::Exited | Event::NotTraced => return Err(self.exit_refusal(tid)),
            };
        }
    }

    /// Returns the result of the system call at whose end the thread has stopped.
    fn result(&self, tid: i32) -> Result<i64, Refusal> {
        let regs = self.check(request::general(tid))?;
        Ok(regs.ok_or(Refusal::Width { pid: self.pid })?.result())
    }

    /// Returns the signal if it may be delivered. All signals are blocked, but besides SIGKILL,
    /// SIGSTOP cannot be; it stops the process, as it would anyway.
    fn accept_signal(&self, signal: i32) -> Result<i32, Refusal> {
        if signal == libc::SIGSTOP {
            return Ok(signal);
        }
        let error = Error::other(format!("signal {signal} while it made a system call"));
        Err(Refusal::kernel(self.pid, "copy", error))
    }

    /// Returns the pid of the child that a `clone` created.
    fn created_child(&self, cloned: &CallResult) -> Result<i32, Refusal> {
        match (cloned.value, cloned.child) {
            (1.., Some(child)) => Ok(child),
            (result, _) => Err(self.clone_refusal(result)),
        }
    }

    /// Returns the refusal for a `clone` with this result.
    fn clone_refusal(&self, result: i64) -> Refusal {
        let errno = i32::try_from(result.wrapping_neg()).unwrap_or(0);
        Refusal::clone(self.pid, errno)
    }

    /// Waits for a child's first stop, and sets its trace options, so that it is killed if this
    /// process dies.
    fn await_child(&self, child: i32, options: i32) -> Result<(), Refusal> {
        loop {
            match next_event(self.pid, child, false, CALL_TIMEOUT)? {
                Event::Stop => {
                    return self.check(request::set_options(child, CHILD_OPTIONS | options));
                }
                Event::Exited | Event::NotTraced => return Err(self.exit_refusal(child)),
                _ => self.check(request::proceed(child, 0))?,
            }
        }
    }

    /// Makes the target reap the first child, and restores the thread. Must be called even if the
    /// copy failed.
    fn restore(&mut self) -> Result<(), Refusal> {
        let child = self.child.take();
        let tid = self.chosen.tid;
        let frames = &self.chosen.frames;
        let reaped = match child {
            Some(child) => self.reap(&child),
            None => Ok(()),
        };
        self.leave_call()?;
        self.check(request::set_mask(tid, self.chosen.mask))?;
        self.check(request::set_general(tid, &self.chosen.regs))?;
        self.check(request::write(self.pid, frames.bottom, &self.saved))?;
        self.check(request::set_options(tid, OPTIONS))?;
        reaped
    }

    /// Kills the first child and makes the target reap it. To save time, the child dies while the
    /// target is entering its system call.
    fn reap(&self, child: &Child) -> Result<(), Refusal> {
        // The child may be dead already.
        let _ = request::kill(child.pid);
        let options = u64::from(libc::__WALL.cast_unsigned());
        let args = [child.pid_in_target.cast_unsigned(), 0, options, 0, 0, 0];
        let started = self.start_call_in_target(libc::SYS_wait4, args, self.chosen.frames.restore);
        kill_and_reap(child.pid);
        started.and_then(|()| self.finish_call(self.chosen.tid).map(drop))
    }

    /// Brings the thread from the end of a system call to a stop like its first one
    /// ([`Event::Stop`]). Only from such a stop does the kernel restart an interrupted system call.
    fn leave_call(&self) -> Result<(), Refusal> {
        let tid = self.chosen.tid;
        self.check(request::interrupt(tid))?;
        let mut signal = 0;
        loop {
            self.check(request::proceed(tid, signal))?;
            signal = match next_event(self.pid, tid, self.keeps_exit(tid), CALL_TIMEOUT)? {
                Event::Stop => return Ok(()),
                Event::Signal(number) => self.accept_signal(number).unwrap_or(0),
                Event::Exited | Event::NotTraced => return Err(Refusal::Ended { pid: self.pid }),
                _ => 0,
            };
        }
    }

    /// Returns true if the exit of this thread must be left for others to wait for.
    fn keeps_exit(&self, tid: i32) -> bool {
        self.is_own_child && tid == self.pid
    }

    /// Turns a failed request into a refusal.
    fn check<T>(&self, result: std::io::Result<T>) -> Result<T, Refusal> {
        result.map_err(|error| Refusal::kernel(self.pid, "copy", error))
    }

    /// Returns the refusal for the exit of a thread of the target, or of a child.
    fn exit_refusal(&self, tid: i32) -> Refusal {
        let pid = self.pid;
        if tid == self.chosen.tid {
            Refusal::Ended { pid }
        } else {
            Refusal::Killed { pid }
        }
    }
}

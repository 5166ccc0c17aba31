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
//! Each stop of a thread costs two context switches, one of which often wakes a processor: some 50
//! µs. So no stop is requested that is not needed, and what can wait is done in step 5.

use std::io::Error;
use std::time::Duration;

use crate::Refusal;
use crate::arch::{General, restart};
use crate::choice::{Chosen, choose};
use crate::code::Code;
use crate::frames::ALL_SIGNALS;
use crate::priority;
use crate::process;
use crate::request::{self, Event};
use crate::seizure::{OPTIONS, Seizure};
use crate::waiter::next_event;
use crate::worker;

/// Maximum time of one system call. Copying the page tables of a terabyte takes less.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
const BIRTHS: i32 =
    libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_TRACEFORK | libc::PTRACE_O_TRACEVFORK;
const OWN: i32 = libc::PTRACE_O_EXITKILL | libc::PTRACE_O_TRACESYSGOOD;
const CLOSE_RANGE_UNSHARE: u64 = 2;

/// Copy that still shares the target's open files.
pub struct Newborn {
    /// Process id.
    pub pid: i32,
    /// Instructions by which it can make system calls.
    pub code: Code,
    /// Registers with which it closes the files.
    closing: General,
    /// Priority of the thread that was copied.
    priority: i32,
}

/// Copies a stopped process.
pub fn copy(seizure: &mut Seizure) -> Result<Newborn, Refusal> {
    let pid = seizure.pid;
    // If the process was killed, that is the reason, whatever failed because of it.
    let is_ending = || process::mappings(pid).map_or(true, |mappings| mappings.is_empty());
    try_copy(seizure).map_err(|refusal| {
        if is_ending() {
            Refusal::Ended { pid }
        } else {
            refusal
        }
    })
}

fn try_copy(seizure: &mut Seizure) -> Result<Newborn, Refusal> {
    let pid = seizure.pid;
    let code = match seizure.code.filter(|code| code.holds(pid)) {
        Some(code) => code,
        None => Code::find(pid)?,
    };
    seizure.code = Some(code);
    let chosen = choose(seizure, &code)?;
    if seizure.is_first {
        return Err(Refusal::Reaper { pid });
    }
    let tid = chosen.tid;
    let mut host = Host::prepare(seizure, chosen, code)?;
    let made = host.make();
    let settled = host.settle();
    if let (Ok(copy), Err(_)) = (&made, &settled) {
        end(copy.pid);
    }
    if settled.is_err() {
        // The thread recovers by itself when the tracing thread ends.
        seizure.threads.retain(|thread| thread.tid != tid);
    }
    let copy = made?;
    settled.map(|()| copy)
}

/// Kills a traced process and waits for its end.
pub fn end(pid: i32) {
    // It may be dead already.
    let _ = request::kill(pid);
    while let Ok(event) = next_event(pid, pid, false, CALL_TIMEOUT) {
        if matches!(event, Event::End | Event::None) {
            return;
        }
        // A stop that was not consumed yet; the end comes next.
    }
}

impl Newborn {
    /// Gives the copy the target's priority and its own file descriptor table, and closes all files
    /// in it.
    pub fn complete(self) {
        priority::set(self.pid, self.priority);
        // Before Linux 5.9, it keeps sharing the target's open files.
        if worker::call(self.pid, &self.closing).is_some() {
            process::offer_to_oom_killer(self.pid);
        }
    }
}

/// Point where a thread has stopped.
enum Reached {
    /// Start or end of a system call.
    Call,
    /// Middle of a system call that has created this child.
    Birth(i32),
}

/// Result of a system call, and the child that it created.
struct Made {
    result: i64,
    child: Option<i32>,
}

/// First child: its pid in this pid namespace, and in the target's.
struct Child {
    pid: i32,
    theirs: i64,
}

/// Thread that makes the system calls.
struct Host {
    pid: i32,
    chosen: Chosen,
    code: Code,
    saved: Vec<u8>,
    child: Option<Child>,
    own_child: bool,
}

impl Host {
    /// Writes the return frames to the thread's stack.
    fn prepare(seizure: &Seizure, chosen: Chosen, code: Code) -> Result<Self, Refusal> {
        let (pid, own_child) = (seizure.pid, seizure.own_child);
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
            own_child,
        })
    }

    /// Creates the copy.
    fn make(&mut self) -> Result<Newborn, Refusal> {
        let (tid, wait, exit) = (
            self.chosen.tid,
            self.chosen.frames.wait,
            self.chosen.frames.exit,
        );
        if self.adopts_orphans()? {
            return Err(Refusal::Reaper { pid: self.pid });
        }
        self.done(request::set_options(tid, OPTIONS | BIRTHS))?;
        // No exit signal, so nobody is notified of the child's end. The same file descriptor table,
        // so no file stays open longer, and none is flushed when the child ends.
        let flags = (libc::CLONE_FILES | libc::CLONE_PARENT_SETTID)
            .cast_unsigned()
            .into();
        let made = self.host_call(
            libc::SYS_clone,
            [flags, exit, self.chosen.frames.child(), 0, 0, 0],
            wait,
        )?;
        let child = self.born(&made)?;
        self.child = Some(Child {
            pid: child,
            theirs: made.result,
        });
        self.await_birth(child, BIRTHS)?;
        let copy = self.second_child(child, exit)?;
        let complete = self
            .await_birth(copy, 0)
            .and_then(|()| self.done(request::write(copy, self.chosen.frames.bottom, &self.saved)));
        if complete.is_err() {
            end(copy);
        }
        let all = [0, u32::MAX.into(), CLOSE_RANGE_UNSHARE, 0, 0, 0];
        let closing = self
            .chosen
            .regs
            .calling(&self.code, libc::SYS_close_range, all, exit);
        complete.map(|()| Newborn {
            pid: copy,
            code: self.code,
            closing,
            priority: priority::of(self.chosen.tid),
        })
    }

    /// Makes the first child clone itself. The first child is left in the middle of that call.
    fn second_child(&self, child: i32, exit: u64) -> Result<i32, Refusal> {
        let flags = (libc::CLONE_FILES | libc::CLONE_VM).cast_unsigned().into();
        let args = [flags, exit, 0, 0, 0, 0];
        let regs = self
            .chosen
            .regs
            .calling(&self.code, libc::SYS_clone, args, exit);
        self.done(request::set_general(child, &regs))?;
        self.run(child)?;
        match self.run(child)? {
            Reached::Birth(second) => Ok(second),
            Reached::Call => Err(self.without_child(self.result(child)?)),
        }
    }

    /// Returns true if orphans become children of the target.
    fn adopts_orphans(&self) -> Result<bool, Refusal> {
        let frames = &self.chosen.frames;
        let (question, answer) = (libc::PR_GET_CHILD_SUBREAPER as u64, frames.answer);
        self.host_call(libc::SYS_prctl, [question, answer, 0, 0, 0, 0], frames.back)?;
        let mut bytes = [0; 4];
        request::read(self.pid, answer, &mut bytes);
        Ok(bytes != [0; 4])
    }

    /// Makes a system call in the target. Signals that arrive meanwhile stay pending.
    fn host_call(&self, number: i64, args: [u64; 6], frame: u64) -> Result<Made, Refusal> {
        self.enter_host_call(number, args, frame)?;
        self.finish_call(self.chosen.tid)
    }

    fn enter_host_call(&self, number: i64, args: [u64; 6], frame: u64) -> Result<(), Refusal> {
        let tid = self.chosen.tid;
        let regs = self.chosen.regs.calling(&self.code, number, args, frame);
        // In this order, since the return frames restore the blocked signals too.
        self.done(request::set_general(tid, &regs))?;
        self.done(request::set_mask(tid, ALL_SIGNALS))?;
        self.run(tid).map(drop)
    }

    /// Runs a thread to the end of the system call that it has started.
    fn finish_call(&self, tid: i32) -> Result<Made, Refusal> {
        let mut child = None;
        loop {
            if let Reached::Birth(born) = self.run(tid)? {
                child = Some(born);
                continue;
            }
            let result = self.result(tid)?;
            if !restart::is(result) {
                return Ok(Made { result, child });
            }
            // The kernel restarts the system call.
            self.run(tid)?;
        }
    }

    /// Runs a thread to the start or end of a system call, or to the creation of a child.
    fn run(&self, tid: i32) -> Result<Reached, Refusal> {
        let mut signal = 0;
        loop {
            self.done(request::proceed_to_call(tid, signal))?;
            signal = match next_event(self.pid, tid, self.keeps_end(tid), CALL_TIMEOUT)? {
                Event::Call => return Ok(Reached::Call),
                Event::Birth => {
                    let child = self.done(request::newborn(tid))?;
                    // The target waits for the child.
                    priority::raise(child);
                    return Ok(Reached::Birth(child));
                }
                Event::Stop | Event::Other | Event::Exec => 0,
                Event::Signal(number) => self.harmless(number)?,
                Event::End | Event::None => return Err(self.dead(tid)),
            };
        }
    }

    /// Returns the result of the system call at whose end the thread has stopped.
    fn result(&self, tid: i32) -> Result<i64, Refusal> {
        let regs = self.done(request::general(tid))?;
        Ok(regs.ok_or(Refusal::Width { pid: self.pid })?.result())
    }

    /// Returns the signal if it is harmless. Only stop signals cannot be blocked; the process is
    /// stopped by them, as it would be anyway.
    fn harmless(&self, signal: i32) -> Result<i32, Refusal> {
        if signal == libc::SIGSTOP {
            return Ok(signal);
        }
        let error = Error::other(format!("signal {signal} while it made a system call"));
        Err(Refusal::kernel(self.pid, "copy", error))
    }

    fn born(&self, made: &Made) -> Result<i32, Refusal> {
        match (made.result, made.child) {
            (1.., Some(child)) => Ok(child),
            (result, _) => Err(self.without_child(result)),
        }
    }

    fn without_child(&self, result: i64) -> Refusal {
        let number = i32::try_from(result.wrapping_neg()).unwrap_or(0);
        Refusal::clone(self.pid, number)
    }

    /// Waits for a child's first stop. From then on, it ends with this process.
    fn await_birth(&self, child: i32, options: i32) -> Result<(), Refusal> {
        loop {
            match next_event(self.pid, child, false, CALL_TIMEOUT)? {
                Event::Stop => return self.done(request::set_options(child, OWN | options)),
                Event::End | Event::None => return Err(self.dead(child)),
                _ => self.done(request::proceed(child, 0))?,
            }
        }
    }

    /// Restores everything. Must be called whatever happened.
    fn settle(&mut self) -> Result<(), Refusal> {
        let (tid, frames) = (self.chosen.tid, &self.chosen.frames);
        let waited = match self.child.take() {
            Some(child) => self.wait_for(&child),
            None => Ok(()),
        };
        self.leave_call()?;
        self.done(request::set_mask(tid, self.chosen.mask))?;
        self.done(request::set_general(tid, &self.chosen.regs))?;
        self.done(request::write(self.pid, frames.bottom, &self.saved))?;
        self.done(request::set_options(tid, OPTIONS))?;
        waited
    }

    /// Kills the first child and makes the target wait for it. The child dies while the target is
    /// on its way there.
    fn wait_for(&self, child: &Child) -> Result<(), Refusal> {
        // It may be dead already.
        let _ = request::kill(child.pid);
        let all = u64::from(libc::__WALL.cast_unsigned());
        let args = [child.theirs.cast_unsigned(), 0, all, 0, 0, 0];
        let entered = self.enter_host_call(libc::SYS_wait4, args, self.chosen.frames.back);
        end(child.pid);
        entered.and_then(|()| self.finish_call(self.chosen.tid).map(drop))
    }

    /// Brings the thread from the end of a system call to a stop like its first one. Only there
    /// does the kernel restart an interrupted system call.
    fn leave_call(&self) -> Result<(), Refusal> {
        let tid = self.chosen.tid;
        self.done(request::interrupt(tid))?;
        let mut signal = 0;
        loop {
            self.done(request::proceed(tid, signal))?;
            signal = match next_event(self.pid, tid, self.keeps_end(tid), CALL_TIMEOUT)? {
                Event::Stop => return Ok(()),
                Event::Signal(number) => self.harmless(number).unwrap_or(0),
                Event::End | Event::None => return Err(Refusal::Ended { pid: self.pid }),
                _ => 0,
            };
        }
    }

    /// Returns true if the end of this thread must be left for others to wait for.
    fn keeps_end(&self, tid: i32) -> bool {
        self.own_child && tid == self.pid
    }

    fn done<T>(&self, result: std::io::Result<T>) -> Result<T, Refusal> {
        result.map_err(|error| Refusal::kernel(self.pid, "copy", error))
    }

    fn dead(&self, tid: i32) -> Refusal {
        let pid = self.pid;
        if tid == self.chosen.tid {
            Refusal::Ended { pid }
        } else {
            Refusal::Killed { pid }
        }
    }
}

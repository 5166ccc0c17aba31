//! Killing a command at a certain system call; tracing a process as a debugger does.

use std::io::{Error, Result};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Fate of a command that was to be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Command was killed when it was about to make that call.
    Killed,
    /// Command had ended before, with this status, after this number of calls.
    Ended(i32, usize),
}

/// Runs a command up to its system call number `calls`, counted from its start, and kills
/// it there.
pub fn kill_at(command: &mut Command, calls: usize) -> Fate {
    kill_where(command, calls, |_| true)
}

/// Like [`kill_at`], but counts only one kind of system call: `libc::SYS_…`.
pub fn kill_at_call(command: &mut Command, call: libc::c_long, calls: usize) -> Fate {
    kill_where(command, calls, |pid| number_of_call(pid) == call as u64)
}

/// Process whose main thread is traced by this thread until this value is dropped.
pub struct Debugged {
    pid: i32,
}

impl Debugged {
    /// Traces a child, which continues to run.
    pub fn running(pid: u32) -> Self {
        let pid = pid as i32;
        ask(libc::PTRACE_SEIZE, pid, 0).expect("our own child");
        Self { pid }
    }

    /// Traces a child and stops it.
    pub fn stopped(pid: u32) -> Self {
        let debugged = Self::running(pid);
        debugged.stop().expect("our own child");
        debugged
    }

    /// Stops the process, unless it is gone.
    fn stop(&self) -> Result<()> {
        ask(libc::PTRACE_INTERRUPT, self.pid, 0)?;
        wait(self.pid);
        Ok(())
    }
}

impl Drop for Debugged {
    fn drop(&mut self) {
        // Only a stopped process can be released.
        if ask(libc::PTRACE_DETACH, self.pid, 0).is_err() && self.stop().is_ok() {
            ask(libc::PTRACE_DETACH, self.pid, 0).expect("stopped");
        }
    }
}

#[expect(clippy::zombie_processes, reason = "waited for by its pid")]
fn kill_where(command: &mut Command, calls: usize, counts: impl Fn(i32) -> bool) -> Fate {
    command.stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: one system call, which is async-signal-safe.
    unsafe { command.pre_exec(|| ask(libc::PTRACE_TRACEME, 0, 0)) };
    let child = command
        .spawn()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let pid = child.id() as i32;
    // Stopped where the program begins.
    let status = wait(pid);
    assert!(libc::WIFSTOPPED(status), "{command:?}: {status:x}");
    let options = libc::PTRACE_O_EXITKILL | libc::PTRACE_O_TRACESYSGOOD;
    ask(libc::PTRACE_SETOPTIONS, pid, options).expect("a stopped child");
    let (mut stops, mut counted) = (0, 0);
    let mut signal = 0;
    loop {
        ask(libc::PTRACE_SYSCALL, pid, signal).expect("a stopped child");
        let status = wait(pid);
        if !libc::WIFSTOPPED(status) {
            return Fate::Ended(status, counted);
        }
        let by_call = libc::WSTOPSIG(status) == libc::SIGTRAP | 0x80;
        signal = if by_call { 0 } else { libc::WSTOPSIG(status) };
        stops += usize::from(by_call);
        // Each call stops the command twice: before and after it.
        let before = by_call && stops % 2 == 1 && counts(pid);
        counted += usize::from(before);
        if before && counted == calls + 1 {
            // SAFETY: our own child, not yet waited for to its end.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            while libc::WIFSTOPPED(wait(pid)) {}
            return Fate::Killed;
        }
    }
}

fn ask(request: libc::c_uint, pid: i32, data: i32) -> Result<()> {
    let nothing = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: these requests take a number, and nothing of our memory.
    match unsafe { libc::ptrace(request, pid, nothing, libc::c_long::from(data)) } {
        -1 => Err(Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Returns the system call that a stopped child is about to make.
fn number_of_call(pid: i32) -> u64 {
    // SAFETY: plain numbers.
    let mut info: libc::ptrace_syscall_info = unsafe { std::mem::zeroed() };
    let bytes = size_of_val(&info);
    // SAFETY: the kernel fills at most the length that is passed, which is the size of `info`.
    let got = unsafe { libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, pid, bytes, &raw mut info) };
    assert!(got > 0, "{}", Error::last_os_error());
    assert_eq!(info.op, libc::PTRACE_SYSCALL_INFO_ENTRY);
    // SAFETY: before a call, that is the part which the kernel filled.
    unsafe { info.u.entry.nr }
}

fn wait(pid: i32) -> i32 {
    let mut status = 0;
    // SAFETY: a status to fill.
    let got = unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL) };
    assert_eq!(got, pid, "{}", Error::last_os_error());
    status
}

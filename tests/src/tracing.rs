//! Killing a command at a certain system call.

use std::io::{Error, Result};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// How a command went that was to be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was killed as it was about to make that call.
    Killed,
    /// It had ended before, with this status, after so many calls.
    Ended(i32, usize),
}

/// Runs a command up to its system call number `calls`, counted from its start, and kills
/// it there.
#[expect(clippy::zombie_processes, reason = "waited for by its pid")]
pub fn kill_at(command: &mut Command, calls: usize) -> Fate {
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
    let mut stops = 0;
    let mut signal = 0;
    loop {
        ask(libc::PTRACE_SYSCALL, pid, signal).expect("a stopped child");
        let status = wait(pid);
        if !libc::WIFSTOPPED(status) {
            return Fate::Ended(status, stops / 2);
        }
        let by_call = libc::WSTOPSIG(status) == libc::SIGTRAP | 0x80;
        signal = if by_call { 0 } else { libc::WSTOPSIG(status) };
        stops += usize::from(by_call);
        // Each call stops it twice: before and after.
        if by_call && stops == 2 * calls + 1 {
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

fn wait(pid: i32) -> i32 {
    let mut status = 0;
    // SAFETY: a status to fill.
    let got = unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL) };
    assert_eq!(got, pid, "{}", Error::last_os_error());
    status
}

//! Tests whether our seccomp filters allow the system calls of the agent's timers.
//!
//! A filter cannot be queried, and may kill the process for a system call. So a child of ours tries
//! the calls. The result also holds for a program that we start: it inherits our filters, and
//! filters cannot be removed, so as long as it has as many as we have, they are the same.

// Decision 49: a child tests the timers under seccomp filters.
use std::mem::zeroed;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};

/// Value of `Seccomp` in `/proc/PID/status` for a process under a filter.
const FILTERED: u32 = 2;
/// Size of the buffer for `getdents64`, in bytes.
const LIST_BYTES: usize = 4096;
/// CPU time within which the timer must fire, in nanoseconds.
const TIMER_TIMEOUT_NS: i64 = 500_000_000;

/// Returns the number of filters on this process, if there are any and all of them allow the system
/// calls of the agent's timers.
pub fn that_let_timers_pass() -> Option<u32> {
    let (mode, filters) = proc::seccomp(std::process::id() as i32);
    (mode == FILTERED && filters > 0 && passes_in_a_child()).then_some(filters)
}

fn passes_in_a_child() -> bool {
    // SAFETY: the child makes system calls and nothing else, and ends.
    match unsafe { libc::fork() } {
        -1 => false,
        0 => {
            let passed = try_all().is_some();
            // SAFETY: ends the child, with no destructor.
            unsafe { libc::_exit(i32::from(!passed)) }
        }
        child => {
            let mut status = 0;
            // SAFETY: a child of ours and a number to fill.
            let ended = unsafe { libc::waitpid(child, &raw mut status, 0) } == child;
            ended && libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
        }
    }
}

static FIRED: AtomicBool = AtomicBool::new(false);

extern "C" fn note(_: i32) {
    FIRED.store(true, Ordering::Relaxed);
}

fn done(result: impl Into<i64>) -> Option<i64> {
    let result = result.into();
    (result >= 0).then_some(result)
}

/// Makes each system call of the agent's CPU sessions (`agent/src/timers.rs`) with the same
/// arguments. Runs in a forked child of a process with threads, so nothing here allocates or locks.
fn try_all() -> Option<()> {
    // SAFETY: numbers only; no core of this process is wanted if a filter kills it.
    unsafe {
        let none: libc::rlimit = zeroed();
        libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
    }
    list_threads()?;
    ask_for_the_thread_s_memory()?;
    let signal = libc::SIGRTMIN() + 20;
    // SAFETY: zero is a value of these, and pointers are to them.
    unsafe {
        let mut action: libc::sigaction = zeroed();
        action.sa_sigaction = note as *const () as usize;
        action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
        done(libc::sigaction(signal, &raw const action, null_mut()))?;
        let mut none: libc::sigset_t = zeroed();
        libc::sigemptyset(&raw mut none);
        done(libc::sigprocmask(
            libc::SIG_SETMASK,
            &raw const none,
            null_mut(),
        ))?;
    }
    let fired = fire(signal);
    // SAFETY: nothing is read but the action, of which zero is a value.
    unsafe {
        let action: libc::sigaction = zeroed();
        done(libc::sigaction(signal, &raw const action, null_mut()))?;
    }
    fired
}

fn list_threads() -> Option<()> {
    let mut list = [0u64; LIST_BYTES / 8];
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: a terminated path, a descriptor of ours, and memory for as much as is requested.
    unsafe {
        let path = c"/proc/self/task".as_ptr();
        let list_fd = done(libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags))?;
        let into = list.as_mut_ptr();
        done(libc::syscall(
            libc::SYS_getdents64,
            list_fd,
            into,
            LIST_BYTES,
        ))?;
        done(libc::syscall(libc::SYS_close, list_fd))?;
    }
    Some(())
}

#[cfg(target_arch = "x86_64")]
fn ask_for_the_thread_s_memory() -> Option<()> {
    /// `ARCH_GET_FS` of asm/prctl.h.
    const ARCH_GET_FS: i32 = 0x1003;
    let mut base = 0u64;
    // SAFETY: a word to fill.
    done(unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_GET_FS, &raw mut base) })?;
    Some(())
}

#[cfg(not(target_arch = "x86_64"))]
fn ask_for_the_thread_s_memory() -> Option<()> {
    Some(())
}

/// Makes a timer on this thread's CPU clock fire once.
fn fire(signal: i32) -> Option<()> {
    // SAFETY: takes nothing.
    let tid = unsafe { libc::getpid() };
    let clock = (!tid) << 3 | 6;
    // SAFETY: zero is a value of these, and pointers are to them.
    unsafe {
        let mut event: libc::sigevent = zeroed();
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = signal;
        event.sigev_notify_thread_id = tid;
        let mut timer = 0;
        let (event, timer_at) = (&raw const event, &raw mut timer);
        done(libc::syscall(
            libc::SYS_timer_create,
            clock,
            event,
            timer_at,
        ))?;
        let mut soon: libc::itimerspec = zeroed();
        soon.it_value.tv_nsec = 1;
        let (soon, old) = (&raw const soon, null::<libc::itimerspec>());
        done(libc::syscall(libc::SYS_timer_settime, timer, 0, soon, old))?;
        let mut used: libc::timespec = zeroed();
        while !FIRED.load(Ordering::Relaxed) {
            done(libc::clock_gettime(clock, &raw mut used))?;
            let ns = used.tv_sec * 1_000_000_000 + used.tv_nsec;
            done(TIMER_TIMEOUT_NS - ns)?;
        }
        done(libc::syscall(libc::SYS_timer_delete, timer))?;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_tries_the_calls() {
        assert!(passes_in_a_child());
    }
}

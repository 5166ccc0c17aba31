//! Tests whether our seccomp filters allow the system calls of the agent's timers.
//!
//! A filter cannot be queried, and may kill the process for a system call. So a child of ours tries
//! the calls. The result also holds for a program that we start: it inherits our filters, and
//! filters cannot be removed, so if it has as many filters as we have, they are ours.

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
pub fn count_if_timers_allowed() -> Option<u32> {
    let (mode, filters) = proc::seccomp(std::process::id() as i32);
    (mode == FILTERED && filters > 0 && timers_pass_in_a_child()).then_some(filters)
}

fn timers_pass_in_a_child() -> bool {
    // SAFETY: the child only makes system calls and exits; it does not allocate or lock.
    match unsafe { libc::fork() } {
        -1 => false,
        0 => {
            let passed = try_all().is_some();
            // SAFETY: `_exit` ends the child without running destructors.
            unsafe { libc::_exit(i32::from(!passed)) }
        }
        child => {
            let mut status = 0;
            // SAFETY: `child` is our child, and `status` is a local to be written.
            let ended = unsafe { libc::waitpid(child, &raw mut status, 0) } == child;
            ended && libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
        }
    }
}

/// True once the timer's signal was handled.
static FIRED: AtomicBool = AtomicBool::new(false);

extern "C" fn handle(_: i32) {
    FIRED.store(true, Ordering::Relaxed);
}

/// Returns the result of a system call, or `None` if it failed.
fn succeeded(result: impl Into<i64>) -> Option<i64> {
    let result = result.into();
    (result >= 0).then_some(result)
}

/// Makes each system call of the agent's CPU sessions (`agent/src/timers.rs`) with the same
/// arguments. Runs in a forked child of a process with threads, so nothing here allocates or locks.
fn try_all() -> Option<()> {
    // SAFETY: `setrlimit` reads a valid local. It prevents a core dump if a filter kills the child.
    unsafe {
        let no_core: libc::rlimit = zeroed();
        libc::setrlimit(libc::RLIMIT_CORE, &raw const no_core);
    }
    list_threads()?;
    read_thread_pointer()?;
    let signal = libc::SIGRTMIN() + 20;
    // SAFETY: all-zero bytes are valid values of these types, and all pointers are to locals.
    unsafe {
        let mut action: libc::sigaction = zeroed();
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
        succeeded(libc::sigaction(signal, &raw const action, null_mut()))?;
        let mut empty_set: libc::sigset_t = zeroed();
        libc::sigemptyset(&raw mut empty_set);
        succeeded(libc::sigprocmask(
            libc::SIG_SETMASK,
            &raw const empty_set,
            null_mut(),
        ))?;
    }
    let fired = fire(signal);
    // SAFETY: only `action` is read, and all-zero bytes (`SIG_DFL`) are valid for it.
    unsafe {
        let action: libc::sigaction = zeroed();
        succeeded(libc::sigaction(signal, &raw const action, null_mut()))?;
    }
    fired
}

fn list_threads() -> Option<()> {
    let mut list = [0u64; LIST_BYTES / 8];
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: the path is NUL-terminated, the descriptor is ours, and `list` has `LIST_BYTES`
    // bytes.
    unsafe {
        let path = c"/proc/self/task".as_ptr();
        let list_fd = succeeded(libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags))?;
        let buffer = list.as_mut_ptr();
        succeeded(libc::syscall(
            libc::SYS_getdents64,
            list_fd,
            buffer,
            LIST_BYTES,
        ))?;
        succeeded(libc::syscall(libc::SYS_close, list_fd))?;
    }
    Some(())
}

#[cfg(target_arch = "x86_64")]
fn read_thread_pointer() -> Option<()> {
    /// `ARCH_GET_FS` of asm/prctl.h.
    const ARCH_GET_FS: i32 = 0x1003;
    let mut base = 0u64;
    // SAFETY: `base` is a local word to be written.
    succeeded(unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_GET_FS, &raw mut base) })?;
    Some(())
}

#[cfg(not(target_arch = "x86_64"))]
fn read_thread_pointer() -> Option<()> {
    Some(())
}

/// Makes a timer on this thread's CPU clock fire once.
fn fire(signal: i32) -> Option<()> {
    // SAFETY: `getpid` has no arguments and always succeeds.
    let tid = unsafe { libc::getpid() };
    // `CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED` for this thread.
    let clock = ((!tid) << 3) | 6;
    // SAFETY: all-zero bytes are valid values of these types, and all pointers are to locals.
    unsafe {
        let mut event: libc::sigevent = zeroed();
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = signal;
        event.sigev_notify_thread_id = tid;
        let mut timer = 0;
        let event = &raw const event;
        let timer_out = &raw mut timer;
        succeeded(libc::syscall(
            libc::SYS_timer_create,
            clock,
            event,
            timer_out,
        ))?;
        let mut soon: libc::itimerspec = zeroed();
        soon.it_value.tv_nsec = 1;
        let soon = &raw const soon;
        let old = null::<libc::itimerspec>();
        succeeded(libc::syscall(libc::SYS_timer_settime, timer, 0, soon, old))?;
        let mut used: libc::timespec = zeroed();
        while !FIRED.load(Ordering::Relaxed) {
            succeeded(libc::clock_gettime(clock, &raw mut used))?;
            let ns = used.tv_sec * 1_000_000_000 + used.tv_nsec;
            if ns > TIMER_TIMEOUT_NS {
                return None;
            }
        }
        succeeded(libc::syscall(libc::SYS_timer_delete, timer))?;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_calls_succeed_without_filters() {
        assert!(timers_pass_in_a_child());
    }
}

//! Starts the controller so that it is not the program's child.
//!
//! A child of this process, which shares its memory while this thread waits, starts the controller
//! and exits. So the controller becomes the child of the process that adopts orphans (init or a
//! subreaper). Neither the child nor the controller sends the program a signal when it exits. A
//! plain fork would copy the page tables of a large program, and run its fork handlers.

// Decision 36: the controller is not a child of the program.
use super::*;
use core::ffi::c_char;
use core::ptr::null;
use core::sync::atomic::AtomicI32;

/// Stack of each of the two children. `execvpe` keeps paths and arguments there.
const STACK_BYTES: usize = 64 << 10;
/// Maximum number of candidates for the controller's path.
const MAX_CANDIDATES: usize = 3;

type Path = sys::Text<4096>;

/// Running controller.
pub struct StartedController {
    /// Process ID.
    pub pid: c_int,
}

impl StartedController {
    /// Returns true unless the controller is known to have exited.
    pub fn is_alive(&self) -> bool {
        // SAFETY: signal 0 is not sent.
        unsafe { libc::kill(self.pid, 0) == 0 || sys::errno() != libc::ESRCH }
    }

    /// Waits for the controller's exit status without blocking, in case this process is the one
    /// that adopts orphans. Returns true if there is nothing left to wait for.
    pub fn reap(&self) -> bool {
        // SAFETY: no status is requested.
        unsafe { libc::waitpid(self.pid, null_mut(), libc::WNOHANG | libc::__WALL) != 0 }
    }
}

/// Task of the two children, and its outcome, in memory that they share with this process.
struct Task {
    stacks: *mut u8,
    paths: [*const c_char; MAX_CANDIDATES],
    arguments: *const *const c_char,
    environment: *const *const c_char,
    socket: c_int,
    /// Pid of the controller, or the negated `errno`; `-ECHILD` until one of them is known.
    outcome: AtomicI32,
}

/// Starts the controller with these arguments and the number of its socket. Returns an `errno` if
/// that fails.
pub fn start(arguments: &[&CStr], socket: c_int) -> Result<StartedController, c_int> {
    let mut number = sys::Text::<16>::new();
    number.push_number(socket as u64);
    let number = number.as_c_str().unwrap_or_default();
    let mut list = [null(); MAX_ARGUMENTS + 3];
    list[0] = c"mem_profiler".as_ptr();
    let all = arguments.iter().copied().chain([number]);
    for (entry, argument) in list[1..=MAX_ARGUMENTS + 1].iter_mut().zip(all) {
        *entry = argument.as_ptr();
    }
    let paths = candidates();
    let mut environment = environment::without_ours().ok_or(libc::ENOMEM)?;
    let mut stacks = Pages::new(2 * STACK_BYTES).ok_or(libc::ENOMEM)?;
    let task = Task {
        stacks: stacks.bytes().as_mut_ptr(),
        paths: [0, 1, 2].map(|n: usize| paths[n].as_c_str().unwrap_or_default().as_ptr()),
        arguments: list.as_ptr(),
        // SAFETY: the pages contain pointers, of which the last one is null.
        environment: unsafe { environment.array::<*const c_char>() }.as_ptr(),
        socket,
        outcome: AtomicI32::new(-libc::ECHILD),
    };
    match run(&task) {
        pid @ 1.. => Ok(StartedController { pid }),
        error => Err(-error),
    }
}

/// Runs the children. Blocks all signals, because a handler would run in a child, on our memory.
/// Returns the outcome.
fn run(task: &Task) -> c_int {
    // SAFETY: zeros are a valid `sigset_t`.
    let mut all: libc::sigset_t = unsafe { zeroed() };
    // SAFETY: zeros are a valid `sigset_t`.
    let mut before: libc::sigset_t = unsafe { zeroed() };
    // SAFETY: both sets are live, and the calls fill them.
    unsafe {
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
    }
    // SAFETY: nobody else uses the upper one of the two stacks. The task outlives the child, since
    // this thread waits until the child has exited.
    let child = unsafe { clone(run_first_child, task.stacks.add(2 * STACK_BYTES), task) };
    let errno = sys::errno();
    if child > 0 {
        // SAFETY: no status is requested. The child has exited, so the wait is short.
        while unsafe { libc::waitpid(child, null_mut(), libc::__WALL) } < 0
            && sys::errno() == libc::EINTR
        {}
    }
    // SAFETY: the set that was in force before.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, null_mut()) };
    if child > 0 {
        task.outcome.load(Ordering::Relaxed)
    } else {
        -errno
    }
}

/// Creates a child that shares our memory and sends no signal when it exits. This thread waits
/// until the child has exited or executes another program.
///
/// # Safety
/// `top` is the end of a stack that nobody else uses, and `task` outlives the child's use of it.
unsafe fn clone(
    entry: extern "C" fn(*mut c_void) -> c_int,
    top: *mut u8,
    task: *const Task,
) -> c_int {
    let flags = libc::CLONE_VM | libc::CLONE_VFORK;
    // SAFETY: `top` is the end of a stack that nobody else uses, and `task` outlives the child's
    // use of it.
    unsafe { libc::clone(entry, top.cast(), flags, task.cast_mut().cast()) }
}

/// Runs the first child, which starts the controller and exits.
extern "C" fn run_first_child(task: *mut c_void) -> c_int {
    // SAFETY: `run` passes its task, and waits for this child.
    let task = unsafe { &*task.cast::<Task>() };
    // SAFETY: nobody else uses the lower one of the two stacks, and this child waits until it is no
    // longer used.
    let child = unsafe { clone(run_second_child, task.stacks.add(STACK_BYTES), task) };
    // If the second child could not execute the controller, it has stored the reason.
    let has_failed = task.outcome.load(Ordering::Relaxed) != -libc::ECHILD;
    if child < 0 {
        task.outcome.store(-sys::errno(), Ordering::Relaxed);
    } else if !has_failed {
        task.outcome.store(child, Ordering::Relaxed);
    }
    // Ends only this child, without running the program's exit handlers.
    sys::end(0)
}

/// Runs the second child, which becomes the controller.
extern "C" fn run_second_child(task: *mut c_void) -> c_int {
    // SAFETY: `run` passes its task, and everybody who could change it is waiting.
    let task = unsafe { &*task.cast::<Task>() };
    // SAFETY: the system calls affect this child's own descriptors, handlers and mask. The lists
    // end in a null pointer, and their strings are terminated.
    unsafe {
        close_all_but(task.socket);
        // The controller waits for its own children, but the program may have chosen to ignore this
        // signal.
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        let mut none: libc::sigset_t = zeroed();
        libc::sigemptyset(&mut none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &none, null_mut());
        for path in task.paths {
            libc::execve(path, task.arguments, task.environment);
        }
        execvpe(c"mem_profiler".as_ptr(), task.arguments, task.environment);
    }
    task.outcome.store(-sys::errno(), Ordering::Relaxed);
    sys::end(0)
}

unsafe extern "C" {
    fn execvpe(
        file: *const c_char,
        arguments: *const *const c_char,
        environment: *const *const c_char,
    ) -> c_int;
}

/// Closes the program's descriptors except the standard ones, if the kernel can (Linux 5.9), and
/// lets the socket be inherited.
///
/// # Safety
/// The calling process is a child with its own descriptor table.
unsafe fn close_all_but(socket: c_int) {
    let close = |first: c_int, last: c_int| {
        if first <= last {
            // SAFETY: the descriptor table is this child's own.
            unsafe { sys::syscall(libc::SYS_close_range, first, last, 0) };
        }
    };
    close(3, socket - 1);
    close(socket.max(2) + 1, c_int::MAX);
    // SAFETY: the descriptor is our own.
    unsafe { libc::fcntl(socket, libc::F_SETFD, 0) };
}

/// Returns the possible paths of the controller: next to the agent, or where packages install it.
fn candidates() -> [Path; MAX_CANDIDATES] {
    let path_of_agent = library::path().to_bytes();
    let directory = match path_of_agent.iter().rposition(|byte| *byte == b'/') {
        Some(at) => &path_of_agent[..at],
        None => b".",
    };
    [
        "/mem_profiler",
        "/../bin/mem_profiler",
        "/../../bin/mem_profiler",
    ]
    .map(|rest| {
        let mut path = Path::new();
        path.push(directory);
        path.push(rest.as_bytes());
        path
    })
}

//! Starts the controller so that it is not the program's child.
//!
//! A child of ours, which shares our memory while this thread waits, starts it and ends: the
//! controller becomes the child of the process that adopts orphans (init or a subreaper). Neither
//! sends a signal when it ends. A plain fork would copy the page tables of a large program, and run
//! its fork handlers.

// Decision 36: the controller is no child of the program.
use super::*;
use core::ffi::c_char;
use core::ptr::null;
use core::sync::atomic::AtomicI32;

/// Stack of each of the two children. `execvpe` keeps paths and arguments there.
const STACK: usize = 64 << 10;
/// Maximum number of candidates for the controller's path.
const CANDIDATES: usize = 3;

type Path = sys::Text<4096>;

/// Running controller.
pub struct Started {
    /// Process ID.
    pub pid: c_int,
}

impl Started {
    /// Returns true if the controller is still running, as far as is known.
    pub fn is_alive(&self) -> bool {
        // SAFETY: signal 0 is not sent.
        unsafe { libc::kill(self.pid, 0) == 0 || sys::errno() != libc::ESRCH }
    }

    /// Takes its end note, where this process is the one that adopts orphans. Whether there is
    /// nothing left to take.
    pub fn reap(&self) -> bool {
        // SAFETY: no status is requested.
        unsafe { libc::waitpid(self.pid, null_mut(), libc::WNOHANG | libc::__WALL) != 0 }
    }
}

/// Task of the two children, and its outcome. In memory that they share with this process.
struct Order {
    stacks: *mut u8,
    paths: [*const c_char; CANDIDATES],
    arguments: *const *const c_char,
    environment: *const *const c_char,
    socket: c_int,
    /// Pid of the controller, or its error, negative.
    outcome: AtomicI32,
}

/// Starts it with these arguments and the number of its socket. The error is an `errno`.
pub fn start(arguments: &[&CStr], socket: c_int) -> Result<Started, c_int> {
    let mut number = sys::Text::<16>::new();
    number.push_number(socket as u64);
    let number = number.as_c_str().unwrap_or_default();
    let mut list = [null(); MAX_ARGUMENTS + 3];
    list[0] = c"mem_profiler".as_ptr();
    let all = arguments.iter().copied().chain([number]);
    for (place, argument) in list[1..=MAX_ARGUMENTS + 1].iter_mut().zip(all) {
        *place = argument.as_ptr();
    }
    let paths = candidates();
    let mut environment = environment::without_ours().ok_or(libc::ENOMEM)?;
    let mut stacks = Pages::new(2 * STACK).ok_or(libc::ENOMEM)?;
    let order = Order {
        stacks: stacks.bytes().as_mut_ptr(),
        paths: [0, 1, 2].map(|n: usize| paths[n].as_c_str().unwrap_or_default().as_ptr()),
        arguments: list.as_ptr(),
        // SAFETY: pages of pointers, which end in a null one.
        environment: unsafe { environment.array::<*const c_char>() }.as_ptr(),
        socket,
        outcome: AtomicI32::new(-libc::ECHILD),
    };
    match run(&order) {
        pid @ 1.. => Ok(Started { pid }),
        error => Err(-error),
    }
}

/// Makes the children do it, with no signal handler in between: it would run in a child, in our
/// memory.
fn run(order: &Order) -> c_int {
    // SAFETY: all zero is a set.
    let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { (zeroed(), zeroed()) };
    // SAFETY: sets to fill, which live.
    unsafe {
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
    }
    // SAFETY: the upper one of two stacks, used by nobody else; the order outlives the child,
    // since this thread waits until that has ended.
    let child = unsafe { clone(between, order.stacks.add(2 * STACK), order) };
    let errno = sys::errno();
    if child > 0 {
        // SAFETY: no status is requested. The child has ended, so it does not wait long.
        while unsafe { libc::waitpid(child, null_mut(), libc::__WALL) } < 0
            && sys::errno() == libc::EINTR
        {}
    }
    // SAFETY: the set that was in force before.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, null_mut()) };
    if child > 0 {
        order.outcome.load(Ordering::Relaxed)
    } else {
        -errno
    }
}

/// A child in our memory, whose end sends no signal; this thread waits until it has ended or
/// executes another program.
///
/// # Safety
/// `top` is the end of a stack that nobody else uses, and `order` outlives the child's use of it.
unsafe fn clone(
    entry: extern "C" fn(*mut c_void) -> c_int,
    top: *mut u8,
    order: *const Order,
) -> c_int {
    let flags = libc::CLONE_VM | libc::CLONE_VFORK;
    // SAFETY: the caller's.
    unsafe { libc::clone(entry, top.cast(), flags, order.cast_mut().cast()) }
}

/// Runs the first child, which starts the controller and exits.
extern "C" fn between(order: *mut c_void) -> c_int {
    // SAFETY: the order of `run`, which waits for us.
    let order = unsafe { &*order.cast::<Order>() };
    // SAFETY: the lower one of the two stacks; we wait until it is no longer used.
    let child = unsafe { clone(controller, order.stacks.add(STACK), order) };
    let failed = order.outcome.load(Ordering::Relaxed) != -libc::ECHILD;
    if child < 0 {
        order.outcome.store(-sys::errno(), Ordering::Relaxed);
    } else if !failed {
        order.outcome.store(child, Ordering::Relaxed);
    }
    // This child alone, without the program's exit handlers.
    sys::end(0)
}

/// Runs the second child, which becomes the controller.
extern "C" fn controller(order: *mut c_void) -> c_int {
    // SAFETY: the order of `run`; all who could change it wait.
    let order = unsafe { &*order.cast::<Order>() };
    // SAFETY: system calls on this child's own descriptors, handlers and mask; terminated lists
    // of terminated strings.
    unsafe {
        close_all_but(order.socket);
        // It waits for children of its own, which the program may have chosen to ignore.
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        let mut none: libc::sigset_t = zeroed();
        libc::sigemptyset(&mut none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &none, null_mut());
        for path in order.paths {
            libc::execve(path, order.arguments, order.environment);
        }
        execvpe(c"mem_profiler".as_ptr(), order.arguments, order.environment);
    }
    order.outcome.store(-sys::errno(), Ordering::Relaxed);
    sys::end(0)
}

unsafe extern "C" {
    fn execvpe(
        file: *const c_char,
        arguments: *const *const c_char,
        environment: *const *const c_char,
    ) -> c_int;
}

/// Closes the program's descriptors but the standard ones, where the kernel can (Linux 5.9), and
/// lets the socket be inherited.
///
/// # Safety
/// Called in a child with its own descriptor table.
unsafe fn close_all_but(socket: c_int) {
    let close = |first: c_int, last: c_int| {
        if first <= last {
            // SAFETY: the caller's.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
    };
    close(3, socket - 1);
    close(socket.max(2) + 1, c_int::MAX);
    // SAFETY: our own descriptor.
    unsafe { libc::fcntl(socket, libc::F_SETFD, 0) };
}

/// Returns the possible paths of the controller: beside the agent, or where packages install it.
fn candidates() -> [Path; CANDIDATES] {
    let own = library::path().to_bytes();
    let directory = match own.iter().rposition(|byte| *byte == b'/') {
        Some(at) => &own[..at],
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

//! Sends requests about this process to the controller, on behalf of a program that calls a
//! profiler's functions; never for an allocation.
//!
//! The controller is started so that it is not the program's child: the program gets no signal when
//! it exits, and has nothing to wait for. It shares no memory with the program, inherits no
//! descriptors but the standard ones and a socket, and none of the variables that load the agent or
//! start sampling. The request and its answer go over that socket. An answer begins with its
//! length: 8 bytes, little-endian.

mod running;
mod start;

pub use running::Controller;

use crate::sys::{self, Pages, Text, Uncancelled};
use crate::{environment, library, scratch, seccomp};
use core::ffi::{CStr, c_int, c_void};
use core::mem::zeroed;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU32, Ordering};
use start::StartedController;

/// Size of an answer's length field in bytes.
const LENGTH_BYTES: usize = 8;
/// Maximum size of an answer in bytes.
const MAX_ANSWER_BYTES: usize = 64 << 20;
/// Initial size of the buffer for an answer, in bytes.
const FIRST_ANSWER_BYTES: usize = 64 << 10;
/// Time between two checks that the controller is alive, in ms.
const POLL_INTERVAL_MS: c_int = 1000;
/// Maximum number of such checks.
const MAX_POLLS: u32 = 1800;

/// Maximum number of arguments of a request.
pub const MAX_ARGUMENTS: usize = 16;

/// Reason why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Failure {
    /// The program has installed a seccomp filter.
    Filtered,
    /// A system call failed.
    System(c_int),
    /// The controller exited without an answer, and has printed the reason.
    Silent,
}

/// Answer of the controller.
pub struct Answer {
    pages: Pages,
    /// Number of bytes read so far, including the length field.
    len: usize,
}

impl Answer {
    /// Returns the contents.
    pub fn bytes(&mut self) -> &mut [u8] {
        let end = self.len.max(LENGTH_BYTES);
        &mut self.pages.bytes()[LENGTH_BYTES..end]
    }

    /// Returns true if the whole answer has been read.
    fn is_whole(&mut self) -> bool {
        let mut length = [0; LENGTH_BYTES];
        length.copy_from_slice(&self.pages.bytes()[..LENGTH_BYTES]);
        let length = u64::from_le_bytes(length);
        self.len >= LENGTH_BYTES && (self.len - LENGTH_BYTES) as u64 >= length
    }
}

/// Runs the controller with these arguments, followed by the number of its socket, and sends it
/// `question`. Waits for its answer; the controller may keep running afterwards. Changes `errno`.
pub fn ask(arguments: &[&CStr], question: &[u8]) -> Result<Answer, Failure> {
    if seccomp::is_installed() {
        return Err(Failure::Filtered);
    }
    // If the program has more privileges than its caller, the caller must not choose what it
    // executes (PATH).
    // SAFETY: only reads the auxiliary vector.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        return Err(Failure::System(libc::EPERM));
    }
    let _lock = RequestLock::lock();
    let sockets = socket_pair()?;
    let started = start::start(arguments, sockets.theirs.0).map_err(Failure::System)?;
    drop(sockets.theirs);
    let allowed = Allowance::give(started.pid);
    let answer = converse(&sockets.ours, question, &started);
    drop(allowed);
    started.reap();
    answer
}

/// Runs `mem_profiler COMMAND --pid PID --action WHAT` for this process. If that fails, prints a
/// message that begins with what is missing: `missing`, as in `no heap profile`. Keeps `errno`.
pub fn run_action(command: &CStr, what: &[&CStr], missing: &str) -> Option<Answer> {
    let saved = sys::errno();
    let mut pid = Text::<16>::new();
    pid.push_number(u64::from(sys::pid()));
    let pid = pid.as_c_str().unwrap_or_default();
    let mut arguments = [c""; MAX_ARGUMENTS];
    let first = [command, c"--pid", pid, c"--action"];
    let count = first.len() + what.len();
    let all = first.iter().chain(what).chain([&c"--socket"]);
    for (place, argument) in arguments.iter_mut().zip(all) {
        *place = argument;
    }
    let answer = ask(&arguments[..=count], b"");
    if let Err(failure) = &answer {
        complain(missing, *failure);
    }
    sys::set_errno(saved);
    answer.ok()
}

/// Waits for the exit status of a controller that is about to exit, in case this process is the one
/// that adopts orphans. Changes `errno`.
fn reap(pid: c_int) {
    let started = StartedController { pid };
    for _ in 0..MAX_POLLS {
        if started.reap() {
            break;
        }
        pause(1_000_000);
    }
}

fn pause(ns: libc::c_long) {
    let pause = libc::timespec {
        tv_sec: 0,
        tv_nsec: ns,
    };
    // SAFETY: only reads a `timespec` of ours.
    unsafe { libc::nanosleep(&pause, null_mut()) };
}

/// Guard that allows the process one request at a time: two requests would interfere with each
/// other. A function that the program calls may wait for the lock; an allocation must not.
struct RequestLock {
    is_taken: bool,
    /// Keeps the thread from being cancelled while it has the lock.
    _uncancelled: Uncancelled,
}

/// Pid of the process in which a thread makes a request. A forked child does not wait for its
/// parent's request.
static ASKING_PID: AtomicU32 = AtomicU32::new(0);

/// Returns true while a thread of this process makes a request.
pub fn is_asking() -> bool {
    ASKING_PID.load(Ordering::Relaxed) == sys::pid()
}

impl RequestLock {
    fn lock() -> Self {
        let uncancelled = Uncancelled::begin();
        let pid = sys::pid();
        for _ in 0..MAX_POLLS * 1000 {
            let claim = |asking| (asking != pid).then_some(pid);
            let taken = ASKING_PID.fetch_update(Ordering::Acquire, Ordering::Relaxed, claim);
            if taken.is_ok() {
                return Self {
                    is_taken: true,
                    _uncancelled: uncancelled,
                };
            }
            pause(1_000_000);
        }
        Self {
            is_taken: false,
            _uncancelled: uncancelled,
        }
    }
}

impl Drop for RequestLock {
    fn drop(&mut self) {
        if self.is_taken {
            ASKING_PID.store(0, Ordering::Release);
        }
    }
}

/// File descriptor that is closed when it is dropped.
struct Descriptor(c_int);

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: a descriptor of our own.
        unsafe { libc::close(self.0) };
    }
}

struct Sockets {
    ours: Descriptor,
    theirs: Descriptor,
}

fn socket_pair() -> Result<Sockets, Failure> {
    let mut pair = [0; 2];
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: an array of two descriptors for the call to fill.
    if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) } != 0 {
        return Err(Failure::System(sys::errno()));
    }
    Ok(Sockets {
        ours: above_standard(Descriptor(pair[0]))?,
        theirs: above_standard(Descriptor(pair[1]))?,
    })
}

/// Returns the descriptor, or a duplicate above the standard ones if the program has closed some of
/// these: it must not become the controller's output.
fn above_standard(descriptor: Descriptor) -> Result<Descriptor, Failure> {
    if descriptor.0 > libc::STDERR_FILENO {
        return Ok(descriptor);
    }
    let lowest = libc::STDERR_FILENO + 1;
    // SAFETY: the descriptor is our own.
    match unsafe { libc::fcntl(descriptor.0, libc::F_DUPFD_CLOEXEC, lowest) } {
        -1 => Err(Failure::System(sys::errno())),
        other => Ok(Descriptor(other)),
    }
}

/// Permission for the controller to trace this process, if Yama requires one (`prctl(2)`,
/// `PR_SET_PTRACER`).
struct Allowance(bool);

impl Allowance {
    fn give(pid: c_int) -> Self {
        let mut buffer = [0; 8];
        let scope = sys::read_file(c"/proc/sys/kernel/yama/ptrace_scope", &mut buffer);
        if scope.first() != Some(&b'1') {
            return Self(false);
        }
        // SAFETY: takes a number.
        Self(
            unsafe { sys::syscall(libc::SYS_prctl, libc::PR_SET_PTRACER, pid as libc::c_ulong) }
                == 0,
        )
    }
}

impl Drop for Allowance {
    fn drop(&mut self) {
        if self.0 {
            // SAFETY: takes a number.
            unsafe { sys::syscall(libc::SYS_prctl, libc::PR_SET_PTRACER, 0) };
        }
    }
}

/// Sends a question and reads the answer.
fn converse(
    socket: &Descriptor,
    mut question: &[u8],
    started: &StartedController,
) -> Result<Answer, Failure> {
    let mut answer = Answer {
        pages: Pages::new(FIRST_ANSWER_BYTES).ok_or(Failure::System(libc::ENOMEM))?,
        len: 0,
    };
    while !question.is_empty() {
        let bytes = question.as_ptr().cast::<c_void>();
        let len = question.len();
        // SAFETY: bytes of a live buffer; a closed peer causes an error and no signal.
        match unsafe { libc::send(socket.0, bytes, len, libc::MSG_NOSIGNAL) } {
            sent @ 1.. => question = &question[sent as usize..],
            _ if sys::errno() == libc::EINTR => {}
            _ => return Err(Failure::Silent),
        }
    }
    // SAFETY: a descriptor of our own.
    unsafe { libc::shutdown(socket.0, libc::SHUT_WR) };
    let mut polls = 0;
    loop {
        if answer.is_whole() {
            return Ok(answer);
        }
        // A forked child may hold the peer's end, so that its close is not seen. Asked before the
        // wait: a controller that exits after this may have answered.
        let was_alive = started.is_alive();
        if !is_readable(socket)? {
            polls += 1;
            if !was_alive || polls > MAX_POLLS {
                return Err(Failure::Silent);
            }
            continue;
        }
        if !answer.read(socket)? {
            return Err(Failure::Silent);
        }
    }
}

/// Waits for up to [`POLL_INTERVAL_MS`]. Returns true if there is something to read.
fn is_readable(socket: &Descriptor) -> Result<bool, Failure> {
    let mut poll = libc::pollfd {
        fd: socket.0,
        events: libc::POLLIN,
        revents: 0,
    };
    scratch::clear();
    // SAFETY: one entry of ours for the call to fill.
    match unsafe { libc::poll(&mut poll, 1, POLL_INTERVAL_MS) } {
        0 => Ok(false),
        1.. => Ok(true),
        _ if sys::errno() == libc::EINTR => Ok(false),
        _ => Err(Failure::System(sys::errno())),
    }
}

impl Answer {
    /// Reads what has arrived. Returns false if no more will come.
    fn read(&mut self, socket: &Descriptor) -> Result<bool, Failure> {
        if self.len == self.pages.bytes().len() {
            let bytes = self.len * 2;
            let larger = (bytes <= MAX_ANSWER_BYTES)
                .then(|| Pages::new(bytes))
                .flatten();
            let mut larger = larger.ok_or(Failure::System(libc::ENOMEM))?;
            larger.bytes()[..self.len].copy_from_slice(self.pages.bytes());
            self.pages = larger;
        }
        let room = &mut self.pages.bytes()[self.len..];
        // SAFETY: writes to the free part of the buffer.
        match unsafe { libc::recv(socket.0, room.as_mut_ptr().cast(), room.len(), 0) } {
            0 => Ok(false),
            read @ 1.. => {
                self.len += read as usize;
                Ok(true)
            }
            _ if sys::errno() == libc::EINTR => Ok(true),
            _ => Ok(false),
        }
    }
}

/// Writes to standard error that a request failed. Called while the program calls a function of our
/// interface, never in an allocation.
pub fn complain(what: &str, failure: Failure) {
    let mut text = sys::Text::<512>::new();
    text.push(b"mem-profiler: ");
    text.push(what.as_bytes());
    match failure {
        Failure::Filtered => text.push(b": the program has a seccomp filter of its own"),
        Failure::System(errno) => {
            text.push(b": mem_profiler could not be started (error ");
            text.push_number(errno as u64);
            text.push(b")");
            if errno == libc::ENOENT {
                text.push(b": put it next to libmem_agent.so or into PATH");
            }
        }
        Failure::Silent => text.push(b": mem_profiler ended without a result"),
    }
    text.push(b"\n");
    let bytes = text.as_c_str().unwrap_or_default().to_bytes();
    // SAFETY: bytes of a live buffer.
    unsafe { libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len()) };
}

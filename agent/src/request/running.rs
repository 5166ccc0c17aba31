//! Sends a further request to a controller that was started before and is still running, over a
//! socket that it listens on. The program connects anew for each request, and keeps no descriptor
//! in between.

use super::*;
use core::mem::{offset_of, size_of};
use core::sync::atomic::{AtomicI32, AtomicU8};

/// Maximum length of the socket's name, which is in the abstract namespace.
const MAX_NAME_BYTES: usize = 100;

/// Sends a request to the controller with this pid, over the socket with this name. Waits for its
/// answer. Changes `errno`.
fn ask_running(pid: c_int, name: &[u8], question: &[u8]) -> Result<Answer, Failure> {
    if seccomp::is_installed() {
        return Err(Failure::Filtered);
    }
    let _lock = RequestLock::lock();
    let socket = connect(name)?;
    // If the controller has exited, another process may listen on this name by now.
    if peer(&socket) != Some(pid) {
        return Err(Failure::Silent);
    }
    converse(&socket, question, &StartedController { pid })
}

/// Controller that was started for this process and continues: its pid, and the name of its socket.
pub struct Controller {
    /// 0: none.
    pid: AtomicI32,
    name: [AtomicU8; MAX_NAME_BYTES],
}

impl Controller {
    /// Value before a controller was started.
    pub const fn none() -> Self {
        Self {
            pid: AtomicI32::new(0),
            name: [const { AtomicU8::new(0) }; MAX_NAME_BYTES],
        }
    }

    /// Stores pid and name from a controller's answer. Returns false if it is malformed.
    pub fn store(&self, answer: &[u8]) -> bool {
        let parsed = parse(answer).filter(|(_, name)| name.len() < MAX_NAME_BYTES);
        let Some((pid, name)) = parsed else {
            self.pid.store(0, Ordering::Relaxed);
            return false;
        };
        for (place, byte) in self.name.iter().zip(name.iter().chain([&0])) {
            place.store(*byte, Ordering::Relaxed);
        }
        self.pid.store(pid, Ordering::Relaxed);
        true
    }

    /// Sends a request and waits for the answer. Changes `errno`.
    pub fn ask(&self, question: &[u8]) -> Result<Answer, Failure> {
        let mut name = [0; MAX_NAME_BYTES];
        for (byte, place) in name.iter_mut().zip(&self.name) {
            *byte = place.load(Ordering::Relaxed);
        }
        let len = name
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(MAX_NAME_BYTES);
        ask_running(self.pid.load(Ordering::Relaxed), &name[..len], question)
    }

    /// Waits for the controller's exit like [`reap`].
    pub fn reap(&self) {
        reap(self.pid.load(Ordering::Relaxed));
    }
}

fn parse(answer: &[u8]) -> Option<(c_int, &[u8])> {
    let at = answer.iter().position(|byte| *byte == b' ')?;
    let pid = core::str::from_utf8(&answer[..at]).ok()?.parse().ok()?;
    Some((pid, answer[at + 1..].trim_ascii_end()))
}

fn connect(name: &[u8]) -> Result<Descriptor, Failure> {
    // SAFETY: zeros are a valid `sockaddr_un`.
    let mut address: libc::sockaddr_un = unsafe { zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    // A name in the abstract namespace begins with a zero byte.
    let room = &mut address.sun_path[1..];
    if name.len() > room.len() {
        return Err(Failure::Silent);
    }
    for (character, byte) in room.iter_mut().zip(name) {
        *character = *byte as libc::c_char;
    }
    let len = offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len();
    // SAFETY: the call takes numbers only.
    let socket = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return Err(Failure::System(sys::errno()));
    }
    let socket = Descriptor(socket);
    loop {
        // SAFETY: the address is a live value of this length.
        match unsafe { libc::connect(socket.0, (&raw const address).cast(), len as u32) } {
            0 => return Ok(socket),
            _ if sys::errno() == libc::EINTR => {}
            _ if sys::errno() == libc::EISCONN => return Ok(socket),
            _ => return Err(Failure::Silent),
        }
    }
}

/// Returns the pid of the process at the other end.
fn peer(socket: &Descriptor) -> Option<c_int> {
    // SAFETY: zeros are a valid `ucred`.
    let mut peer: libc::ucred = unsafe { zeroed() };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let level = libc::SOL_SOCKET;
    let option = libc::SO_PEERCRED;
    // SAFETY: a structure of this length to fill.
    let result =
        unsafe { libc::getsockopt(socket.0, level, option, (&raw mut peer).cast(), &mut len) };
    (result == 0).then_some(peer.pid)
}

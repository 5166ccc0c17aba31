//! CPU profile that a program requests of itself (`agent/src/cpu_profile.rs`), written into the
//! file that the program named. The program sends its requests (number of samples, flush, stop) to
//! a socket whose name it received. It opens a new connection for each request, because programs
//! may close descriptors that they have not opened.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use mem_agents::text;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

/// Timeout for reading a request and for writing its reply.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum length of a request.
const MAX_REQUEST_BYTES: u64 = 16;
/// Maximum number of names that are tried for the socket.
const MAX_BIND_ATTEMPTS: u32 = 16;

/// Request of a program about its own profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Query of the number of samples so far.
    Samples,
    /// Request to write the profile so far.
    Flush,
    /// Request to end the session and to write the profile.
    Stop,
}

/// Output file of a program's own profile, and the socket for its requests.
pub struct OwnProfile {
    pid: i32,
    path: PathBuf,
    file: File,
    is_regular: bool,
    socket: UnixListener,
    /// Name of the socket in the abstract namespace.
    socket_name: String,
}

impl OwnProfile {
    /// Opens the file and the socket for this process. Creates the file if it does not exist, but
    /// keeps its content until sampling has started.
    pub fn open(pid: i32, path: &Path) -> anyhow::Result<Self> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).mode(0o666);
        // `O_NONBLOCK`: opening a FIFO without a reader fails instead of blocking.
        options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
        let file = options.open(path).map_err(|error| explain(path, &error))?;
        let is_regular = file.metadata()?.is_file();
        let (socket, name) = bind()?;
        Ok(Self {
            pid,
            path: path.to_owned(),
            file,
            is_regular,
            socket,
            socket_name: name,
        })
    }

    /// Returns the pid of the process.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns the file's path as the program gave it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the socket's name in the abstract namespace.
    pub fn socket_name(&self) -> &str {
        &self.socket_name
    }

    /// Returns the socket's descriptor, which becomes readable when a request arrives.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Truncates the file, if it is a regular one.
    pub fn clear(&self) -> io::Result<()> {
        if self.is_regular {
            self.file.set_len(0)
        } else {
            Ok(())
        }
    }

    /// Returns true if the file can be written more than once.
    pub fn is_rewritable(&self) -> bool {
        self.is_regular
    }

    /// Replaces the content of the file with a profile. If that fails, the file is empty.
    pub fn write(&mut self, profile: &[u8]) -> io::Result<()> {
        if self.is_regular {
            self.file.seek(SeekFrom::Start(0))?;
        }
        let result = self.file.write_all(profile).and_then(|()| {
            if self.is_regular {
                self.file.set_len(profile.len() as u64)
            } else {
                Ok(())
            }
        });
        result.map_err(|error| {
            // The write error is reported; one while truncating adds nothing.
            let _ = self.clear();
            io::Error::other(format!("{}: {error}", text::path(&self.path)))
        })
    }

    /// Returns the next request, and the stream for its reply. Skips malformed requests and those
    /// of other processes. `None`: no request is pending.
    pub fn next_request(&self) -> Option<(Request, UnixStream)> {
        loop {
            let (stream, _) = self.socket.accept().ok()?;
            if let Ok(request) = self.read_request(&stream) {
                return Some((request, stream));
            }
        }
    }

    fn read_request(&self, stream: &UnixStream) -> anyhow::Result<Request> {
        let peer = getsockopt(stream, PeerCredentials)?;
        if peer.pid() != self.pid {
            bail!("process {} is somebody else", peer.pid());
        }
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
        stream.set_write_timeout(Some(REQUEST_TIMEOUT))?;
        let mut text = String::new();
        stream.take(MAX_REQUEST_BYTES).read_to_string(&mut text)?;
        Ok(match &text[..] {
            "samples" => Request::Samples,
            "flush" => Request::Flush,
            "stop" => Request::Stop,
            other => bail!("{other:?} is not a known request"),
        })
    }
}

/// Binds a socket in the abstract namespace under a new name. Unlike a socket in a directory, it
/// cannot be replaced by others.
fn bind() -> anyhow::Result<(UnixListener, String)> {
    let mut bound = Err(io::Error::from(io::ErrorKind::AddrInUse));
    for attempt in 0..MAX_BIND_ATTEMPTS {
        let now = shm_protocol::clock::now_ns();
        let pid = std::process::id();
        let name = format!("mem-profiler-cpu-{pid}-{now:x}-{attempt}");
        let address = SocketAddr::from_abstract_name(&name)?;
        bound = UnixListener::bind_addr(&address).map(|socket| (socket, name));
        if bound.is_ok() {
            break;
        }
    }
    let (socket, name) = bound.context("no socket for the program's questions")?;
    socket.set_nonblocking(true)?;
    Ok((socket, name))
}

fn explain(path: &Path, error: &io::Error) -> anyhow::Error {
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let path = text::path(path);
    match (error.kind(), directory) {
        (io::ErrorKind::NotFound, Some(directory)) if !directory.exists() => {
            let directory = text::path(directory);
            anyhow::anyhow!("{path}: the directory {directory} does not exist")
        }
        _ => anyhow::anyhow!("{path}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(own: &OwnProfile, question: &str) -> UnixStream {
        let address = SocketAddr::from_abstract_name(own.socket_name()).unwrap();
        let mut stream = UnixStream::connect_addr(&address).unwrap();
        stream.write_all(question.as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        stream
    }

    #[test]
    fn requests_of_other_processes_are_ignored() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("own.prof");
        let pid = std::process::id() as i32;
        let own = OwnProfile::open(pid, &path).unwrap();
        assert!(own.next_request().is_none());
        let _first = ask(&own, "nonsense");
        let _second = ask(&own, "flush");
        assert_eq!(own.next_request().unwrap().0, Request::Flush);
        let foreign = OwnProfile::open(1, &path).unwrap();
        let _third = ask(&foreign, "stop");
        assert!(foreign.next_request().is_none());
    }

    #[test]
    fn the_file_contains_only_the_last_profile() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("own.prof");
        std::fs::write(&path, "what was there before").unwrap();
        let mut own = OwnProfile::open(1, &path).unwrap();
        let read = || std::fs::read(&path).unwrap();
        assert_eq!(read(), b"what was there before");
        own.clear().unwrap();
        for profile in [&b"long profile"[..], b"short"] {
            own.write(profile).unwrap();
            assert_eq!(read(), profile);
        }
    }

    #[test]
    fn unwritable_files_are_refused_at_once() {
        for (path, why) in [
            ("/no/such/own.prof", "/no/such does not exist"),
            ("/tmp", "directory"),
        ] {
            let refused = OwnProfile::open(1, Path::new(path))
                .err()
                .unwrap()
                .to_string();
            assert!(refused.contains(why), "{refused}");
        }
        let mut full = OwnProfile::open(1, Path::new("/dev/full")).unwrap();
        let error = full.write(b"profile").unwrap_err().to_string();
        assert!(error.contains("/dev/full: No space left"), "{error}");
    }
}

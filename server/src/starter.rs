//! Starts children that end with this server, however it ends.
//!
//! The kernel sends a child its signal when the *thread* that started it ends, so one thread that
//! lasts as long as the server starts all of them.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::mpsc::{self, Sender, SyncSender};

/// OOM score of the children: when memory runs out, the kernel kills them before the server and the
/// profiled programs.
const OOM_SCORE: &[u8] = b"1000";

/// A child to start.
struct StartRequest {
    command: Command,
    answer: SyncSender<io::Result<Child>>,
}

static REQUESTS: OnceLock<Sender<StartRequest>> = OnceLock::new();

/// Starts a child, which gets `signal` when this server ends.
///
/// # Errors
/// It cannot be started.
pub fn start(mut command: Command, signal: libc::c_int) -> io::Result<Child> {
    let server = std::process::id().cast_signed();
    // SAFETY: between fork and exec, `end_with_server` makes system calls only, which is
    // async-signal-safe.
    unsafe {
        command.pre_exec(move || end_with_server(server, signal));
    }
    let (answer, receiver) = mpsc::sync_channel(1);
    let gone = || io::Error::other("the thread that starts programs is gone");
    let requests = REQUESTS.get_or_init(start_thread);
    requests
        .send(StartRequest { command, answer })
        .map_err(|_| gone())?;
    receiver.recv().map_err(|_| gone())?
}

/// Starts the thread that starts children. If that fails, each request fails.
fn start_thread() -> Sender<StartRequest> {
    let (sender, requests) = mpsc::channel::<StartRequest>();
    let work = move || {
        for StartRequest {
            mut command,
            answer,
        } in requests
        {
            // Fails if nobody waits for the child any more.
            let _ = answer.send(command.spawn());
        }
    };
    // The receiver is dropped with the thread's work.
    let _ = std::thread::Builder::new().spawn(work);
    sender
}

/// Makes the kernel end this child with the server, and before other processes when memory runs
/// out.
fn end_with_server(server: libc::pid_t, signal: libc::c_int) -> io::Result<()> {
    // SAFETY: the calls take integers, a constant path, and a buffer of the given length.
    unsafe {
        if libc::prctl(libc::PR_SET_PDEATHSIG, signal) != 0 {
            return Err(io::Error::last_os_error());
        }
        // The server may have ended before.
        if libc::getppid() != server {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let file = libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY);
        if file >= 0 {
            // If this fails, the kernel chooses by size alone.
            let _ = libc::write(file, OOM_SCORE.as_ptr().cast(), OOM_SCORE.len());
            libc::close(file);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_outlive_the_thread_that_asked_for_them() {
        let ask = || {
            let mut command = Command::new("sh");
            command.args(["-c", "cat /proc/self/oom_score_adj; read end; exit 7"]);
            command.stdin(std::process::Stdio::piped());
            command.stdout(std::process::Stdio::piped());
            start(command, libc::SIGKILL).unwrap()
        };
        let mut child = std::thread::spawn(ask).join().unwrap();
        drop(child.stdin.take());
        let mut said = String::new();
        io::Read::read_to_string(&mut child.stdout.take().unwrap(), &mut said).unwrap();
        assert_eq!(said, "1000\n");
        assert_eq!(child.wait().unwrap().code(), Some(7));
    }
}

//! Helpers for commands that an agent starts for its program: the agent passes them a socket, on
//! which it waits for the reply (`agent/src/request.rs`).

use std::fs::File;
use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use anyhow::{Context, ensure};
use mem_agents::discovery::{Agent, Discovery};
use mem_agents::select::Selection;
use nix::errno::Errno;
use nix::unistd;

/// Socket to the agent. Stays open until this process exits: if it ends without a reply, the agent
/// assumes a failure whose reason has been printed, and the program may exit.
pub type AgentSocket = ManuallyDrop<UnixStream>;

/// Opens the socket that the agent passed, by its descriptor.
pub fn socket(number: i32) -> anyhow::Result<AgentSocket> {
    let kind = format!("/proc/self/fd/{number}");
    let target = std::fs::read_link(&kind).unwrap_or_default();
    let is_socket = target.to_string_lossy().starts_with("socket:");
    ensure!(
        number > 2 && is_socket,
        "this command is for the agent: use mem_profiler leaks or mem_profiler cpu"
    );
    // SAFETY: the descriptor is an open socket, as was just checked. It was inherited, so nothing
    // else in this program owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(number) };
    Ok(ManuallyDrop::new(UnixStream::from(socket)))
}

/// Detaches from the program's terminal, signals and pipes.
pub fn detach_from_program() -> anyhow::Result<()> {
    // Fails for the leader of a process group, which this process is not.
    let _ = unistd::setsid();
    let null = File::options().read(true).write(true).open("/dev/null")?;
    for standard in [0, 1] {
        // SAFETY: `null` is open, and closing 0 and 1 is harmless: nothing has read the one or
        // written to the other.
        Errno::result(unsafe { libc::dup2(null.as_raw_fd(), standard) })?;
    }
    Ok(())
}

/// Finds the agent of the process that sent the request.
pub fn find_agent(pid: i32) -> anyhow::Result<Agent> {
    let selection = Selection {
        names: vec![pid.to_string()],
        ..Selection::default()
    };
    let chosen = selection.choose(Discovery::new().scan());
    let failure = || chosen.failures.first().cloned().unwrap_or_default();
    chosen.agents.into_iter().next().with_context(failure)
}

/// Sends a reply, preceded by its length.
pub fn reply(socket: &mut UnixStream, reply: &[u8]) -> io::Result<()> {
    socket.write_all(&(reply.len() as u64).to_le_bytes())?;
    socket.write_all(reply)
}

//! `--push`: has dumps sent to a receiver as they are written, by a `mem_server push` that runs
//! during the session.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context, ensure};
use mem_agents::dump::Written;
use mem_agents::siblings;
use mem_agents::text;

use super::server;
use crate::cli::PushArgs;
use crate::terminal;

/// Child process that sends dumps to the receiver.
pub struct Push {
    child: Child,
    /// Pipe to which file names are written; `None` once [`Self::feed`] has taken it.
    name_pipe: Option<ChildStdin>,
    /// Command to send the remaining dumps later, for display.
    later_command: String,
}

impl Push {
    /// Starts the sender, if requested. Returns once it has accepted its arguments.
    pub fn start(args: &PushArgs) -> anyhow::Result<Option<Self>> {
        let (Some(url), Some(protocol)) = (&args.push, &args.to) else {
            return Ok(None);
        };
        let program = siblings::program(server::SERVER);
        let mut command = Command::new(&program);
        command.args(["push", "--feed", "--to", protocol]);
        for label in &args.label {
            command.arg("--label").arg(label);
        }
        command
            .arg("--")
            .arg(url)
            // A process group of its own: Ctrl-C must not end the sender, since the session still
            // has its last dumps to send.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| {
            let name = text::path(&program);
            format!("{name}, which sends the dumps, cannot be run: install it beside mem_profiler")
        })?;
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            BufReader::new(out).read_line(&mut line)?;
        }
        if line != "ready\n" {
            // The sender has reported the reason itself.
            let status = child.wait()?;
            ensure!(status.success(), "nothing is sampled: nothing can be sent");
        }
        Ok(Some(Self {
            name_pipe: child.stdin.take(),
            child,
            later_command: format!("mem_profiler push --to {protocol} {url} --dumps"),
        }))
    }

    /// Returns a function to be called for each dump. Dropping it closes the pipe, which means that
    /// no more dumps follow.
    pub fn feed(&mut self) -> impl FnMut(&Written) + 'static {
        let mut name_pipe = self.name_pipe.take();
        move |dump| {
            let sent = name_pipe
                .as_mut()
                .map(|name_pipe| send_name(name_pipe, &dump.path));
            if let Some(Err(error)) = sent {
                name_pipe = None;
                terminal::warning(&format!(
                    "the process that sends the dumps has ended: {error}"
                ));
            }
        }
    }

    /// Waits until all dumps are sent. Returns false if some were not.
    pub fn finish(mut self) -> bool {
        drop(self.name_pipe.take());
        let is_sent = self.child.wait().is_ok_and(|status| status.success());
        if !is_sent {
            let command = &self.later_command;
            terminal::diagnostic(&format!("not all dumps were sent; later: {command} FILES"));
        }
        is_sent
    }
}

fn send_name(name_pipe: &mut ChildStdin, path: &Path) -> io::Result<()> {
    name_pipe.write_all(path.as_os_str().as_bytes())?;
    name_pipe.write_all(&[0])
}

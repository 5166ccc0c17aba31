//! `--push`: dumps go to a receiver as they are written, by a `mem_server push` beside the session.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context, ensure};
use mem_agents::beside;
use mem_agents::dump::Written;
use mem_agents::text;

use super::server;
use crate::cli::PushArgs;
use crate::terminal;

/// The program that sends.
pub struct Push {
    child: Child,
    names: Option<ChildStdin>,
    /// How what it could not send is sent later.
    again: String,
}

impl Push {
    /// Starts it, where that was requested. It has understood what it is to do.
    pub fn start(args: &PushArgs) -> anyhow::Result<Option<Self>> {
        let (Some(url), Some(protocol)) = (&args.push, &args.to) else {
            return Ok(None);
        };
        let program = beside::program(server::SERVER);
        let mut command = Command::new(&program);
        command.args(["push", "--feed", "--to", protocol]);
        for label in &args.label {
            command.arg("--label").arg(label);
        }
        command
            .arg("--")
            .arg(url)
            // Ctrl-C is for the session, whose last dumps are sent after it.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| {
            let shown = text::path(&program);
            format!("{shown}, which sends the dumps, cannot be run: install it beside mem_profiler")
        })?;
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            BufReader::new(out).read_line(&mut line)?;
        }
        if line != "ready\n" {
            // It has said why.
            let status = child.wait()?;
            ensure!(status.success(), "nothing is sampled: nothing can be sent");
        }
        Ok(Some(Self {
            names: child.stdin.take(),
            child,
            again: format!("mem_profiler push --to {protocol} {url} --dumps"),
        }))
    }

    /// What is to be done with each dump; dropped when there are no more.
    pub fn feed(&mut self) -> impl FnMut(&Written) + 'static {
        let mut names = self.names.take();
        move |dump| {
            let told = names.as_mut().map(|names| tell(names, &dump.path));
            if let Some(Err(error)) = told {
                names = None;
                terminal::warning(&format!(
                    "the process that sends the dumps has ended: {error}"
                ));
            }
        }
    }

    /// Waits until all is sent; whether it was.
    pub fn finish(mut self) -> bool {
        drop(self.names.take());
        let is_sent = self.child.wait().is_ok_and(|status| status.success());
        if !is_sent {
            let again = &self.again;
            terminal::diagnostic(&format!("not all dumps were sent; later: {again} FILES"));
        }
        is_sent
    }
}

fn tell(names: &mut ChildStdin, path: &Path) -> io::Result<()> {
    names.write_all(path.as_os_str().as_bytes())?;
    names.write_all(&[0])
}

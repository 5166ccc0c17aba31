//! A process under test that reads and prints lines.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;

use crate::wait::{self, WAIT_TIMEOUT};

/// Running program. Killed on drop.
pub struct Target {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    title: String,
}

impl Target {
    /// Starts a program without the agent.
    pub fn plain(program: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(arguments);
        Self::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()))
    }

    /// Starts a command whose input and output are pipes.
    pub fn start(command: &mut Command) -> Self {
        let title = format!("{:?}", command.get_program());
        let mut child = command
            .spawn()
            .unwrap_or_else(|e| panic!("{title}: cannot be started: {e}"));
        let output = child.stdout.take().expect("a piped output");
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let input = child.stdin.take();
        Self {
            child,
            input,
            lines,
            title,
        }
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Writes a line to the program's input.
    pub fn say(&mut self, line: &str) {
        let input = self.input.as_mut().expect("an open input");
        writeln!(input, "{line}").expect("the target reads");
    }

    /// Returns the next line of the program's output.
    pub fn hear(&mut self) -> String {
        self.lines
            .recv_timeout(WAIT_TIMEOUT)
            .unwrap_or_else(|error| {
                let status = self.child.try_wait();
                panic!("{}: no line from it ({error}); {status:?}", self.title)
            })
    }

    /// Waits for a line. Returns the lines before it.
    pub fn hear_until(&mut self, last: &str) -> Vec<String> {
        let mut heard = Vec::new();
        loop {
            let line = self.hear();
            if line == last {
                return heard;
            }
            heard.push(line);
        }
    }

    /// Returns the rest of the program's output, once it has exited by itself.
    pub fn finish_output(&mut self) -> String {
        self.input = None;
        let mut said = Vec::new();
        loop {
            match self.lines.recv_timeout(WAIT_TIMEOUT) {
                Ok(line) => said.push(line),
                Err(RecvTimeoutError::Disconnected) => return said.join("\n"),
                Err(RecvTimeoutError::Timeout) => {
                    panic!("{}: does not end; it said {said:?}", self.title)
                }
            }
        }
    }

    /// Sends the program a signal.
    pub fn signal(&self, signal: i32) {
        // SAFETY: our own child, not yet waited for.
        let sent = unsafe { libc::kill(self.pid() as i32, signal) };
        assert_eq!(sent, 0, "{}: cannot be signalled", self.title);
    }

    /// Kills the program and waits until it is gone.
    pub fn kill(&mut self) {
        self.signal(libc::SIGKILL);
        assert_eq!(self.ended().signal(), Some(libc::SIGKILL));
    }

    /// Closes the program's input, and waits until it exits by itself.
    pub fn finish(&mut self) -> ExitStatus {
        self.input = None;
        self.ended()
    }

    /// Closes the program's input, waits until it exits, and checks that it exited successfully.
    pub fn finish_well(mut self) {
        let status = self.finish();
        assert!(status.success(), "{}: {status}", self.title);
    }

    /// Waits until the program exits.
    pub fn ended(&mut self) -> ExitStatus {
        let child = &mut self.child;
        wait::until("the target to end", || child.try_wait().expect("a child"))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the CPU time of a process.
#[must_use]
pub fn cpu_seconds(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("a live process");
    let (_, fields) = stat.rsplit_once(") ").expect("a name in brackets");
    let times = fields.split(' ').skip(11).take(2);
    let ticks: u64 = times.map(|t| t.parse::<u64>().expect("a number")).sum();
    // SAFETY: a plain call.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    ticks as f64 / per_second as f64
}

/// Returns true if a child has ended and was not waited for yet.
#[must_use]
pub fn has_ended(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("a child");
    stat.rsplit_once(") ")
        .expect("a name in brackets")
        .1
        .starts_with('Z')
}

//! Receivers of profiles, as processes of their own, and `push` to them. The first run needs PyPI.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use profile::Profile;
use serde_json::Value;

use crate::{Outcome, Scratch, Session, Target, run, venv};

/// Returns a Python with OpenTelemetry's messages and the official gRPC server.
fn python() -> PathBuf {
    let packages = ["opentelemetry-proto==1.45.2", "grpcio==1.85.1"];
    venv::python("otlp-1.45.2-grpc", &packages)
}

/// A receiver with its log.
pub struct Receiver {
    server: Target,
    /// URL of the receiver.
    pub url: String,
    log: PathBuf,
}

impl Receiver {
    /// Starts a receiver for the protocol `kind`. `answers` are its answers to the first requests.
    pub fn start(scratch: &Scratch, kind: &str, answers: &[&str]) -> Self {
        Self::of(scratch, "receiver", &[&[kind, "LOG"], answers].concat())
    }

    /// Starts a receiver that accepts OTLP over gRPC only.
    pub fn of_grpc(scratch: &Scratch) -> Self {
        Self::of(scratch, "grpc_receiver", &[])
    }

    fn of(scratch: &Scratch, script: &str, arguments: &[&str]) -> Self {
        let log = scratch.file("received");
        let script = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("push")
            .join(script);
        let mut command = Command::new(python());
        command.arg(script);
        for argument in arguments {
            match *argument {
                "LOG" => command.arg(&log),
                argument => command.arg(argument),
            };
        }
        let mut server = Target::start(command.stdin(Stdio::null()).stdout(Stdio::piped()));
        let url = format!("http://127.0.0.1:{}", server.hear());
        Self { server, url, log }
    }

    /// Returns the requests received so far, all of which must have followed the protocol.
    pub fn received(&self) -> Vec<Value> {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        // The last line may still be being written.
        let lines = text
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n'))
            .map(|line| serde_json::from_str(line).expect("JSON"));
        let lines: Vec<Value> = lines.collect();
        for line in &lines {
            assert!(line["error"].is_null(), "{line}");
        }
        lines
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.server.kill();
    }
}

/// Returns a program with many sites, and a dump of it, sampled every 1024 bytes.
pub fn dump(scratch: &Scratch) -> (PathBuf, PathBuf, Profile) {
    let program = scratch.compile("truth.cpp", &[]);
    let mut target = Target::start(&mut scratch.preloaded(&program));
    assert_eq!(target.hear(), "ready");
    let session = Session::of(scratch, target.pid(), "1024");
    target.say("go 2000 4 1024");
    target.hear_until("done");
    let outcome = session.stop();
    target.finish_well();
    (program, outcome.dump(), outcome.profile())
}

/// Returns a command that pushes by the protocol `to`.
pub fn push(scratch: &Scratch, to: &str, url: &str) -> Command {
    let mut command = scratch.profiler();
    command.args(["push", "--to", to, url]);
    command
}

/// Runs a command that pushes a dump and exits.
pub fn push_dump(scratch: &Scratch, to: &str, url: &str, dump: &Path) -> Outcome {
    run(push(scratch, to, url).arg("--dumps").arg(dump))
}

//! `self-cpu`: the CPU profile that a program asks for by gperftools' `CPUPROFILE` or
//! `ProfilerStart`. Its agent starts this command and waits for the answer
//! (`agent/src/controller.rs`).
//!
//! The one that is to start answers with its pid once it samples, and goes on until another one is
//! to stop it, or the process has ended. Then the profile gets its name.

use std::env;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use heap_format::cpu::Mode;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{self, Pid};

use crate::cli::{CpuAction, CpuFormat, SelfCpuArgs};
use crate::cpu_session::{Run, Settings, Targets};
use crate::question;
use crate::terminal::{diagnostic, warning};
use crate::text;

/// gperftools' rate, and the most that it takes.
const RATE: u32 = 100;
const MOST_RATE: u32 = 4000;
/// Longest time to write a profile, and between looks whether it is written.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(2);

/// Does it and answers.
pub fn execute(args: SelfCpuArgs) -> anyhow::Result<ExitCode> {
    match args.action {
        CpuAction::Start => start(&args),
        CpuAction::Stop => stop(&args),
    }
}

fn start(args: &SelfCpuArgs) -> anyhow::Result<ExitCode> {
    let mut socket = question::socket(args.socket)?;
    let file = args.file.as_deref().context("a profile needs a name")?;
    leave_the_program()?;
    let own = process::id();
    let begun = Box::new(move || {
        // Where nobody hears it, the process has ended, which ends the session.
        let _ = question::answer(&mut socket, format!("{own}\n").as_bytes());
    });
    let targets = Targets {
        pids: vec![args.pid],
        failures: Vec::new(),
    };
    let outcome = Run::unseen(settings(file), begun)?.attach(targets)?;
    // What the process executed later was not asked for.
    let mut written = outcome.written.into_iter();
    let wanted = written.next();
    written.for_each(|other| drop(fs::remove_file(other.path)));
    let Some(profile) = wanted else {
        return Ok(ExitCode::FAILURE);
    };
    fs::rename(&profile.path, file).with_context(|| {
        format!(
            "{} stays at {}",
            text::path(file),
            text::path(&profile.path)
        )
    })?;
    let samples = text::count(profile.samples, "sample", "samples");
    let time = text::short_time(Duration::from_nanos(profile.ns));
    diagnostic(&format!(
        "{}: {samples} of {time} of {}; {}",
        text::path(file),
        outcome.mode,
        profile.remark
    ));
    Ok(ExitCode::SUCCESS)
}

/// The program's terminal, its signals and its pipes are not ours.
fn leave_the_program() -> anyhow::Result<()> {
    // Fails for the leader of a group, which nobody's child is not.
    let _ = unistd::setsid();
    let null = File::options().read(true).write(true).open("/dev/null")?;
    for standard in [0, 1] {
        // SAFETY: descriptors of ours; nothing in this program reads the one or has written to the
        // other.
        Errno::result(unsafe { libc::dup2(null.as_raw_fd(), standard) })?;
    }
    Ok(())
}

/// What gperftools makes of its variable: the rate that it uses where there is none, or none that is
/// a number above 0.
fn rate(value: Option<&str>) -> u32 {
    let Some(value) = value else {
        return RATE;
    };
    match value.trim().parse::<u64>() {
        Ok(rate) if rate > 0 => u32::try_from(rate).unwrap_or(MOST_RATE).min(MOST_RATE),
        _ => {
            warning(&format!(
                "CPUPROFILE_FREQUENCY={}: no number above 0, taken for {RATE}",
                text::escape(value.as_bytes())
            ));
            RATE
        }
    }
}

fn settings(file: &Path) -> Settings {
    let mut prefix = file.as_os_str().to_owned();
    prefix.push(".");
    Settings {
        length: None,
        rate: rate(env::var("CPUPROFILE_FREQUENCY").ok().as_deref()),
        prefix: PathBuf::from(prefix),
        engine: None,
        // Whatever it is set to, as in gperftools.
        mode: match env::var_os("CPUPROFILE_REALTIME").is_some() {
            true => Mode::Wall,
            false => Mode::Cpu,
        },
        format: CpuFormat::Gperftools,
    }
}

/// Ends the one that samples the process, and waits until it has written the profile.
fn stop(args: &SelfCpuArgs) -> anyhow::Result<ExitCode> {
    let mut socket = question::socket(args.socket)?;
    let sampler = args.sampler.context("which sampler?")?;
    let is_there = || is_sampler(sampler, args.pid);
    if is_there() {
        match kill(Pid::from_raw(sampler), Signal::SIGTERM) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(error) => bail!("process {sampler} cannot be stopped: {error}"),
        }
        let start = Instant::now();
        while is_there() {
            ensure!(
                start.elapsed() < PATIENCE,
                "the profile is still not written after {} s",
                PATIENCE.as_secs()
            );
            thread::sleep(LOOK);
        }
    }
    question::answer(&mut socket, b"\n")?;
    Ok(ExitCode::SUCCESS)
}

/// Whether this process runs and was started to sample that one: its number may be another's by
/// now.
fn is_sampler(sampler: i32, pid: i32) -> bool {
    let line = fs::read(format!("/proc/{sampler}/cmdline")).unwrap_or_default();
    let mut words = line.split(|byte| *byte == 0).skip(1);
    let own = pid.to_string();
    let wanted = [&b"self-cpu"[..], b"--pid", own.as_bytes()];
    // One that has ended has no command line.
    wanted.iter().all(|wanted| words.next() == Some(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_gperftools() {
        for (value, expected) in [
            (None, 100),
            (Some("250"), 250),
            (Some("9999"), 4000),
            (Some("99999999999"), 4000),
            (Some("0"), 100),
            (Some("-5"), 100),
            (Some("50x"), 100),
            (Some(""), 100),
        ] {
            assert_eq!(rate(value), expected, "{value:?}");
        }
    }
}

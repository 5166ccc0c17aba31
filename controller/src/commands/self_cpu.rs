//! `self-cpu`: the CPU profile that a program requests by gperftools' `CPUPROFILE` or
//! `ProfilerStart`. Its agent starts this command and waits for the answer
//! (`agent/src/request.rs`): our pid, and the name of the socket for the program's further
//! requests, once it is being sampled. Sampling continues until the program stops it, or ends.

use std::env;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};
use std::time::Duration;

use heap_format::cpu::Mode;
use mem_agents::text;
use nix::errno::Errno;
use nix::unistd;

use crate::cli::{CpuAction, CpuFormat, SelfCpuArgs};
use crate::cpu_session::{Asked, EngineName, Outcome, Run, Settings, Targets};
use crate::question;
use crate::terminal::{diagnostic, warning};

/// gperftools' rate, and the most that it takes.
const RATE: u32 = 100;
const MOST_RATE: u32 = 4000;

/// Does it and answers.
pub fn execute(args: SelfCpuArgs) -> anyhow::Result<ExitCode> {
    let mut socket = question::socket(args.socket)?;
    leave_the_program()?;
    let asked = Asked::open(args.pid, &args.file)?;
    let answer = format!("{} {}\n", process::id(), asked.name());
    let begun = Box::new(move || {
        // If there is no reader, the process has ended, which ends the session.
        let _ = question::answer(&mut socket, answer.as_bytes());
    });
    let targets = Targets {
        pids: vec![args.pid],
        failures: Vec::new(),
    };
    let mut outcome = Run::asked(settings(args.action), asked, begun)?.attach(targets)?;
    let code = tell(&args.file, &outcome);
    for stream in &mut outcome.waiting {
        // As above.
        let _ = question::answer(stream, b"\n");
    }
    Ok(code)
}

/// Says what the file has.
fn tell(file: &Path, outcome: &Outcome) -> ExitCode {
    let Some(profile) = outcome.written.first() else {
        return ExitCode::FAILURE;
    };
    if profile.samples > 0 {
        let samples = text::count(profile.samples, "sample", "samples");
        let time = text::short_time(Duration::from_nanos(profile.ns));
        diagnostic(&format!(
            "{}: {samples} of {time} of {}; {}",
            text::path(file),
            outcome.mode,
            profile.remark
        ));
    }
    match outcome.failures {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// The program's terminal, its signals and its pipes are not ours.
fn leave_the_program() -> anyhow::Result<()> {
    // Fails for the leader of a process group, which a detached process is not.
    let _ = unistd::setsid();
    let null = File::options().read(true).write(true).open("/dev/null")?;
    for standard in [0, 1] {
        // SAFETY: descriptors of ours; nothing in this program reads the one or has written to the
        // other.
        Errno::result(unsafe { libc::dup2(null.as_raw_fd(), standard) })?;
    }
    Ok(())
}

/// What gperftools makes of its variable: the rate that it uses where there is none, or none that
/// is a number above 0.
fn rate(value: Option<&str>) -> u32 {
    let Some(value) = value else {
        return RATE;
    };
    match value.trim_start().parse::<u64>() {
        Ok(rate) if rate > u64::from(MOST_RATE) => {
            warning(&format!(
                "CPUPROFILE_FREQUENCY={rate}: {MOST_RATE} is used instead, the most that \
                 gperftools takes"
            ));
            MOST_RATE
        }
        Ok(rate) if rate > 0 => u32::try_from(rate).unwrap_or(MOST_RATE),
        _ => {
            warning(&format!(
                "CPUPROFILE_FREQUENCY={}: not a number above 0; {RATE} is used instead",
                text::escape(value.as_bytes())
            ));
            RATE
        }
    }
}

fn settings(action: CpuAction) -> Settings {
    let is_filtered = action == CpuAction::StartFiltered;
    Settings {
        length: None,
        rate: rate(env::var("CPUPROFILE_FREQUENCY").ok().as_deref()),
        prefix: PathBuf::new(),
        // Only the process itself can ask its threads.
        engine: is_filtered.then_some(EngineName::Timers),
        // Whatever it is set to, as in gperftools.
        mode: match env::var_os("CPUPROFILE_REALTIME").is_some() && !is_filtered {
            true => Mode::Wall,
            false => Mode::Cpu,
        },
        format: CpuFormat::Gperftools,
        is_filtered,
    }
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
            (Some(" 50"), 50),
            (Some("50 "), 100),
            (Some(""), 100),
        ] {
            assert_eq!(rate(value), expected, "{value:?}");
        }
    }
}

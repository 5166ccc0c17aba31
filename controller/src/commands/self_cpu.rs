//! `self-cpu`: takes the CPU profile that a program requests by gperftools' `CPUPROFILE` or
//! `ProfilerStart`. The agent starts this command and waits for the answer
//! (`agent/src/request.rs`). The answer is sent once the program is being sampled: our pid, and
//! the name of the socket for further requests. Sampling continues until the program stops it or
//! exits.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};
use std::time::Duration;

use mem_agents::text;
use profile::cpu::Mode;

use super::reporting::Printer;
use crate::agent_request;
use crate::cli::{CpuAction, CpuFormat, SelfCpuArgs};
use crate::cpu_session::{EngineName, Outcome, OwnProfile, Run, Settings, Targets};
use crate::terminal::{diagnostic, warning};

/// Default rate of gperftools, in samples per second.
const DEFAULT_RATE: u32 = 100;
/// Maximum rate of gperftools.
const MAX_RATE: u32 = 4000;

/// Takes the profile and sends the answer.
pub fn execute(args: SelfCpuArgs) -> anyhow::Result<ExitCode> {
    let mut socket = agent_request::socket(args.socket)?;
    agent_request::detach_from_program()?;
    let request = OwnProfile::open(args.pid, &args.file)?;
    let answer = format!("{} {}\n", process::id(), request.socket_name());
    let reporter = Printer::without_progress().at_beginning(move || {
        // An error means that the process has exited, which ends the session.
        let _ = agent_request::reply(&mut socket, answer.as_bytes());
    });
    let targets = Targets {
        pids: vec![args.pid],
        failures: Vec::new(),
    };
    let run = Run::for_own_profile(settings(args.action), request, Box::new(reporter))?;
    let mut outcome = run.attach(targets)?;
    let code = print(&args.file, &outcome);
    for stream in &mut outcome.waiting {
        // An error means that the process has exited.
        let _ = agent_request::reply(stream, b"\n");
    }
    Ok(code)
}

/// Prints what the file contains.
fn print(file: &Path, outcome: &Outcome) -> ExitCode {
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
    if outcome.failures == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Parses gperftools' variable for the rate. Uses the default rate if it is missing or not a
/// positive number.
fn rate(value: Option<&str>) -> u32 {
    let Some(value) = value else {
        return DEFAULT_RATE;
    };
    match value.trim_start().parse::<u64>() {
        Ok(rate) if rate > u64::from(MAX_RATE) => {
            warning(&format!(
                "CPUPROFILE_FREQUENCY={rate}: {MAX_RATE} is used instead, the most that \
                 gperftools takes"
            ));
            MAX_RATE
        }
        Ok(rate) if rate > 0 => u32::try_from(rate).unwrap_or(MAX_RATE),
        _ => {
            warning(&format!(
                "CPUPROFILE_FREQUENCY={}: not a number above 0; {DEFAULT_RATE} is used instead",
                text::escape(value.as_bytes())
            ));
            DEFAULT_RATE
        }
    }
}

fn settings(action: CpuAction) -> Settings {
    let is_filtered = action == CpuAction::StartFiltered;
    Settings {
        length: None,
        rate: rate(env::var("CPUPROFILE_FREQUENCY").ok().as_deref()),
        prefix: PathBuf::new(),
        // Only the process itself can call its filter function.
        engine: is_filtered.then_some(EngineName::Timers),
        // Any value enables it, as in gperftools.
        mode: if env::var_os("CPUPROFILE_REALTIME").is_some() && !is_filtered {
            Mode::Wall
        } else {
            Mode::Cpu
        },
        format: CpuFormat::Gperftools,
        is_filtered,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_as_by_gperftools() {
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

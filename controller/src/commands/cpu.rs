//! `cpu`: where processes spend CPU time.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use heap_format::cpu::Mode;

use crate::cli::{self, CpuArgs, CpuCommand, CpuFormat, CpuSamplingArgs};
use crate::cpu_session::{self, Outcome, Run, Settings, Silent};
use crate::launch;
use crate::terminal::{diagnostic, result};
use crate::text;

/// Samples processes that run, or a program that it starts.
pub fn execute(args: CpuArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        Some(CpuCommand::Run { sampling, command }) => run(sampling, &command),
        None => attach(args.sampling, &args.processes),
    }
}

fn attach(sampling: CpuSamplingArgs, names: &[String]) -> anyhow::Result<ExitCode> {
    if names.is_empty() {
        cli::refuse(
            "what is to be sampled? name processes with -p PID|NAME|CGROUP, or start a program with \
             mem_profiler cpu run -- COMMAND",
        );
    }
    let targets = cpu_session::find(names);
    let outcome = Run::new(settings(sampling), false)?.attach(targets)?;
    report(&outcome, result);
    Ok(conclude(&outcome))
}

fn run(sampling: CpuSamplingArgs, command: &[OsString]) -> anyhow::Result<ExitCode> {
    cli::refuse_option(&command[0]);
    let run = Run::new(settings(sampling), true)?;
    let outcome = match run.follow(command)? {
        Ok(outcome) => outcome,
        Err(error) => {
            diagnostic(&format!("{}: {error}", text::path(&command[0])));
            return Ok(launch::start_failure(&error));
        }
    };
    // Standard output is the program's.
    report(&outcome, diagnostic);
    Ok(match outcome.status {
        Some(status) if !status.success() => launch::end_like(status),
        // A short program may have no sample: that is no failure of it, nor of ours.
        _ if outcome.failures == 0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

fn settings(sampling: CpuSamplingArgs) -> Settings {
    Settings {
        length: sampling.seconds,
        rate: sampling.frequency,
        prefix: sampling.output,
        is_filtered: false,
        engine: sampling.engine,
        format: sampling.format,
        mode: match (sampling.wall, sampling.offcpu) {
            (_, true) => Mode::OffCpu,
            (true, _) => Mode::Wall,
            _ => Mode::Cpu,
        },
    }
}

/// Names the files, and says what comes next.
fn report(outcome: &Outcome, say: fn(&str)) {
    name_files(outcome, say);
    let largest = outcome.written.iter().max_by_key(|written| written.ns);
    if let Some(largest) = largest {
        let path = text::shell_word(&largest.path);
        diagnostic(&match outcome.format {
            CpuFormat::Cpu => format!(
                "next: mem_parser {path} (a table; --flame -o flame.svg: a flame graph; --html: a \
                 page)"
            ),
            // The format has no build ids, by which the files would be known.
            CpuFormat::Gperftools => {
                format!("next: google-pprof BINARY {path}, or mem_parser -p BINARY -f {path}")
            }
        });
    }
}

/// Names the files, and says what should be known of them.
pub fn name_files(outcome: &Outcome, say: fn(&str)) {
    for written in &outcome.written {
        let time = text::short_time(Duration::from_nanos(written.ns));
        let mode = outcome.mode;
        let path = text::path(&written.path);
        let samples = text::count(written.samples, "sample", "samples");
        let title = &written.title;
        say(&path);
        diagnostic(&format!(
            "{title}: {samples} of {time} of {mode}; {}",
            written.remark
        ));
    }
    if let Some(silent) = silence(outcome) {
        diagnostic(&silent);
    }
}

/// Says of all that has no sample, in a line however many there are.
fn silence(outcome: &Outcome) -> Option<String> {
    let Silent { processes, cpu_ns } = outcome.silent;
    // Where only waiting is sampled, this is not the time that has no sample.
    let time = match cpu_ns {
        ns if ns > 0 && outcome.mode != Mode::OffCpu => {
            let time = text::short_time(Duration::from_nanos(ns));
            format!(" ({time} of CPU time in all)")
        }
        _ => String::new(),
    };
    let which = match processes {
        0 => String::new(),
        n => {
            let processes = text::count(n, "process", "processes");
            format!("{processes} without a sample{time}")
        }
    };
    let advice = "sample more often (-F) to see what is short";
    match (
        processes,
        outcome.written.is_empty() && outcome.failures == 0,
    ) {
        (0, true) => Some(format!("nothing was sampled: {advice}")),
        (0, false) => None,
        (_, true) => Some(format!("nothing was sampled: {which}; {advice}")),
        (_, false) => Some(format!("{which}; {advice}")),
    }
}

fn conclude(outcome: &Outcome) -> ExitCode {
    match outcome.failures == 0 && !outcome.written.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(processes: u64, cpu_ns: u64, failures: usize) -> Option<String> {
        silence(&Outcome {
            silent: Silent { processes, cpu_ns },
            failures,
            ..Outcome::default()
        })
    }

    #[test]
    fn what_has_no_sample_is_one_line() {
        let advice = "sample more often (-F) to see what is short";
        assert_eq!(
            said(1, 0, 0),
            Some(format!(
                "nothing was sampled: 1 process without a sample; {advice}"
            ))
        );
        assert_eq!(
            said(50, 2_000_000_000, 1),
            Some(format!(
                "50 processes without a sample (2.00 s of CPU time in all); {advice}"
            ))
        );
        assert_eq!(
            said(0, 0, 0),
            Some(format!("nothing was sampled: {advice}"))
        );
        assert_eq!(said(0, 0, 1), None);
    }
}

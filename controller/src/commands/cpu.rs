//! `cpu`: samples where processes spend CPU time.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use mem_agents::text;
use profile::cpu::Mode;

use super::files;
use super::reporting::Printer;
use crate::cli::{self, CpuArgs, CpuCommand, CpuFormat, CpuSamplingArgs, PageArgs};
use crate::cpu_session::{self, Outcome, Run, Settings, Unsampled};
use crate::launch;
use crate::survivors;
use crate::terminal::{self, diagnostic, note, result};

/// Samples running processes, or a program that it starts.
pub fn execute(args: CpuArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        Some(CpuCommand::Run { sampling, program }) => run(sampling, &program.command),
        None => attach(args.sampling, &args.processes),
    }
}

fn attach(sampling: CpuSamplingArgs, names: &[String]) -> anyhow::Result<ExitCode> {
    if names.is_empty() {
        cli::refuse(
            "no process was named: use -p PID|NAME|CGROUP, or start a program with \
             mem_profiler cpu run -- COMMAND",
        );
    }
    let targets = cpu_session::find(names);
    let (quiet, page) = (sampling.quiet.quiet, sampling.page);
    terminal::set_quiet(quiet);
    let reporter = Box::new(Printer::attached().quiet(quiet));
    let outcome = Run::new(settings(sampling), false, reporter)?.attach(targets)?;
    if report(&outcome, page, result) {
        Ok(conclude(&outcome))
    } else {
        Ok(ExitCode::FAILURE)
    }
}

fn run(sampling: CpuSamplingArgs, command: &[OsString]) -> anyhow::Result<ExitCode> {
    cli::refuse_option(&["cpu", "run"], &command[0]);
    let (quiet, page) = (sampling.quiet.quiet, sampling.page);
    terminal::set_quiet(quiet);
    let reporter = Box::new(Printer::following().quiet(quiet));
    let run = Run::new(settings(sampling), true, reporter)?;
    let outcome = match run.follow(command)? {
        Ok(outcome) => outcome,
        Err(error) => {
            diagnostic(&format!("{}: {error}", text::path(&command[0])));
            return Ok(launch::start_failure_code(&error));
        }
    };
    // Standard output belongs to the program.
    let succeeded = report(&outcome, page, note);
    survivors::report(&outcome.survivors, "mem_profiler cpu");
    files::print();
    Ok(match outcome.status {
        Some(status) if !status.success() => launch::exit_like(status),
        _ if !succeeded => ExitCode::FAILURE,
        _ => conclude(&outcome),
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

/// Prints the file names with `print`, and makes the requested pages or prints the next command.
/// Returns false if something failed.
fn report(outcome: &Outcome, page_args: PageArgs, print: fn(&str)) -> bool {
    print_files(outcome, print);
    if page_args.html || page_args.open {
        return super::make_pages(
            outcome.written.iter().map(|written| &*written.path),
            page_args,
        );
    }
    let largest = outcome.written.iter().max_by_key(|written| written.ns);
    if let Some(largest) = largest {
        let path = text::shell_word(&largest.path);
        // Without a build id, `mem_parser` uses a program file only if it is named explicitly.
        let program = largest.program.as_ref();
        let program = program.map_or(String::new(), |path| {
            format!("-p {} ", text::shell_word(path))
        });
        note(&match outcome.format {
            CpuFormat::Cpu => format!(
                "next: mem_parser {program}{path} (a table; --flame -o flame.svg: a flame graph; --html: a \
                 page)"
            ),
            // The gperftools format has no build ids, so `mem_parser` cannot identify files itself.
            CpuFormat::Gperftools => {
                format!("next: google-pprof BINARY {path}, or mem_parser -p BINARY -f {path}")
            }
        });
    }
    true
}

/// Prints the file names with `print`, each followed by a remark.
pub fn print_files(outcome: &Outcome, print: fn(&str)) {
    for written in &outcome.written {
        let time = text::short_time(Duration::from_nanos(written.ns));
        let mode = outcome.mode;
        let path = text::path(&written.path);
        let samples = text::count(written.samples, "sample", "samples");
        let title = &written.title;
        print(&path);
        files::add_cpu(written);
        note(&format!(
            "{title}: {samples} of {time} of {mode}; {}",
            written.remark
        ));
    }
    if let Some(summary) = summary_of_unsampled(outcome) {
        diagnostic(&summary);
    }
}

/// Returns a line about the processes that have no samples, and about CPU time of processes that
/// were not seen. Returns `None` if there are none.
fn summary_of_unsampled(outcome: &Outcome) -> Option<String> {
    let Unsampled {
        processes,
        cpu_ns,
        unseen_ns,
    } = outcome.unsampled;
    let short = |ns| text::short_time(Duration::from_nanos(ns));
    let mut parts = Vec::new();
    // In off-CPU mode, CPU time has no samples by definition.
    let is_reported = |ns| ns > 0 && outcome.mode != Mode::OffCpu;
    if processes > 0 {
        let time = if is_reported(cpu_ns) {
            format!(" ({} of CPU time in all)", short(cpu_ns))
        } else {
            String::new()
        };
        let processes = text::count(processes, "process", "processes");
        parts.push(format!("{processes} without a sample{time}"));
    }
    if is_reported(unseen_ns) && unseen_ns > cpu_ns / 2 {
        parts.push(format!(
            "{} of CPU time went to processes that ended before they were seen",
            short(unseen_ns)
        ));
    }
    let nothing_sampled = outcome.written.is_empty() && outcome.failures == 0 && outcome.idle == 0;
    if parts.is_empty() && !nothing_sampled {
        return None;
    }
    parts.push("sample more often (-F) to see short-lived processes".to_owned());
    let nothing = if nothing_sampled {
        "nothing was sampled: "
    } else {
        ""
    };
    Some(format!("{nothing}{}", parts.join("; ")))
}

fn conclude(outcome: &Outcome) -> ExitCode {
    if outcome.failures == 0 && !outcome.written.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary_of(processes: u64, cpu_ns: u64, failures: usize) -> Option<String> {
        summary_of_unsampled(&Outcome {
            unsampled: Unsampled {
                processes,
                cpu_ns,
                unseen_ns: cpu_ns / 4 * 3,
            },
            failures,
            ..Outcome::default()
        })
    }

    #[test]
    fn unsampled_processes_are_summarised_in_one_line() {
        let advice = "sample more often (-F) to see short-lived processes";
        assert_eq!(
            summary_of(1, 0, 0),
            Some(format!(
                "nothing was sampled: 1 process without a sample; {advice}"
            ))
        );
        assert_eq!(
            summary_of(50, 2_000_000_000, 1),
            Some(format!(
                "50 processes without a sample (2.00 s of CPU time in all); 1.50 s of CPU time went to \
                 processes that ended before they were seen; {advice}"
            ))
        );
        assert_eq!(
            summary_of(0, 0, 0),
            Some(format!("nothing was sampled: {advice}"))
        );
        assert_eq!(summary_of(0, 0, 1), None);
    }
}

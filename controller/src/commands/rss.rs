//! `rss`: samples which stacks touch memory that stays resident.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use mem_agents::text;

use super::files;
use super::reporting::Printer;
use crate::cli::{self, PageArgs, RssArgs, RssCommand, RssSamplingArgs};
use crate::cpu_session;
use crate::launch;
use crate::rss_session::{Outcome, Run, Settings};
use crate::terminal::{self, diagnostic, note};

/// Samples running processes, or a program that it starts, and writes their profiles.
pub fn execute(args: RssArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        Some(RssCommand::Run { sampling, program }) => run(sampling, &program.command),
        None => attach(args.sampling, &args.processes),
    }
}

fn attach(sampling: RssSamplingArgs, names: &[String]) -> anyhow::Result<ExitCode> {
    if names.is_empty() {
        cli::refuse(
            "no process was named: use -p PID|NAME|CGROUP, or start a program with \
             mem_profiler rss run -- COMMAND",
        );
    }
    let targets = cpu_session::find(names);
    let (quiet, page) = (sampling.quiet.quiet, sampling.page);
    terminal::set_quiet(quiet);
    let reporter = Box::new(Printer::attached().quiet(quiet));
    let outcome = Run::new(settings(sampling), false, reporter)?.attach(targets)?;
    let pages_ok = follow_up(&outcome, page);
    Ok(conclude(&outcome, pages_ok))
}

fn run(sampling: RssSamplingArgs, command: &[OsString]) -> anyhow::Result<ExitCode> {
    cli::refuse_option(&["rss", "run"], &command[0]);
    let (quiet, page) = (sampling.quiet.quiet, sampling.page);
    terminal::set_quiet(quiet);
    let reporter = Box::new(Printer::following().quiet(quiet));
    let outcome = match Run::new(settings(sampling), true, reporter)?.follow(command)? {
        Ok(outcome) => outcome,
        Err(error) => {
            diagnostic(&format!("{}: {error}", text::path(&command[0])));
            return Ok(launch::start_failure_code(&error));
        }
    };
    let pages_ok = follow_up(&outcome, page);
    files::print();
    Ok(match outcome.status {
        Some(status) if !status.success() => launch::exit_like(status),
        _ => conclude(&outcome, pages_ok),
    })
}

fn settings(sampling: RssSamplingArgs) -> Settings {
    Settings {
        length: sampling.seconds,
        every: sampling.every,
        rate: sampling.frequency,
        prefix: sampling.output,
    }
}

/// Makes the requested pages, each of a process's last profile, or prints how to read the largest
/// profile. Returns false if a page failed.
fn follow_up(outcome: &Outcome, page: PageArgs) -> bool {
    if page.html || page.open {
        let last: BTreeMap<i32, &Path> = outcome
            .written
            .iter()
            .map(|written| (written.pid, &*written.path))
            .collect();
        return super::make_pages(last.into_values(), page);
    }
    let largest = outcome
        .written
        .iter()
        .max_by_key(|written| written.resident);
    if let Some(largest) = largest {
        let path = text::shell_word(&largest.path);
        note(&format!(
            "next: mem_parser {path} (a table; --flame -o flame.svg: a flame graph; --tagfocus kind=heap: one kind of \
             mapping; --html: a page)"
        ));
    }
    true
}

fn conclude(outcome: &Outcome, pages_ok: bool) -> ExitCode {
    if pages_ok && outcome.failures == 0 && !outcome.written.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

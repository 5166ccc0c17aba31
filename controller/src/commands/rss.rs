//! `rss`: samples which stacks touch memory that stays resident.

use std::process::ExitCode;

use mem_agents::text;

use super::files;
use super::reporting::Printer;
use crate::cli::RssArgs;
use crate::cpu_session;
use crate::rss_session::{Run, Settings, Written};
use crate::terminal::{self, note, result};

/// Samples running processes, and writes their profiles.
pub fn execute(args: RssArgs) -> anyhow::Result<ExitCode> {
    let targets = cpu_session::find(&args.processes);
    terminal::set_quiet(args.quiet.quiet);
    let reporter = Box::new(Printer::attached().quiet(args.quiet.quiet));
    let settings = Settings {
        length: args.seconds,
        rate: args.frequency,
        prefix: args.output,
    };
    let outcome = Run::new(settings, reporter)?.attach(targets)?;
    outcome.written.iter().for_each(print_file);
    let files = outcome.written.iter().map(|written| &*written.path);
    let page = args.page;
    let pages_ok = if page.html || page.open {
        super::make_pages(files, page)
    } else {
        let largest = outcome
            .written
            .iter()
            .max_by_key(|written| written.resident);
        largest.into_iter().for_each(print_next_command);
        true
    };
    Ok(
        if pages_ok && outcome.failures == 0 && !outcome.written.is_empty() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        },
    )
}

/// Prints the name of a file, followed by a remark.
fn print_file(written: &Written) {
    result(&text::path(&written.path));
    files::add_rss(written);
    note(&format!("{}: {}", written.title, written.remark));
}

/// Prints how to read a profile.
fn print_next_command(written: &Written) {
    let path = text::shell_word(&written.path);
    note(&format!(
        "next: mem_parser {path} (a table; --flame -o flame.svg: a flame graph; --tagfocus kind=heap: one kind of \
         mapping; --html: a page)"
    ));
}

//! Commands, one file each. Each returns an exit code. Output is printed only here, through
//! `terminal`.

mod both;
mod clean;
mod cpu;
mod docs;
mod dump;
mod files;
mod go;
mod leaks;
mod list;
mod overview;
mod push;
mod recover;
mod reporting;
mod rss;
mod run;
mod self_check;
mod self_cpu;
mod self_profile;
mod server;
mod session;
mod top;
mod why;
mod why_group;

use std::path::Path;
use std::process::ExitCode;

use mem_agents::descriptors;
use mem_agents::discovery::Agent;
use mem_agents::dump::Written;
use mem_agents::governor;
use mem_agents::process;
use mem_agents::segment::default_directory;
use mem_agents::stdout;

use crate::cli::{Cli, Command, PageArgs};
use crate::page;
use crate::session::Outcome;
use crate::terminal;
use dump::AfterDump;
use shm_protocol::segment::DIR_VARIABLE;

/// Executes a command and reports its failure. Without arguments on a terminal, announces what will
/// be sampled, or shows the available commands if there is nothing to sample.
pub fn execute(cli: Cli) -> ExitCode {
    let shows_overview = Cli::is_bare() && stdout::is_watched() && !overview::announce();
    let result = if shows_overview {
        overview::execute()
    } else {
        dispatch(cli)
    };
    let code = result.unwrap_or_else(|error| {
        terminal::diagnostic(&format!("{error:#}"));
        ExitCode::FAILURE
    });
    files::print();
    match stdout::loss() {
        Some(error) => {
            terminal::diagnostic(&format!("the results could not be written: {error}"));
            // The exit code of a started program is not changed.
            if code == ExitCode::SUCCESS {
                ExitCode::FAILURE
            } else {
                code
            }
        }
        None => code,
    }
}

/// Warns if `MEM_PROFILER_DIR` names a directory that does not exist: no agents would be found
/// there.
fn warn_of_missing_directory() {
    let directory = default_directory();
    if std::env::var_os(DIR_VARIABLE).is_some() && !directory.is_dir() {
        terminal::warning(&format!(
            "{}: there is no such directory, but MEM_PROFILER_DIR names it: agents that use \
             another one are not found",
            mem_agents::text::path(&directory)
        ));
    }
}

fn dispatch(cli: Cli) -> anyhow::Result<ExitCode> {
    let is_about_processes = !matches!(
        cli.command,
        Some(Command::Completions { .. } | Command::Man { .. })
    );
    // Without `/proc`, live processes would be mistaken for dead ones.
    anyhow::ensure!(
        !is_about_processes || proc::is_mounted(),
        "/proc is not mounted, so processes cannot be found: mount it (mount -t proc proc /proc), \
         then try again"
    );
    let is_started_by_agent = matches!(
        cli.command,
        Some(Command::SelfCheck(_) | Command::SelfCpu(_) | Command::SelfProfile(_))
    );
    if is_about_processes && !is_started_by_agent {
        if let Some(shortage) = descriptors::shortage_at_start() {
            anyhow::bail!(shortage);
        }
        warn_of_missing_directory();
    }
    if cli.names_files_as_json() {
        files::collect();
    }
    match cli.command {
        None => session::execute(cli.session),
        Some(Command::Run(args)) => run::execute(args),
        Some(Command::List(args)) => list::execute(args),
        Some(Command::Dump(args)) => dump::execute(args, AfterDump::Continue),
        Some(Command::Stop(args)) => dump::execute(args, AfterDump::Stop),
        Some(Command::Recover(args)) => recover::execute(args),
        Some(Command::Clean(args)) => Ok(clean::execute(args)),
        Some(Command::Leaks(args)) => leaks::execute(args),
        Some(Command::SelfCheck(args)) => self_check::execute(args),
        Some(Command::SelfCpu(args)) => self_cpu::execute(args),
        Some(Command::SelfProfile(args)) => self_profile::execute(args),
        Some(Command::Why(args)) => why::execute(args),
        Some(Command::Cpu(args)) => cpu::execute(args),
        Some(Command::Rss(args)) => rss::execute(args),
        Some(Command::Go(args)) => go::execute(args),
        Some(Command::Both(args)) => both::execute(args),
        Some(Command::Top(args)) => top::execute(args),
        Some(Command::Serve { args }) => server::execute("serve", &args),
        Some(Command::Push { args }) => server::execute("push", &args),
        Some(Command::Completions { shell }) => Ok(docs::completions(shell)),
        Some(Command::Man { directory }) => docs::man(&directory),
    }
}

/// Makes the requested pages with `mem_parser`, or prints how to read the largest dump. `print`
/// prints the path of a page. Returns false if something failed.
fn follow_up(written: &[Written], page_args: PageArgs, print: fn(&str)) -> bool {
    let last_dumps = written.iter().filter(|dump| dump.is_last);
    let Some(largest) = largest_dump(written) else {
        return true;
    };
    if !page_args.html && !page_args.open {
        let path = mem_agents::text::shell_word(&largest.path);
        terminal::note(&if largest.title.starts_with("memfd:") {
            format!(
                "next: mem_parser -p PROGRAM {path} (PROGRAM is the file that was copied into \
                 memory; while the process runs, it is found without -p)"
            )
        } else if largest.is_freed() {
            format!(
                "next: mem_parser --alloc_space {path} (nearly everything was freed: a table of \
                 what was allocated; --timeline: the peak; --html: a page)"
            )
        } else {
            format!(
                "next: mem_parser {path} (a table; --leaks: suspects and their lines; --html: a \
                 page)"
            )
        });
        return true;
    }
    let mut all_ok = true;
    for dump in last_dumps {
        match page::make(&dump.path) {
            Ok(page) => {
                files::add_page(&page, &dump.path);
                print(&mem_agents::text::path(&page));
                if page_args.open && dump.path == largest.path {
                    all_ok &= report_failure(page::open(&page));
                }
            }
            // The remaining pages would fail for the same reason.
            Err(error) => return report_failure(Err(error)),
        }
    }
    all_ok
}

/// Returns one of the processes' last dumps: the one with the most live bytes or, if these are less
/// than a hundredth of the most allocated bytes, the one with the most allocated bytes.
fn largest_dump(written: &[Written]) -> Option<&Written> {
    let last_dumps = || written.iter().filter(|dump| dump.is_last);
    let with_live = last_dumps().filter(|dump| !dump.is_freed());
    let most_live = with_live.max_by(|a, b| a.live_bytes.total_cmp(&b.live_bytes));
    let most_allocated = last_dumps().max_by(|a, b| a.alloc_bytes.total_cmp(&b.alloc_bytes));
    most_live
        .filter(|dump| {
            most_allocated.is_none_or(|most| dump.live_bytes >= most.alloc_bytes / 100.0)
        })
        .or(most_allocated)
}

/// Makes the requested pages of all files that a command has written. Returns false if
/// something failed.
fn make_pages<'a>(files: impl Iterator<Item = &'a Path>, page_args: PageArgs) -> bool {
    if !page_args.html && !page_args.open {
        return true;
    }
    // If one page fails, the others would fail for the same reason.
    let result = files.into_iter().try_for_each(|file| {
        let page = page::make(file)?;
        files::add_page(&page, file);
        terminal::result(&mem_agents::text::path(&page));
        if page_args.open {
            page::open(&page)
        } else {
            Ok(())
        }
    });
    report_failure(result)
}

/// Warns about stopped processes (`SIGSTOP`), which do not react to requests until they continue.
fn warn_of_stopped(agents: &[Agent]) {
    for agent in agents {
        if let Some(hint) = process::stopped_hint(agent.pid) {
            terminal::warning(&format!("{}: {hint}", agent.title()));
        }
    }
}

fn report_failure(result: anyhow::Result<()>) -> bool {
    if let Err(error) = &result {
        terminal::diagnostic(&format!("{error:#}"));
    }
    result.is_ok()
}

/// Prints the name of a dump and records it.
fn report_dump(written: Written, outcome: &mut Outcome) {
    written
        .warnings
        .iter()
        .for_each(|line| terminal::warning(line));
    terminal::result(&written.line());
    files::add_dump(&written);
    outcome.written.push(written);
}

/// Returns the last line of a command that has written dumps.
fn success_message(outcome: &Outcome) -> &'static str {
    match outcome.cut_short {
        0 => "succeeded in collecting memory data!",
        _ => "memory data was collected, but not for the whole session: another program ended it",
    }
}

/// Prints what the costliest session has cost, if it was more than the default limit.
fn print_cost_note(outcome: &Outcome) {
    /// Minimum CPU time for a note, in ns. In shorter programs, start-up dominates the cost.
    const MIN_CPU_NS: u64 = 1_000_000_000;
    let costs = outcome
        .written
        .iter()
        .filter(|written| written.is_last && !written.is_exact)
        .filter_map(|written| Some((&written.title, written.cost?)))
        .filter(|(_, cost)| cost.cpu_ns >= MIN_CPU_NS);
    let share = |cost: &profile::Cost| cost.spent_ns as f64 / cost.cpu_ns as f64;
    let costliest = costs.max_by(|(_, a), (_, b)| share(a).total_cmp(&share(b)));
    let limit = governor::DEFAULT_MAX_OVERHEAD;
    if let Some((title, cost)) = costliest.filter(|(_, cost)| share(cost) > 1.5 * limit) {
        terminal::note(&format!(
            "sampling took {} of the CPU time of {title}: --max-overhead {}% keeps it lower",
            cost.share(),
            limit * 100.0
        ));
    }
}

/// Prints the last line of a command that writes dumps, and returns its exit code.
fn conclude(outcome: &Outcome) -> ExitCode {
    print_cost_note(outcome);
    if outcome.failures == 0 && !outcome.written.is_empty() {
        terminal::result(success_message(outcome));
        return ExitCode::SUCCESS;
    }
    if !outcome.written.is_empty() {
        let written = outcome.written.len();
        let failed = outcome.failures;
        terminal::diagnostic(&format!("{written} written, {failed} failed"));
    }
    ExitCode::FAILURE
}

/// Prints a table of the dumps if there are several.
fn print_summary(written: &[Written]) {
    if written.len() > 1 {
        print_table(written);
    }
}

/// Prints a table of the dumps. Marks estimates with `~`.
fn print_table(written: &[Written]) {
    let rows = written.iter().map(|dump| {
        let mark = if dump.is_exact { "" } else { "~" };
        let bytes = |bytes| format!("{mark}{}", mem_agents::text::bytes(bytes));
        vec![
            dump.title.clone(),
            dump.ended.label(),
            dump.samples.to_string(),
            bytes(dump.alloc_bytes),
            bytes(dump.live_bytes),
            mem_agents::text::path(&dump.path),
        ]
    });
    let head = ["PROCESS", "ENDED", "SAMPLES", "ALLOCATED", "LIVE", "DUMP"];
    for line in mem_agents::text::table(&head, &[2, 3, 4], rows.collect()) {
        terminal::note(&line);
    }
}

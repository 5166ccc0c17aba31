//! `both`: samples heap and CPU time of the same processes over the same period.

use std::cell::OnceCell;
use std::io;
use std::process::ExitCode;
use std::rc::Rc;
use std::thread::{self, JoinHandle};

use anyhow::{anyhow, bail};
use mem_agents::discovery::Discovery;
use mem_agents::select::Selection;
use mem_agents::text;
use mem_agents::waiting::Signals;
use profile::cpu::Mode;

use super::cpu::print_files;
use super::files;
use super::reporting::Printer;
use crate::cli::{BothArgs, CpuFormat, PageArgs};
use crate::cpu_session::{self, Targets};
use crate::page;
use crate::session::{DumpCondition, Outcome, Run, Settings};
use crate::terminal::{self, note, result};
use crate::triggers::Triggers;

/// Thread of the CPU session.
type CpuThread = JoinHandle<anyhow::Result<cpu_session::Outcome>>;

/// Runs a heap session and a CPU session at the same time.
pub fn execute(args: BothArgs) -> anyhow::Result<ExitCode> {
    terminal::set_quiet(args.quiet.quiet);
    let selection = Selection::from(args.select.clone());
    let targets = select_targets(&selection)?;
    let (signals, end_of_cpu_session) = Signals::until_dropped()?;
    let settings = cpu_settings(&args);
    // If the agent samples CPU time as well, its one session has the samples of both.
    let is_in_agent = cpu_session::will_use_agents(settings.engine, settings.rate, &targets.pids);
    // The CPU session starts only once the heap session has started, so a refusal leaves nothing
    // running.
    let cpu_thread: Rc<OnceCell<io::Result<CpuThread>>> = Rc::default();
    let thread_cell = cpu_thread.clone();
    let reporter = Printer::attached()
        .quiet(args.quiet.quiet)
        .at_beginning(move || {
            let session = move || {
                let reporter = Box::new(Printer::without_progress());
                cpu_session::Run::with_heap(settings, signals, reporter)?.attach(targets)
            };
            // `set` cannot fail, since sampling begins once.
            let _ = thread_cell.set(thread::Builder::new().name("cpu".to_owned()).spawn(session));
        });
    // Blocks the signals. The thread of the CPU session is started later and inherits the mask.
    let heap = Run::new(
        Settings {
            cpu_rate: if is_in_agent { args.frequency } else { 0 },
            ..heap_settings(&args, selection)
        },
        Discovery::new(),
        false,
        Box::new(reporter),
    )?;
    let heap = heap.run();
    // Ends the CPU session together with the heap session.
    drop(end_of_cpu_session);
    let Some(cpu) = Rc::into_inner(cpu_thread).and_then(OnceCell::into_inner) else {
        heap?;
        return Ok(ExitCode::FAILURE);
    };
    let cpu = cpu?
        .join()
        .map_err(|_| anyhow!("the thread that samples CPU time has failed"))?;
    if let Ok(cpu) = &cpu {
        print_files(cpu, result);
    }
    let heap = heap?;
    let cpu = cpu?;
    super::print_summary(&heap.written);
    let pages_ok = follow_up(&heap, &cpu, args.page);
    // A process without significant CPU time is still a success.
    let is_sampled = !cpu.written.is_empty() || cpu.idle > 0;
    let is_success = heap.failures == 0 && cpu.failures == 0 && is_sampled && pages_ok;
    Ok(if is_success {
        super::conclude(&heap)
    } else {
        ExitCode::FAILURE
    })
}

/// Selects the processes whose heap can be sampled.
fn select_targets(selection: &Selection) -> anyhow::Result<Targets> {
    let chosen = selection.choose(Discovery::new().scan());
    if chosen.agents.is_empty() {
        let failure = chosen.failures.first();
        let reason = failure.map_or("no process carries the agent", String::as_str);
        bail!("{reason}; CPU time alone can be sampled without it: mem_profiler cpu -p PID");
    }
    Ok(Targets {
        pids: chosen.agents.iter().map(|agent| agent.pid).collect(),
        failures: Vec::new(),
    })
}

fn heap_settings(args: &BothArgs, selection: Selection) -> Settings {
    Settings {
        leak_check: None,
        density: args.interval.initial_density(),
        max_overhead: args.interval.overhead_limit(),
        length: args.seconds,
        prefix: args.output.clone(),
        cpu_rate: 0,
        selection,
        triggers: Triggers::default(),
        dump_condition: DumpCondition::default(),
    }
}

fn cpu_settings(args: &BothArgs) -> cpu_session::Settings {
    cpu_session::Settings {
        length: None,
        rate: args.frequency,
        prefix: args.output.clone(),
        is_filtered: false,
        engine: args.engine,
        mode: Mode::Cpu,
        format: CpuFormat::Cpu,
    }
}

/// Makes the pages, or prints how to make the page of the largest heap. Returns false if something
/// failed.
fn follow_up(heap: &Outcome, cpu: &cpu_session::Outcome, page_args: PageArgs) -> bool {
    let profile_of = |pid: i32| {
        let mut profiles = cpu.written.iter().filter(|profile| profile.pid == pid);
        profiles.next_back().map(|profile| &*profile.path)
    };
    let dumps = heap.written.iter().filter(|dump| dump.is_last);
    if page_args.html || page_args.open {
        // If one page fails, the others would fail for the same reason.
        let outcome = dumps.into_iter().try_for_each(|dump| {
            let page = page::make_with_cpu(&dump.path, profile_of(dump.pid))?;
            files::add_page(&page, &dump.path);
            result(&text::path(&page));
            if page_args.open {
                page::open(&page)
            } else {
                Ok(())
            }
        });
        return super::report_failure(outcome);
    }
    let largest = dumps.max_by(|a, b| a.live_bytes.total_cmp(&b.live_bytes));
    if let Some(dump) = largest {
        let files = [Some(&*dump.path), profile_of(dump.pid)];
        let files: Vec<String> = files.iter().flatten().map(text::shell_word).collect();
        let files = files.join(" ");
        note(&format!("next: mem_parser {files} --html -o both.html"));
    }
    true
}

//! `run`: starts a program with the agent and samples it from its first allocation.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;
use mem_agents::cleaning;
use mem_agents::discovery::Discovery;
use mem_agents::preload;
use mem_agents::program;
use mem_agents::room;
use mem_agents::segment::default_directory;
use mem_agents::select::Selection;
use mem_agents::text;
use mem_leaks::Variables;

use super::files;
use super::push::Push;
use super::reporting::Printer;
use crate::allocator;
use crate::cli::{self, LeakMode, PageArgs, RunArgs};
use crate::jemalloc_options;
use crate::launch::{self, LaunchedProgram};
use crate::python;
use crate::session::{DumpCondition, ExitCheck, Outcome, Run, Settings};
use crate::survivors;
use crate::terminal::{self, diagnostic, note, warning};

/// Minimum file size limit (ulimit -f) for a segment, in bytes. Segments are sparse but large.
const MIN_FILE_LIMIT: u64 = 64 << 20;
/// Minimum free space for a segment with its first tables, in bytes.
const MIN_FREE: u64 = 1 << 20;

/// Starts the program, follows it and its children, and returns its exit code.
pub fn execute(args: RunArgs) -> anyhow::Result<ExitCode> {
    terminal::set_quiet(args.quiet.quiet);
    let agent = launch::find_agent(args.agent.as_deref())?;
    let density = args.interval.initial_density();
    let max_overhead = args.interval.overhead_limit();
    let dump_signal = args.triggers.signal;
    let requested_check = args.leak_check.map(|mode| launch::LeakCheck {
        mode: mode.name(),
        is_at_exit: mode != LeakMode::Local,
    });
    let exit_mode = args.leak_check.filter(|mode| *mode != LeakMode::Local);
    let leak_check = exit_mode.map(|mode| exit_check(mode, &args));
    let is_checked = leak_check.is_some();
    let settings = Settings {
        cpu_rate: 0,
        leak_check,
        density,
        max_overhead,
        length: args.seconds,
        prefix: args.output.output,
        selection: Selection::default(),
        triggers: args.triggers.into(),
        dump_condition: DumpCondition {
            min: args.min,
            only: args.only,
        },
    };
    let can_sample = warn_before_start(&args.program.command, &agent, args.python_malloc)?;
    let mut push = Push::start(&args.push)?;
    let directory = launch::make_directory(&default_directory())?;
    let discovery = Discovery::in_directory(directory.clone());
    let reporter = Box::new(
        Printer::following()
            .quiet(args.quiet.quiet)
            .pushing(push.as_mut()),
    );
    let followed = Run::new(settings, discovery, true, reporter).and_then(|run| {
        let request = launch::Request {
            density,
            max_overhead,
            directory: &directory,
            leak_check: requested_check,
            python_malloc: args.python_malloc,
        };
        match LaunchedProgram::start(&args.program.command, &agent, request, dump_signal) {
            Ok(child) => Ok(Followed::Session(run.follow(child, &directory)?)),
            Err(error) => {
                diagnostic(&format!(
                    "{}: {error}",
                    text::path(&args.program.command[0])
                ));
                Ok(Followed::NotStarted(launch::start_failure_code(&error)))
            }
        }
    });
    cleaning::remove_directory(&directory);
    match followed? {
        Followed::Session(mut outcome) => {
            outcome.failures += usize::from(!push.is_none_or(Push::finish));
            let sampled_program = can_sample.then_some(&args.program.command[0]);
            let code = conclude(&outcome, args.min, args.page, sampled_program);
            Ok(if is_checked && !is_clean(&outcome) {
                ExitCode::FAILURE
            } else {
                code
            })
        }
        Followed::NotStarted(code) => Ok(code),
    }
}

/// Result of starting the program.
enum Followed {
    /// Outcome of the session of a program that ran.
    Session(Outcome),
    /// Exit code for a program that could not be started, as shells choose it.
    NotStarted(ExitCode),
}

/// Returns the requested leak check at exit. Options of the command line take precedence over
/// gperftools' variables.
fn exit_check(mode: LeakMode, args: &RunArgs) -> ExitCheck {
    let get = |name: &str| std::env::var_os(name).map(|v| v.to_string_lossy().into_owned());
    let variables = Variables::read(get, mode == LeakMode::AsIs);
    let variables = variables.unwrap_or_else(|error| cli::refuse(error));
    ExitCheck {
        scope: mode.scope(),
        options: args.search.apply_to(variables.options.clone()),
        suppressions: args.suppression.read(),
        lsan: get("LSAN_OPTIONS").unwrap_or_default(),
        variables,
    }
}

/// Returns true if a leak check was made and found nothing. Warns if none was made.
fn is_clean(outcome: &Outcome) -> bool {
    if outcome.unchecked > 0 {
        let subject = match outcome.unchecked {
            1 => "1 process was not checked at its exit: it".to_owned(),
            count => format!("{count} processes were not checked at their exit: each"),
        };
        diagnostic(&format!(
            "{subject} had made its check itself (__lsan_do_leak_check, HeapLeakChecker), or wanted none"
        ));
    }
    let excused = outcome.unchecked + outcome.disabled_by_options;
    if outcome.checked + excused == 0 && outcome.failures == 0 {
        warning(
            "no leak check: the program did not end by exit() or a return from main, or its agent \
             did not sample",
        );
    }
    outcome.checked + excused > 0 && outcome.leaks == 0
}

/// Warns before the start about what will not be sampled. Returns false if nothing can be.
fn warn_before_start(line: &[OsString], agent: &Path, python_malloc: bool) -> anyhow::Result<bool> {
    let command = line[0].as_os_str();
    let name = text::path(command);
    let Some(file) = program::find(command.as_ref()) else {
        return Ok(true);
    };
    let uid = nix::unistd::getuid().as_raw();
    let metadata = file.metadata();
    let is_privileged = metadata.is_ok_and(|file| preload::grants_privileges_to(&file, uid));
    let privileged = is_privileged.then_some(preload::PRIVILEGED);
    if let Some(obstacle) = program::obstacle(&file).or(privileged) {
        warning(&format!("{name}: nothing will be sampled: {obstacle}"));
        return Ok(false);
    }
    if let Some(mismatch) = preload::mismatch(agent, Path::new("/proc/self/exe")) {
        bail!(
            "{}: {mismatch}, or name another agent with --agent",
            text::path(agent)
        );
    }
    if let Some(other) = allocator::of_program(&file, command.as_bytes(), true) {
        warning(&format!("{name}: {other}"));
    } else if let Some(options) = std::env::var_os(jemalloc_options::VARIABLE)
        && let Some(hint) = jemalloc_options::hint_of_run(options.as_bytes())
    {
        diagnostic(&hint);
    }
    let file = file.canonicalize().unwrap_or(file);
    if python::is_free_threaded(file.as_os_str().as_bytes()) {
        hint_at_free_threading(&name, python_malloc)?;
    } else {
        hint_at_python_malloc(line, python_malloc);
    }
    Ok(true)
}

/// Prints that the objects of a free-threaded build are not seen. Fails if `--python-malloc` was
/// given, which such a build does not support.
fn hint_at_free_threading(name: &str, python_malloc: bool) -> anyhow::Result<()> {
    if python_malloc {
        bail!(
            "{name} is a free-threaded build of Python, which does not start with {}=malloc: leave \
             --python-malloc out",
            python::VARIABLE
        );
    }
    diagnostic(&format!(
        "hint: {name} is a free-threaded build of Python: only what extensions take from malloc \
         is seen"
    ));
    Ok(())
}

/// Prints whether small Python objects will be seen, and how to see them.
fn hint_at_python_malloc(line: &[OsString], python_malloc: bool) {
    let command = line[0].as_os_str();
    let bytes: Vec<&[u8]> = line.iter().map(|argument| argument.as_bytes()).collect();
    let ignores_variable = python::ignores_environment(&bytes);
    let name = text::path(command);
    let variable = python::VARIABLE;
    let value = std::env::var_os(variable);
    let hides_objects = python::hides_objects(value.as_deref().map(OsStrExt::as_bytes));
    if ignores_variable && (python_malloc || !hides_objects) {
        warning(&format!(
            "{name} ignores {variable}, because of -I or -E: its small objects stay in its own \
             allocator, and will not be seen"
        ));
    } else if python_malloc {
        diagnostic(&format!(
            "{name} is started with {variable}=malloc: Python takes each object from malloc, more \
             slowly than from its own allocator"
        ));
    } else if hides_objects && python::is_interpreter(command.as_bytes()) {
        diagnostic(&format!(
            "hint: {name} keeps small objects in its own allocator: --python-malloc \
             ({variable}=malloc in the environment) shows each of them"
        ));
    }
}

/// Programs that run others on a simulated processor or with their own allocator.
const TRANSLATORS: [&str; 3] = ["valgrind", "valgrind.bin", "drrun"];

/// Explains why no agent can have created a segment, if the reason is known. `program` is the
/// program that was started.
fn sampling_obstacle(program: &OsString) -> Option<String> {
    let name = Path::new(program).file_name();
    if let Some(name) = TRANSLATORS
        .iter()
        .find(|translator| name == Some(translator.as_ref()))
    {
        return Some(format!(
            "{name} runs the program with an allocator of its own: start it without {name}"
        ));
    }
    if !Path::new("/proc/self/maps").exists() {
        return Some(
            "/proc is not mounted, without which agents cannot start: mount it".to_owned(),
        );
    }
    lack_of_space()
}

/// File system type of a ramfs, which cannot reserve memory.
const RAMFS: u64 = 0x8584_58f6;

/// Explains why agents could not create segments, if there is too little space for them.
fn lack_of_space() -> Option<String> {
    use nix::sys::resource::{Resource, getrlimit};
    let directory = default_directory();
    let limit = getrlimit(Resource::RLIMIT_FSIZE).map_or(u64::MAX, |(soft, _)| soft);
    let statfs = nix::sys::statfs::statfs(&directory).ok();
    if statfs.is_some_and(|statfs| statfs.filesystem_type().0 as u64 == RAMFS) {
        let path = text::path(&directory);
        return Some(format!(
            "{path} is on a ramfs, where memory cannot be reserved for its segment: use a tmpfs, or \
             MEM_PROFILER_DIR"
        ));
    }
    let space = nix::sys::statvfs::statvfs(&directory).ok();
    // Some file systems do not report free space.
    let reported = space.filter(|space| space.blocks() > 0);
    let free = reported.map_or(u64::MAX, |space| {
        space
            .blocks_available()
            .saturating_mul(space.fragment_size())
    });
    if limit < MIN_FILE_LIMIT {
        Some(
            "the limit on the size of files (ulimit -f) is too low for its segment: raise it"
                .to_owned(),
        )
    } else if free < MIN_FREE {
        let sizes = room::comparison(Some(MIN_FREE), Some(free));
        Some(format!(
            "{} has no room for its segment, which {sizes}; make room there, or use \
             MEM_PROFILER_DIR",
            text::path(&directory)
        ))
    } else {
        None
    }
}

/// Prints the results and returns the exit code: the program's, or a failure if it succeeded and a
/// dump could not be written. `program` is `None` if it cannot be sampled.
fn conclude(
    outcome: &Outcome,
    min_bytes: u64,
    page_args: PageArgs,
    program: Option<&OsString>,
) -> ExitCode {
    let left_out = outcome.left_out;
    if left_out > 0 {
        let subject = match left_out {
            1 => "1 process is left out: it".to_owned(),
            n => format!("{n} processes are left out: each"),
        };
        let least = text::bytes(min_bytes as f64);
        note(&format!(
            "{subject} allocated less than {least} or has another name (--min, --only)"
        ));
    }
    match outcome.clean_left_out {
        0 => {}
        1 => note("1 of the processes without a dump was checked at its exit: no leaks"),
        n => note(&format!(
            "{n} of the processes without a dump were checked at their exit: no leaks"
        )),
    }
    survivors::report(&outcome.survivors, "mem_profiler");
    super::print_cost_note(outcome);
    let mut is_hindered = false;
    if !outcome.written.is_empty() {
        super::print_table(&outcome.written);
    } else if outcome.failures == 0
        && left_out == 0
        && let Some(program) = program
    {
        let obstacle = sampling_obstacle(program);
        is_hindered = obstacle.is_some();
        warning(&match obstacle {
            Some(reason) => format!("no process was sampled: {reason}"),
            None if !outcome.survivors.is_empty() => {
                "no process was sampled: what continues in the background is not; start it in the \
                 foreground if it can stay there"
                    .to_owned()
            }
            None => {
                "no process was sampled: it allocates too little or by an allocator of its own, \
                     is static or setuid, or clears LD_PRELOAD"
                    .to_owned()
            }
        });
    }
    let all_ok = !is_hindered
        && super::follow_up(&outcome.written, page_args, note)
        && outcome.failures == 0;
    // The program's output is complete. If a signal killed it, `exit_like` kills this process by the
    // same signal.
    files::print();
    match outcome.status {
        Some(status) if !status.success() => launch::exit_like(status),
        _ if !all_ok => ExitCode::FAILURE,
        // A program that allocates too little for a sample is not a failure.
        _ if outcome.written.is_empty() => ExitCode::SUCCESS,
        _ => {
            note(super::success_message(outcome));
            ExitCode::SUCCESS
        }
    }
}

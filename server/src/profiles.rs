//! Serves profiles like Go's net/http/pprof (`/debug/pprof/…`) and like gperftools (`/pprof/…`).

use std::fmt::Write as _;
use std::fs::File;
use std::time::Duration;

use mem_agents::collect;
use mem_agents::discovery::Agent;
use mem_agents::live::{self, Live};
use mem_agents::segment::Head;
use mem_agents::target::is_running;
use profile::{Facts, Profile, ValueType};
use tempfile::TempDir;

use crate::encoding;
use crate::job::{self, Job, Program};
use crate::reply::{Reply, Step};
use crate::request::{MAX_SECONDS, Request};
use crate::server::Server;
use crate::writing::{self, Form, ProfileWrite, Since, WriteSpec, Written};

/// Default duration of a CPU profile, in seconds.
const CPU_SECONDS: u64 = 30;
/// Maximum time that the CPU profiler may take in addition to the requested duration.
const CPU_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of addresses to symbolize per request.
const MAX_ADDRESSES: usize = 100_000;

/// Formats that a client expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// `profile.proto`, with names.
    Go,
    /// The formats of gperftools, with addresses.
    Gperftools,
}

/// Answers `/debug/pprof/KIND` or `/pprof/KIND`. Returns `None` if there is no such kind.
pub fn answer(
    server: &Server,
    kind: &str,
    dialect: Dialect,
    request: &Request,
) -> Option<Result<Step, Reply>> {
    let is_go = dialect == Dialect::Go;
    Some(match kind {
        "heap" => heap(server, dialect, request, "inuse_space"),
        "allocs" if is_go => heap(server, dialect, request, "alloc_space"),
        "growth" => growth(server, dialect, request),
        "profile" => cpu_profile(server, dialect, request),
        "cmdline" => cmdline(server, dialect, request).map(Step::Done),
        "symbol" => symbol(server, dialect, request).map(Step::Done),
        "block" | "mutex" if is_go => empty_profile(server, kind, request),
        "goroutine" | "threadcreate" if is_go => empty_profile(server, kind, request),
        "contention" if !is_go => contention(server, request),
        _ => return None,
    })
}

/// Serves the heap profile. `column` is what readers show by default: live or allocated bytes.
fn heap(
    server: &Server,
    dialect: Dialect,
    request: &Request,
    column: &'static str,
) -> Result<Step, Reply> {
    let text = dialect == Dialect::Gperftools || request.is_on("debug");
    let agent = server.sources.agents.find(request.process())?;
    let Some(seconds) = request.seconds()? else {
        if writing::has_large_profile(&agent) {
            let form = if text {
                Form::Dump
            } else {
                Form::for_column(column)
            };
            return heap_by_child(server, &agent, form);
        }
        let live = running_profile(&agent)?;
        return send_profile(server, live.profile, column, text).map(Step::Done);
    };
    if text {
        return Err(Reply::refusal(
            400,
            "seconds and debug=1 cannot be combined: a difference has no text format",
        ));
    }
    profile_period(server, agent, seconds, Form::for_column(column))
}

/// Name of the served file in the job's directory.
const SERVED: &str = "served";
/// Name of the file with the profile at the beginning of a period.
const BEFORE: &str = "before";

/// Serves a heap profile that a child process writes, since it is large.
fn heap_by_child(server: &Server, agent: &Agent, form: Form) -> Result<Step, Reply> {
    require_session(agent)?;
    let spec = WriteSpec {
        trigger: "served",
        file: SERVED,
        form,
        must_run: true,
        since: None,
    };
    let directory = job::directory()?;
    let write = ProfileWrite::begin(&server.sources, agent, spec, &directory)?;
    Ok(write.then(move |_| send_file(&directory, form).map(Step::Done)))
}

/// Fails if no session is running.
fn require_session(agent: &Agent) -> Result<(), Reply> {
    let mut head = Head::new();
    let header = agent.segment.head(&mut head);
    let header = header.map_err(|error| unreadable(agent, &error))?;
    is_running(&header)
        .then_some(())
        .ok_or_else(|| no_session(agent))
}

/// Answers with a profile in a directory.
fn send_file(directory: &TempDir, form: Form) -> Result<Reply, Reply> {
    let profile = File::open(directory.path().join(SERVED));
    let profile = profile.map_err(|error| Reply::temporary_file_error(&error))?;
    Ok(match form {
        Form::Dump | Form::Unnamed | Form::Growth => Reply::open_text(profile),
        Form::Allocated => Reply::open_file(file_name("alloc_space"), profile),
        Form::Live | Form::Gzip => Reply::open_file(file_name("inuse_space"), profile),
    })
}

/// Returns the name that Go's server gives to a profile's file.
fn file_name(column: &str) -> &'static str {
    match column {
        "alloc_space" => "allocs",
        "cpu" => "profile",
        _ => "heap",
    }
}

/// Returns the profile of the running session.
fn running_profile(agent: &Agent) -> Result<Live, Reply> {
    let live = last_profile(agent)?.filter(|live| live.running);
    live.ok_or_else(|| no_session(agent))
}

/// Returns the profile of the last session, even if it is over.
fn last_profile(agent: &Agent) -> Result<Option<Live>, Reply> {
    live::profile(agent, "served", None).map_err(|error| unreadable(agent, &error))
}

fn no_session(agent: &Agent) -> Reply {
    Reply::refusal(
        404,
        format!(
            "{}: no session is sampling it: mem_profiler -p {} starts one, or serve --sample, or ?seconds=N for that time only",
            agent.title(),
            agent.pid
        ),
    )
}

fn unreadable(agent: &Agent, error: &dyn std::fmt::Display) -> Reply {
    Reply::refusal(503, format!("{}: {error}", agent.title()))
}

/// Serves the changes in a period of `length`. If no session runs, one is started for that time.
fn profile_period(
    server: &Server,
    agent: Agent,
    length: Duration,
    form: Form,
) -> Result<Step, Reply> {
    let pid = Some(agent.pid.to_string());
    let lease = server.sources.sessions.lease(agent);
    let lease = lease.map_err(|why| Reply::refusal(503, why))?;
    let agent = server.sources.agents.find(pid.as_deref())?;
    require_session(&agent)?;
    let spec = WriteSpec {
        trigger: "served",
        file: BEFORE,
        form: Form::Unnamed,
        must_run: true,
        since: None,
    };
    let directory = job::directory()?;
    let before = ProfileWrite::begin(&server.sources, &agent, spec, &directory)?;
    let server = server.clone();
    // If the process or the session has ended by the end of the period, its final counts are used.
    let write_difference = move |before: Written| {
        let spec = WriteSpec {
            trigger: "served",
            file: SERVED,
            form,
            must_run: false,
            since: Some(Since {
                file: BEFORE,
                at_ns: before.at_ns,
            }),
        };
        let after = match ProfileWrite::begin(&server.sources, &agent, spec, &directory) {
            Ok(after) => after,
            Err(refusal) => return refusal.into(),
        };
        after.then(move |after| {
            drop(lease);
            if after.session != before.session {
                let why = format!("{}: another session has begun", agent.title());
                return Err(Reply::refusal(503, why));
            }
            send_file(&directory, form).map(Step::Done)
        })
    };
    Ok(before.then(move |before| {
        Ok(Step::Later(
            length,
            Box::new(move || write_difference(before)),
        ))
    }))
}

/// Encodes a profile for a client.
fn send_profile(
    server: &Server,
    mut profile: Profile,
    column: &str,
    text: bool,
) -> Result<Reply, Reply> {
    let failed = |error: std::io::Error| Reply::refusal(500, error.to_string());
    if text {
        return Ok(Reply::text(encoding::text(&profile).map_err(failed)?));
    }
    server.sources.symbolize(&mut profile);
    Ok(Reply::file(
        file_name(column),
        encoding::heap(profile, column).map_err(failed)?,
    ))
}

/// Serves the growth of the heap since the session began, or over the requested time.
fn growth(server: &Server, dialect: Dialect, request: &Request) -> Result<Step, Reply> {
    let agent = server.sources.agents.find(request.process())?;
    let text = dialect == Dialect::Gperftools || request.is_on("debug");
    let form = if text { Form::Growth } else { Form::Live };
    if let Some(seconds) = request.seconds()? {
        return profile_period(server, agent, seconds, form);
    }
    if writing::has_large_profile(&agent) {
        return heap_by_child(server, &agent, form);
    }
    let profile = running_profile(&agent)?.profile;
    if text {
        return Ok(Reply::text(encoding::growth(&profile)).into());
    }
    send_profile(server, profile, "inuse_space", false).map(Step::Done)
}

/// Serves a CPU profile, taken by `mem_profiler cpu`.
fn cpu_profile(server: &Server, dialect: Dialect, request: &Request) -> Result<Step, Reply> {
    let agent = server.sources.agents.find(request.process())?;
    let seconds = request.seconds()?;
    let seconds = seconds.unwrap_or(Duration::from_secs(CPU_SECONDS));
    debug_assert!(seconds.as_secs() <= MAX_SECONDS);
    let directory = job::directory()?;
    let timeout = seconds + CPU_TIMEOUT;
    let job = Job::start(Program::Profiler, &directory, timeout, |command| {
        command.args(["cpu", "-p", &agent.pid.to_string(), "-o", "./cpu", "-s"]);
        command.arg(seconds.as_secs().to_string());
        if dialect == Dialect::Gperftools {
            command.args(["--format", "gperftools"]);
        }
    })?;
    let server = server.clone();
    let finish = move |job: &Job| {
        let file = find_profile(job)?;
        if dialect == Dialect::Gperftools {
            let read = std::fs::read(&file);
            let read = read.map_err(|error| Reply::temporary_file_error(&error))?;
            return Ok(Reply::file("profile", read));
        }
        let profile = profile::open(&file);
        let profile = profile.map_err(|error| Reply::refusal(500, error.to_string()))?;
        send_profile(&server, profile, "cpu", false)
    };
    Ok(job.then_or(seconds, finish, move |message| {
        is_idle(message).then(|| empty_cpu_profile(&agent, seconds, dialect))
    }))
}

/// Returns true if the CPU profiler failed because the process used no CPU time. Only that error
/// comes with the advice to sample for longer.
fn is_idle(message: &str) -> bool {
    message.contains(": no samples of its ") && message.contains("Sample for longer (-s)")
}

/// Returns a valid empty profile of a process that used no CPU time, as Go does.
fn empty_cpu_profile(agent: &Agent, length: Duration, dialect: Dialect) -> Result<Reply, Reply> {
    let time = ValueType::new("cpu", "nanoseconds");
    let length_ns = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
    let profile = Profile {
        sample_types: vec![ValueType::new("samples", "count"), time.clone()],
        period_type: Some(time),
        period: 10_000_000,
        default_type: 1,
        facts: Facts {
            start_unix_ns: Some(shm_protocol::clock::unix_ns().saturating_sub(length_ns)),
            duration_ns: Some(length_ns),
            exe: proc::exe(agent.pid).map(|exe| String::from_utf8_lossy(&exe).into_owned().into()),
            ..Facts::default()
        },
        ..Profile::default()
    };
    let failed = |error: std::io::Error| Reply::refusal(500, error.to_string());
    let body = match dialect {
        Dialect::Go => encoding::pprof(profile).map_err(failed)?,
        Dialect::Gperftools => {
            let mut body = Vec::new();
            profile::cpu::gperftools::write(&profile, &mut body).map_err(failed)?;
            body
        }
    };
    Ok(Reply::file("profile", body))
}

/// Finds the file that the CPU profiler has written.
pub fn find_profile(job: &Job) -> Result<std::path::PathBuf, Reply> {
    let files = std::fs::read_dir(job.path());
    let files = files.map_err(|error| Reply::temporary_file_error(&error))?;
    let mut files = files.flatten().map(|entry| entry.path());
    let is_profile = |path: &std::path::PathBuf| {
        path.extension()
            .is_some_and(|extension| extension == "cpu" || extension == "prof")
    };
    let file = files.find(is_profile);
    file.ok_or_else(|| Reply::refusal(500, "the CPU profiler has written no profile"))
}

fn cmdline(server: &Server, dialect: Dialect, request: &Request) -> Result<Reply, Reply> {
    let agent = server.sources.agents.find(request.process())?;
    let separator: &[u8] = match dialect {
        Dialect::Go => b"\0",
        Dialect::Gperftools => b"\n",
    };
    Ok(Reply::text(proc::command_line(agent.pid).join(separator)))
}

/// Serves names of addresses: `num_symbols`, or the names of the addresses in the request.
fn symbol(server: &Server, dialect: Dialect, request: &Request) -> Result<Reply, Reply> {
    let agent = server.sources.agents.find(request.process())?;
    let mut answer = "num_symbols: 1\n".to_owned();
    let text = String::from_utf8_lossy(&request.body);
    let requested = if request.is_post {
        text.as_ref()
    } else {
        &request.raw_query
    };
    let addresses = requested.split('+').filter_map(|word| {
        let digits = word.trim().strip_prefix("0x")?;
        u64::from_str_radix(digits, 16).ok()
    });
    let addresses: Vec<u64> = addresses.take(MAX_ADDRESSES).collect();
    if addresses.is_empty() {
        return Ok(Reply::text(answer));
    }
    if request.is_post && dialect == Dialect::Gperftools {
        answer.clear();
    }
    let mut head = Head::new();
    let header = agent.segment.full_head(&mut head);
    let header = header.map_err(|error| unreadable(&agent, &error))?;
    // As in profiles, the requested addresses are those of calls: return addresses minus one.
    let return_addresses: Vec<u64> = addresses
        .iter()
        .map(|address| address.wrapping_add(1))
        .collect();
    let mut code = collect::profile_of_addresses(&header, agent.pid, &return_addresses, &[]);
    server.sources.symbolize(&mut code);
    for (number, address) in addresses.iter().enumerate() {
        let location = code.stacks.get(number).first();
        let location = location.map(|&location| &code.locations[location as usize]);
        let lines = location.map(|location| code.lines_of(location));
        // Innermost first: the last function is the one that contains the code.
        let name = lines.unwrap_or_default().last();
        if let Some(line) = name {
            let name = &code.functions[line.function as usize].name;
            let name = profile::printable::printable(name);
            let gap = if dialect == Dialect::Go { ' ' } else { '\t' };
            // Writing to a string cannot fail.
            let _ = writeln!(answer, "{address:#x}{gap}{name}");
        }
    }
    Ok(Reply::text(answer))
}

/// Serves a valid empty profile, of a kind that Go programs have and this server does not.
fn empty_profile(server: &Server, kind: &str, request: &Request) -> Result<Step, Reply> {
    let agent = server.sources.agents.find(request.process())?;
    let seconds = request.seconds()?;
    if request.is_on("debug") {
        return Ok(Reply::text(format!("{kind}: not sampled by mem_profiler\n")).into());
    }
    let types = match kind {
        "block" | "mutex" => vec![
            ValueType::new("contentions", "count"),
            ValueType::new("delay", "nanoseconds"),
        ],
        kind => vec![ValueType::new(kind, "count")],
    };
    let profile = Profile {
        period_type: types.first().cloned(),
        sample_types: types,
        period: 1,
        facts: Facts {
            start_unix_ns: Some(shm_protocol::clock::unix_ns()),
            exe: proc::exe(agent.pid).map(|exe| String::from_utf8_lossy(&exe).into_owned().into()),
            ..Facts::default()
        },
        ..Profile::default()
    };
    let body = encoding::pprof(profile).map_err(|e| Reply::refusal(500, e.to_string()))?;
    let reply = Reply::file(kind, body);
    Ok(match seconds {
        Some(seconds) => Step::Later(seconds, Box::new(|| reply.into())),
        None => reply.into(),
    })
}

/// Serves gperftools' profile of lock contention, without any samples.
fn contention(server: &Server, request: &Request) -> Result<Step, Reply> {
    let agent = server.sources.agents.find(request.process())?;
    let mut text = "--- contention:\ncycles/second=1000000000\nsampling period=1\n\
                    ms since reset=0\ndiscarded samples=0\n\nMAPPED_LIBRARIES:\n"
        .to_owned();
    let maps = proc::maps(agent.pid).unwrap_or_default();
    text.push_str(&String::from_utf8_lossy(&maps));
    Ok(Reply::text(text).into())
}

//! End of a CPU session: writes a profile of each sampled process, and reports why others have
//! none.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use cpu::kernel::Symbols;
use cpu::recording::RecordingResult;
use cpu::{Machine, Process};
use mem_agents::text;
use nix::sys::resource::{Usage, UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use profile::cpu::Mode;

use super::sink::Sink;
use super::{Description, Run, Session, Times, Written};
use crate::launch::LaunchedProgram;

/// Requested process without samples.
struct IdleProcess<'a> {
    /// Name and pid, for display.
    title: String,
    process: &'a Process,
}

impl Run {
    /// Ends sampling, writes the profiles, and reports processes without samples.
    pub(super) fn finish(&mut self) {
        // Writing may take a while and needs descriptors, so the engine releases the processes
        // first.
        self.sampler.finish(&mut self.recording);
        self.report_warnings();
        self.raised_priority = None;
        proc::reserve_files(0);
        let session = self.session();
        let RecordingResult {
            processes,
            unsampled,
            foreign,
            symbols,
        } = std::mem::take(&mut self.recording).finish();
        self.outcome.unsampled.processes += unsampled.processes;
        self.outcome.unsampled.cpu_ns += unsampled.ns;
        let known_ns: u64 = processes.iter().map(Process::cpu_ns).sum();
        self.count_unseen(known_ns.saturating_add(self.outcome.unsampled.cpu_ns));
        let mut reported = HashSet::new();
        for process in &processes {
            let description = self.descriptions.remove(&process.serial);
            let description = description.unwrap_or_else(|| Description::from_mappings(process));
            // A program that requested a file gets one, even without a sample.
            if process.is_sampled() || matches!(self.sink, Sink::OwnProfile { .. }) {
                self.write(process, &description, &session, &symbols);
                reported.insert(process.pid);
            }
        }
        let mut idle: Vec<IdleProcess<'_>> = Vec::new();
        for process in processes.iter().filter(|p| !p.is_sampled()) {
            let is_requested = self.requested.iter().any(|(pid, _)| *pid == process.pid);
            if !is_requested {
                self.outcome.unsampled.processes += 1;
                self.outcome.unsampled.cpu_ns += process.cpu_ns();
            } else if reported.insert(process.pid) {
                let title = self.title(process.pid);
                let machine = process.foreign().map(|machine| machine.to_string());
                let why = self.sampler.failure_reason(process.pid);
                match machine.as_deref().or(why) {
                    Some(why) => self.fail(&format!("{title}: {}", format_reason(process, why))),
                    None => idle.push(IdleProcess { title, process }),
                }
            }
        }
        self.report_idle(&idle);
        self.report_foreign(foreign);
        if self.child.is_some() {
            self.report_refusals(&reported);
        }
        for (pid, title) in std::mem::take(&mut self.requested) {
            if reported.insert(pid) {
                self.fail(&format!(
                    "{title}: no samples: it has ended. Sample more often (-F), or start it with \
                     mem_profiler cpu run"
                ));
            }
        }
    }

    /// Counts the CPU time of descendants that exited before the engine noticed them. Once we have
    /// reaped the program, the kernel's count for our children includes the descendants that the
    /// program has reaped. `known_ns` is the CPU time of all known processes, in nanoseconds.
    fn count_unseen(&mut self, known_ns: u64) {
        let has_ended = |child: &LaunchedProgram| child.status.is_some();
        if self.child.as_ref().is_some_and(has_ended) {
            let reaped_ns = reaped_ns().saturating_sub(self.reaped_before_ns);
            let unseen_ns = reaped_ns.saturating_sub(known_ns);
            // The clocks are not read at the same moment, and some kernels count in ticks.
            if unseen_ns > reaped_ns / 50 {
                self.outcome.unsampled.cpu_ns += unseen_ns;
                self.outcome.unsampled.unseen_ns = unseen_ns;
            }
        }
    }

    /// Reports requested processes without samples. Those that used less time than one sampling
    /// period are reported together. Each counts as a failure, unless the session runs together
    /// with a heap session.
    fn report_idle(&mut self, idle: &[IdleProcess<'_>]) {
        let mode = self.settings.mode;
        let period = 1_000_000_000 / u64::from(self.settings.rate.max(1));
        let used_ns = |idle: &IdleProcess<'_>| Times::of(idle.process, mode).total_ns;
        let (idlest, busier): (Vec<_>, Vec<_>) =
            idle.iter().partition(|idle| used_ns(idle) < period);
        let (grouped, single) = match idlest.len() {
            0 | 1 => (Vec::new(), idle.iter().collect()),
            _ => (idlest, busier),
        };
        for idle in single {
            let advice = format_advice(idle.process, mode);
            self.reporter
                .diagnostic(&format!("{}: {advice}", idle.title));
        }
        if let Some(max_ns) = grouped.iter().map(|idle| used_ns(idle)).max() {
            let titles: Vec<&str> = grouped.iter().map(|idle| &idle.title[..]).collect();
            self.reporter
                .diagnostic(&format_idle_group(&titles, max_ns, mode));
        }
        if self.expects_samples {
            self.outcome.failures += idle.len();
        } else {
            self.outcome.idle += idle.len();
        }
    }

    /// Reports processes without samples because their programs are for another architecture.
    /// Counts them as failures if no profile was written.
    fn report_foreign(&mut self, foreign: BTreeMap<Machine, (i32, usize)>) {
        let mut total = 0;
        for (machine, (lowest_pid, count)) in foreign {
            let group = describe_group(lowest_pid, count);
            self.reporter
                .warning(&format!("{group}: no samples: {machine}"));
            total += count;
        }
        let unexplained = &mut self.outcome.unsampled.processes;
        *unexplained = unexplained.saturating_sub(total as u64);
        if total > 0 && self.outcome.written.is_empty() {
            self.outcome.failures += total;
        }
    }

    /// Reports which of the program's processes could not be sampled. Counts them as failures if no
    /// profile was written. Short-lived processes are never failures.
    fn report_refusals(&mut self, reported: &HashSet<i32>) {
        let mut refused = 0;
        for (why, mut pids) in self.sampler.refusals() {
            pids.retain(|pid| !reported.contains(pid));
            if let Some(first) = pids.iter().min() {
                self.reporter.warning(&format!(
                    "{}: no samples: {why}",
                    describe_group(*first, pids.len())
                ));
            }
            refused += pids.len();
        }
        let unexplained = &mut self.outcome.unsampled.processes;
        *unexplained = unexplained.saturating_sub(refused as u64);
        if refused > 0 && self.outcome.written.is_empty() {
            self.outcome.failures += refused;
        }
    }

    fn title(&self, pid: i32) -> String {
        let process = self
            .requested
            .iter()
            .find(|(requested, _)| *requested == pid);
        process.map_or_else(|| pid.to_string(), |(_, title)| title.clone())
    }

    pub(super) fn session(&self) -> Session {
        Session {
            sampling: self.sampler.facts(self.settings.mode),
            format: self.settings.format,
            has_clock: true,
            is_filtered: self.settings.is_filtered,
            start_unix_ns: self.start_unix_ns,
            length: self.start.elapsed(),
        }
    }

    pub(super) fn write(
        &mut self,
        process: &Process,
        description: &Description,
        session: &Session,
        symbols: &Symbols,
    ) {
        let title = description.title(process.pid);
        let result = match &mut self.sink {
            Sink::Files(output) => output.write(&description.name, process.pid, |number, file| {
                session.write(process, description, symbols, number, file)
            }),
            Sink::OwnProfile { serial, .. } if *serial != process.serial => return,
            Sink::OwnProfile { profile, .. } => {
                let mut bytes = Vec::new();
                let encoded = session.write(process, description, symbols, 0, &mut bytes);
                encoded
                    .and_then(|()| profile.write(&bytes))
                    .map(|()| profile.path().to_owned())
            }
        };
        match result {
            Ok(path) => self.outcome.written.push(Written {
                path,
                pid: process.pid,
                title,
                samples: process.counts.samples,
                ns: Times::of(process, self.settings.mode).total_ns,
                remark: session.remark(process, self.sampler.failure_reason(process.pid)),
                program: description.exe_without_build_id(process),
            }),
            Err(error) => self.fail(&format!("{title}: {error}")),
        }
    }
}

/// Returns the CPU time of this process's reaped descendants, in nanoseconds.
pub(super) fn reaped_ns() -> u64 {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN);
    let ns = |usage: Usage| {
        let times = [usage.user_time(), usage.system_time()];
        let times = times.map(|time| u64::try_from(time.num_nanoseconds()).unwrap_or(0));
        times.iter().sum()
    };
    usage.map_or(0, ns)
}

/// Maximum number of processes named in one message.
const MAX_NAMED_PROCESSES: usize = 8;

/// Formats the message about several processes that used at most `max_ns` nanoseconds each.
fn format_idle_group(titles: &[&str], max_ns: u64, mode: Mode) -> String {
    let (named, others) = titles.split_at(titles.len().min(MAX_NAMED_PROCESSES));
    let others = match others.len() {
        0 => String::new(),
        n => format!(" and {n} others"),
    };
    let time = match max_ns {
        0 => format!("no {mode}"),
        max_ns => {
            let most = text::short_time(Duration::from_nanos(max_ns));
            format!("at most {most} of {mode} each")
        }
    };
    let all = titles.len();
    let named = named.join(", ");
    format!("{all} processes have no samples, since they used {time}: {named}{others}")
}

/// Formats a group of `count` processes.
fn describe_group(lowest_pid: i32, count: usize) -> String {
    match count {
        1 => format!("process {lowest_pid}"),
        2 => format!("process {lowest_pid} and another one"),
        n => format!("process {lowest_pid} and {} others", n - 1),
    }
}

/// Formats the message about a requested process without samples, for a known reason.
fn format_reason(process: &Process, reason: &str) -> String {
    let time = text::short_time(Duration::from_nanos(process.cpu_ns()));
    format!("no samples of its {time} of CPU time: {reason}")
}

/// Formats the message about a requested process without samples, with advice.
fn format_advice(process: &Process, mode: Mode) -> String {
    let time = text::short_time(Duration::from_nanos(Times::of(process, mode).total_ns));
    let end = if process.is_over {
        "; it has ended"
    } else if proc::is_stopped(process.pid) {
        "; it is stopped (kill -CONT continues it)"
    } else {
        ""
    };
    let when = match mode {
        Mode::Cpu => ", or when it is busy",
        Mode::Wall | Mode::OffCpu => "",
    };
    format!(
        "no samples of its {time} of {mode}{end}. Sample for longer (-s), or more often \
             (-F){when}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_processes_are_reported_in_one_line() {
        let message = format_idle_group(&["a (1)", "b (2)"], 0, Mode::Cpu);
        let expected = "2 processes have no samples, since they used no CPU time: a (1), b (2)";
        assert_eq!(message, expected);
        let titles = ["c (3)"; 10];
        let message = format_idle_group(&titles, 1_500_000, Mode::Cpu);
        assert!(
            message.contains("at most 1.5 ms of CPU time each: c (3), "),
            "{message}"
        );
        assert!(message.ends_with("c (3) and 2 others"), "{message}");
    }
}

//! What takes the samples: the best engine that is allowed, found by trying.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use cpu::{Perf, Ptrace, Recording, Refusal, Sampling, Waiting};
use heap_format::cpu::{self as format, Mode};
use mem_agents::discovery::Discovery;

use super::inside::{Inside, STOPPED};
use super::member::Trouble;
use super::timers::name_lines;
use crate::cli::EngineName;

/// What part the agents have that processes carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agents {
    /// They take the samples where nothing better is allowed.
    Asked,
    /// The same, in sessions that another session of this program begins.
    Beside,
}

/// What takes the samples, and why nothing better does.
pub struct Engine {
    taker: Taker,
    /// What sees threads that wait, if they are requested.
    waiting: Option<Waiting>,
    sampling: Sampling,
    /// What samples if agents that were chosen for their lines of Python do not.
    reserve: Option<Box<Perf>>,
    /// Processes that it samples since then, and why not before.
    late: HashMap<i32, String>,
    /// Why better ones are not used, and what that costs.
    pub fallbacks: Vec<String>,
    /// How many of them were reported.
    told: usize,
    may_change: bool,
    /// Whether lines of Python are wanted, where there are any.
    wants_lines: bool,
    agents: Agents,
    /// When the processes were examined, if nothing else does.
    looked: Option<Instant>,
    /// What is still known of it after its end.
    closed: Option<Closed>,
}

struct Closed {
    name: String,
    lost: u64,
    kernel_hidden: Option<String>,
    /// Why nothing was sampled of a process.
    troubles: HashMap<i32, String>,
}

enum Taker {
    Perf(Box<Perf>),
    Ptrace(Box<Ptrace>),
    Inside(Box<Inside>),
    /// Only what waits is sampled.
    Nothing,
}

impl Engine {
    /// The one that was requested, or the best that is allowed.
    pub fn choose(
        (wanted, mode): (Option<EngineName>, Mode),
        sampling: Sampling,
        agents: Agents,
    ) -> Result<Self, Refusal> {
        let mut engine = Self {
            taker: Taker::Ptrace(Box::new(Ptrace::new(sampling))),
            waiting: (mode != Mode::Cpu).then(|| Waiting::new(sampling)),
            sampling,
            reserve: None,
            late: HashMap::new(),
            fallbacks: Vec::new(),
            told: 0,
            may_change: wanted.is_none(),
            wants_lines: true,
            agents,
            looked: None,
            closed: None,
        };
        if mode == Mode::OffCpu {
            engine.taker = Taker::Nothing;
            return Ok(engine);
        }
        if wanted == Some(EngineName::Ptrace) {
            return Ok(engine);
        }
        if wanted == Some(EngineName::Timers) {
            engine.taker =
                Taker::Inside(Box::new(Inside::only(sampling, agents == Agents::Beside)));
            return Ok(engine);
        }
        match Perf::open(sampling) {
            Ok(perf) => {
                engine.fallbacks.extend(perf.small_buffers().map(small));
                engine.taker = Taker::Perf(Box::new(perf));
            }
            Err(refusal) if engine.may_change => engine.fall_back(&refusal),
            Err(refusal) => return Err(refusal),
        }
        Ok(engine)
    }

    /// Without perf events: the agents, and ptrace where there are none.
    fn fall_back(&mut self, refusal: &Refusal) {
        // A program that we start may be traced, and carries no agent unless that was requested.
        // Waiting threads are seen with the permissions needed for tracing.
        if self.sampling.children || self.waiting.is_some() {
            let missed = if self.sampling.children { MISSED } else { "" };
            self.fallbacks.push(format!("{refusal}; {STOPPED}{missed}"));
            self.taker = Taker::Ptrace(Box::new(Ptrace::new(self.sampling)));
        } else {
            let inside = Inside::instead(self.sampling, self.agents == Agents::Beside, refusal);
            self.taker = Taker::Inside(Box::new(inside));
        }
    }

    /// What it samples is written in a format that has no lines of Python.
    pub fn leave_lines_out(&mut self) {
        self.wants_lines = false;
    }

    /// What has to be said that was not said yet.
    pub fn news(&mut self) -> Vec<String> {
        let news = self.fallbacks[self.told..].to_vec();
        self.told = self.fallbacks.len();
        news
    }

    /// The processes that could not be sampled, by the reason. Not those that never noticed: short
    /// programs do not.
    pub fn refusals(&self) -> BTreeMap<&str, Vec<i32>> {
        let mut all: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
        let troubles = self.closed.iter().flat_map(|closed| &closed.troubles);
        for (pid, why) in troubles {
            if Trouble::Unnoticed.reason() != Some(why) {
                all.entry(why).or_default().push(*pid);
            }
        }
        all
    }

    /// Why nothing was sampled of a process, if that is known.
    pub fn trouble(&self, pid: i32) -> Option<&str> {
        let closed = self.closed.as_ref()?;
        closed.troubles.get(&pid).map(String::as_str)
    }

    /// Takes in what the program that is about to be started samples by itself, if it does.
    pub fn follow_agents(&mut self, discovery: Discovery) {
        if let Taker::Inside(inside) = &mut self.taker {
            inside.timers.follow(discovery);
        }
    }

    /// Makes agents end their sessions some time after this, if nobody else does.
    pub fn limit(&mut self, length: Option<Duration>) {
        if let Taker::Inside(inside) = &mut self.taker {
            inside.timers.limit(length);
        }
    }

    /// Whether agents sample.
    pub fn is_inside(&self) -> bool {
        matches!(self.taker, Taker::Inside(_))
    }

    /// Reads what takes long before a process is sampled.
    pub fn prepare(&self, pid: i32, recording: &mut Recording) {
        if matches!(self.taker, Taker::Perf(_)) {
            recording.prepare(pid);
        }
    }

    /// Samples these processes, the first time all that run already; returns those that cannot be,
    /// with the reason.
    pub fn attach(&mut self, pids: &[i32], recording: &mut Recording) -> Vec<(i32, Refusal)> {
        if self.prefer_lines(pids, recording) {
            return Vec::new();
        }
        let mut refused = Vec::new();
        for &pid in pids {
            if let Some(refusal) = Refusal::of_program(pid) {
                refused.push((pid, refusal));
                continue;
            }
            let attached = match &mut self.taker {
                Taker::Perf(perf) => perf.attach(pid, recording),
                Taker::Ptrace(ptrace) => ptrace.attach(pid),
                Taker::Inside(inside) => inside.attach(pid, &mut self.fallbacks),
                Taker::Nothing => Ok(()),
            };
            let waiting = self.waiting.as_mut();
            let attached = attached.and_then(|()| waiting.map_or(Ok(()), |w| w.attach(pid)));
            match attached {
                Ok(()) => {}
                Err(refusal) if self.may_change && refusal.is_of_engine() => {
                    self.fall_back(&refusal);
                    self.may_change = false;
                    return self.attach(pids, recording);
                }
                Err(refusal) => refused.push((pid, refusal)),
            }
        }
        refused
    }

    /// Agents see the lines of Python that processes run, and perf events do not: where all of them
    /// run it, and their agents can sample, the agents do. Whether they sample now.
    fn prefer_lines(&mut self, pids: &[i32], recording: &mut Recording) -> bool {
        let may = self.may_change
            && self.wants_lines
            && self.waiting.is_none()
            && !self.sampling.children;
        if !may || !matches!(self.taker, Taker::Perf(_)) || !name_lines(pids) {
            return false;
        }
        let mut inside = Inside::with_lines(self.sampling, self.agents == Agents::Beside);
        let asked = pids.iter().try_for_each(|pid| inside.timers.attach(*pid));
        if let Err(refusal) = asked {
            self.fallbacks.push(format!("{refusal}{NO_LINES}"));
            pids.iter()
                .for_each(|pid| inside.timers.release(*pid, recording));
            return false;
        }
        let who = match pids {
            [pid] => format!("process {pid} runs Python"),
            pids => format!("{} processes run Python", pids.len()),
        };
        self.fallbacks.push(format!("{who}{FOR_LINES}"));
        let perf = std::mem::replace(&mut self.taker, Taker::Inside(Box::new(inside)));
        if let Taker::Perf(perf) = perf {
            self.reserve = Some(perf);
        }
        self.may_change = false;
        true
    }

    /// Perf events in the place of agents that were chosen for their lines and cannot sample.
    fn give_up_lines(&mut self, recording: &mut Recording) {
        let Taker::Inside(inside) = &mut self.taker else {
            return;
        };
        let troubled = inside.timers.troubled();
        let Some((pid, why)) = troubled.first() else {
            return;
        };
        let why = why.reason().unwrap_or_default();
        if let Some(mut perf) = self.reserve.take() {
            self.fallbacks
                .push(format!("process {pid}: {why}{NO_LINES}"));
            for pid in inside.timers.pids() {
                inside.timers.release(pid, recording);
                let late = "perf events took over during the session".to_owned();
                self.late.insert(pid, late);
                let begun = recording.process(pid).map(|process| process.begun());
                if let Err(refusal) = perf.attach(pid, recording) {
                    self.fallbacks.push(refusal.to_string());
                }
                // What it has used since has no sample, and is known.
                if let (Some(process), Some(begun)) = (recording.process(pid), begun) {
                    process.begin(begun);
                }
            }
            self.taker = Taker::Perf(perf);
        }
    }

    /// Samples what this thread is about to start. Whether the program must be attached once it
    /// runs.
    pub fn attach_children(&mut self) -> Result<bool, Refusal> {
        match &mut self.taker {
            Taker::Perf(perf) => perf.attach_children().map(|()| false),
            // It begins by itself.
            Taker::Inside(_) => Ok(false),
            Taker::Ptrace(_) | Taker::Nothing => Ok(true),
        }
    }

    /// Its name in profiles.
    pub fn name(&self) -> String {
        if let Some(closed) = &self.closed {
            return closed.name.clone();
        }
        let name = match &self.taker {
            Taker::Perf(_) => "perf_event",
            Taker::Ptrace(_) => "ptrace",
            Taker::Inside(inside) => inside.name(),
            Taker::Nothing => return "/proc".to_owned(),
        };
        match self.waiting {
            Some(_) => format!("{name} + /proc"),
            None => name.to_owned(),
        }
    }

    /// What profiles say of it.
    pub fn facts(&self, mode: Mode) -> format::Sampling {
        format::Sampling {
            engine: self.name(),
            mode,
            rate: self.sampling.rate,
            process_ns: None,
            lost: self.lost(),
            kernel_hidden: self.kernel_hidden(),
            fallbacks: self.fallbacks.clone(),
        }
    }

    /// Why the kernel's part is not seen, if it is not.
    pub fn kernel_hidden(&self) -> Option<String> {
        if let Some(closed) = &self.closed {
            return closed.kernel_hidden.clone();
        }
        match &self.taker {
            Taker::Perf(perf) if perf.sees_kernel() => None,
            Taker::Perf(_) => Some(format!(
                "kernel.perf_event_paranoid is {}: {}, or set it to 1",
                proc::setting("perf_event_paranoid").unwrap_or(2),
                cpu::get_right("run as root or with CAP_PERFMON", "CAP_PERFMON")
            )),
            Taker::Ptrace(_) => Some("ptrace does not see the kernel".to_owned()),
            Taker::Inside(_) => Some(ONLY_ITSELF.to_owned()),
            Taker::Nothing => None,
        }
    }

    /// Samples that the kernel had no room for, where it is not known whose they were.
    pub fn lost(&self) -> u64 {
        if let Some(closed) = &self.closed {
            return closed.lost;
        }
        match &self.taker {
            Taker::Perf(perf) => perf.lost,
            Taker::Ptrace(_) | Taker::Inside(_) | Taker::Nothing => 0,
        }
    }

    /// What becomes readable before [`collect`](Self::collect) is due.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        match &self.taker {
            Taker::Perf(perf) => perf.descriptors().collect(),
            Taker::Ptrace(_) | Taker::Inside(_) | Taker::Nothing => Vec::new(),
        }
    }

    /// The longest time until it is due.
    pub fn pause(&self) -> Duration {
        let pause = match &self.taker {
            Taker::Perf(perf) => perf.due(),
            Taker::Nothing => super::ROUND,
            Taker::Ptrace(ptrace) => ptrace.due(),
            Taker::Inside(inside) => inside.due(),
        };
        let waiting = self.waiting.as_ref();
        waiting.map_or(pause, |waiting| waiting.due().min(pause))
    }

    /// Records what was sampled since the last time.
    pub fn collect(&mut self, recording: &mut Recording) {
        match &mut self.taker {
            Taker::Perf(perf) => perf.collect(recording),
            Taker::Ptrace(ptrace) => ptrace.collect(recording),
            Taker::Inside(inside) => {
                inside.collect(recording, &mut self.fallbacks);
                if self.reserve.is_some() {
                    self.give_up_lines(recording);
                }
            }
            Taker::Nothing => {
                if self.looked.is_none_or(|at| at.elapsed() >= super::ROUND) {
                    self.looked = Some(Instant::now());
                    for pid in recording.look() {
                        recording.ended(pid);
                    }
                }
            }
        }
        if let Some(waiting) = &mut self.waiting {
            waiting.collect(recording);
        }
    }

    /// The same, with all that processes have counted by themselves, for live views. Why this one
    /// is not sampled, if that is known.
    pub fn show(&mut self, recording: &mut Recording, pid: i32) -> Option<String> {
        self.collect(recording);
        match &mut self.taker {
            Taker::Perf(perf) => perf.show(recording),
            Taker::Inside(inside) => {
                inside.timers.show(recording);
                return inside.timers.trouble(pid);
            }
            Taker::Ptrace(_) | Taker::Nothing => {}
        }
        None
    }

    /// Ends it: counts what has no sample yet, and lets go of the processes.
    pub fn finish(&mut self, recording: &mut Recording) {
        match &mut self.taker {
            Taker::Perf(perf) => perf.finish(recording),
            Taker::Inside(inside) => inside.timers.finish(recording),
            Taker::Ptrace(_) | Taker::Nothing => {}
        }
        if let Some(waiting) = &mut self.waiting {
            waiting.finish(recording);
        }
        self.close();
    }

    fn take_troubles(&mut self) -> HashMap<i32, String> {
        match (&mut self.taker, &mut self.closed) {
            (Taker::Inside(inside), _) => inside.timers.take_troubles(),
            (_, Some(closed)) => std::mem::take(&mut closed.troubles),
            _ => std::mem::take(&mut self.late),
        }
    }

    /// Closes all events, and lets go of all threads: profiles take time to write, and a program
    /// may keep running for long. What is known of the engine can still be requested.
    pub fn close(&mut self) {
        let closed = Closed {
            name: self.name(),
            lost: self.lost(),
            kernel_hidden: self.kernel_hidden(),
            troubles: self.take_troubles(),
        };
        self.closed = Some(closed);
        self.taker = Taker::Nothing;
        self.reserve = None;
        self.waiting = None;
    }
}

/// What small buffers cost.
fn small((bytes, wanted): (usize, usize)) -> String {
    format!(
        "only {} of {} KiB may be locked for perf's buffers, so samples may be lost: raise \
         kernel.perf_event_mlock_kb or ulimit -l",
        bytes >> 10,
        wanted >> 10
    )
}

/// Whether agents take samples of these processes at this rate rather than what is outside, as far
/// as can be told before a process is attached.
pub fn samples_inside(engine: Option<EngineName>, rate: u32, pids: &[i32]) -> bool {
    let sampling = Sampling {
        rate,
        children: false,
    };
    match engine {
        Some(engine) => engine == EngineName::Timers,
        None => name_lines(pids) || Perf::open(sampling).is_err(),
    }
}

/// Why agents sample where perf events are allowed, and what that costs.
const FOR_LINES: &str = ", whose lines the agent names: instead of perf events, it takes the \
                         samples, by timers and a signal, and time spent in the kernel counts for \
                         the calls that lead there (--engine perf sees the kernel, but no lines of \
                         Python)";
/// What is missing where agents that would name lines cannot sample.
const NO_LINES: &str = "; instead perf events sample it, which see no lines of Python";

/// What is not seen either where children are looked for.
const MISSED: &str = "; processes that end within some milliseconds are missed";

/// What agents do not see.
pub const ONLY_ITSELF: &str = "timers do not see the kernel: time spent there counts for the calls \
                               that lead there";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_engine_is_known_and_samples_nothing() {
        let sampling = Sampling {
            rate: 99,
            children: false,
        };
        let wanted = (Some(EngineName::Ptrace), Mode::Cpu);
        let mut engine = Engine::choose(wanted, sampling, Agents::Asked).unwrap();
        let known = |engine: &Engine| (engine.name(), engine.lost(), engine.kernel_hidden());
        let before = known(&engine);
        assert_eq!(before.0, "ptrace");
        assert!(before.2.is_some());
        engine.close();
        engine.close();
        assert_eq!(known(&engine), before);
        assert!(matches!(engine.taker, Taker::Nothing) && engine.descriptors().is_empty());
    }
}

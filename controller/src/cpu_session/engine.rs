//! Sampling engines behind one interface. The best permitted engine is found by trying.

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

/// Role of the agents in processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agents {
    /// Agents take the samples where no better engine is permitted. Their sessions are started
    /// here.
    Asked,
    /// Like `Asked`, but a heap session of this program starts the agents' sessions.
    Beside,
}

/// Engine in use, and the reasons why better ones are not.
pub struct Engine {
    taker: Taker,
    /// Sampler of waiting threads, if off-CPU time is requested.
    waiting: Option<Waiting>,
    sampling: Sampling,
    /// Opened perf events, in reserve while agents sample for their Python lines.
    reserve: Option<Box<Perf>>,
    /// Processes that the reserve has taken over during the session, with the reason for display.
    late: HashMap<i32, String>,
    /// Reasons why better engines are not used, with the consequences.
    pub fallbacks: Vec<String>,
    /// Number of `fallbacks` that were reported.
    told: usize,
    may_change: bool,
    /// True if the output can hold Python lines.
    wants_lines: bool,
    agents: Agents,
    /// Time of the last check for exited processes. Used only if there is no engine that notices.
    looked: Option<Instant>,
    /// Facts about the engine that are kept after its end.
    closed: Option<Closed>,
}

struct Closed {
    name: String,
    lost: u64,
    kernel_hidden: Option<String>,
    /// Reasons why processes were not sampled, by pid.
    troubles: HashMap<i32, String>,
}

enum Taker {
    Perf(Box<Perf>),
    Ptrace(Box<Ptrace>),
    Inside(Box<Inside>),
    /// Only waiting threads are sampled, or the engine is closed.
    Nothing,
}

impl Engine {
    /// Opens the engine that was requested, or the best that is permitted.
    pub fn choose(
        wanted: Option<EngineName>,
        mode: Mode,
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
                let small = perf.small_buffers();
                let small = small.map(|(bytes, wanted)| describe_small_buffers(bytes, wanted));
                engine.fallbacks.extend(small);
                engine.taker = Taker::Perf(Box::new(perf));
            }
            Err(refusal) if engine.may_change => engine.fall_back(&refusal),
            Err(refusal) => return Err(refusal),
        }
        Ok(engine)
    }

    /// Replaces refused perf events by the agents, and by ptrace where there are no agents.
    fn fall_back(&mut self, refusal: &Refusal) {
        // A program that we start may always be traced, and carries no agent unless that was
        // requested. Sampling waiting threads needs the same permissions as tracing.
        if self.sampling.children || self.waiting.is_some() {
            let missed = if self.sampling.children { MISSED } else { "" };
            self.fallbacks.push(format!("{refusal}; {STOPPED}{missed}"));
            self.taker = Taker::Ptrace(Box::new(Ptrace::new(self.sampling)));
        } else {
            let inside = Inside::instead(self.sampling, self.agents == Agents::Beside, refusal);
            self.taker = Taker::Inside(Box::new(inside));
        }
    }

    /// Tells the engine that the output format has no Python lines.
    pub fn leave_lines_out(&mut self) {
        self.wants_lines = false;
    }

    /// Returns the fallbacks that were not reported yet.
    pub fn news(&mut self) -> Vec<String> {
        let news = self.fallbacks[self.told..].to_vec();
        self.told = self.fallbacks.len();
        news
    }

    /// Returns the processes that could not be sampled, by reason. Excludes those that never
    /// noticed the session, since short programs do not.
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

    /// Returns the reason why a process was not sampled, if it is known.
    pub fn trouble(&self, pid: i32) -> Option<&str> {
        let closed = self.closed.as_ref()?;
        closed.troubles.get(&pid).map(String::as_str)
    }

    /// Tells the agents' engine where the program that is about to be started will put its segments.
    pub fn follow_agents(&mut self, discovery: Discovery) {
        if let Taker::Inside(inside) = &mut self.taker {
            inside.timers.follow(discovery);
        }
    }

    /// Sets the length after which agents end their sessions by themselves if no controller does.
    pub fn limit(&mut self, length: Option<Duration>) {
        if let Taker::Inside(inside) = &mut self.taker {
            inside.timers.limit(length);
        }
    }

    /// Returns true if the agents take the samples.
    pub fn is_inside(&self) -> bool {
        matches!(self.taker, Taker::Inside(_))
    }

    /// Does the slow part of preparing a process before its sampling starts.
    pub fn prepare(&self, pid: i32, recording: &mut Recording) {
        if matches!(self.taker, Taker::Perf(_)) {
            recording.prepare(pid);
        }
    }

    /// Starts sampling these processes. Returns those that cannot be sampled, with the reason. The
    /// first call has to name all requested processes, since it may still change the engine.
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

    /// Lets the agents sample instead of perf events if all processes run Python and have agents
    /// that can sample: agents see Python lines, and perf events do not. Returns true if the agents
    /// sample now.
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

    /// Switches from the agents back to perf events if an agent that was chosen for its Python
    /// lines cannot sample.
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
                // CPU time between the start and now is known, but has no samples.
                if let (Some(process), Some(begun)) = (recording.process(pid), begun) {
                    process.begin(begun);
                }
            }
            self.taker = Taker::Perf(perf);
        }
    }

    /// Prepares to sample the program that this thread is about to start. Returns true if the
    /// program must be attached once it runs.
    pub fn attach_children(&mut self) -> Result<bool, Refusal> {
        match &mut self.taker {
            Taker::Perf(perf) => perf.attach_children().map(|()| false),
            // The program's agent starts its session by itself.
            Taker::Inside(_) => Ok(false),
            Taker::Ptrace(_) | Taker::Nothing => Ok(true),
        }
    }

    /// Returns the engine's name for profiles.
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

    /// Returns the facts about sampling that profiles hold.
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

    /// Explains why kernel frames are not visible; `None` if they are.
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

    /// Returns the number of samples that the kernel dropped and that belong to no known process.
    pub fn lost(&self) -> u64 {
        if let Some(closed) = &self.closed {
            return closed.lost;
        }
        match &self.taker {
            Taker::Perf(perf) => perf.lost,
            Taker::Ptrace(_) | Taker::Inside(_) | Taker::Nothing => 0,
        }
    }

    /// Returns descriptors that become readable when [`collect`](Self::collect) should be called
    /// early.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        match &self.taker {
            Taker::Perf(perf) => perf.descriptors().collect(),
            Taker::Ptrace(_) | Taker::Inside(_) | Taker::Nothing => Vec::new(),
        }
    }

    /// Returns the maximum time until the next [`collect`](Self::collect).
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

    /// Records the samples since the last call.
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

    /// Like [`collect`](Self::collect), but also reads the counts of agents and of events so far,
    /// for live views. Returns the reason why process `pid` is not sampled, if that is known.
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

    /// Ends sampling: records the last samples and the time without samples, then closes the
    /// engine.
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

    /// Closes all events and detaches from all threads, because profiles take time to write and a
    /// program may run on for long. The engine's facts stay available.
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

/// Formats the message about perf buffers that are smaller than wanted, both in bytes.
fn describe_small_buffers(bytes: usize, wanted: usize) -> String {
    format!(
        "only {} of {} KiB may be locked for perf's buffers, so samples may be lost: raise \
         kernel.perf_event_mlock_kb or ulimit -l",
        bytes >> 10,
        wanted >> 10
    )
}

/// Predicts whether the agents will take the samples of these processes, as far as that is known
/// before attaching.
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

/// Message: agents sample although perf events are permitted.
const FOR_LINES: &str = ", whose lines the agent names: sampled by timers, with time in the kernel under its callers (--engine perf: the kernel, no lines)";
/// Message: perf events sample because agents that see Python lines cannot.
const NO_LINES: &str = "; instead perf events sample it, which see no lines of Python";

/// Message: ptrace misses short-lived children.
const MISSED: &str = "; processes that end within some milliseconds are missed";

/// Message: agents do not see kernel frames.
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
        let wanted = Some(EngineName::Ptrace);
        let mut engine = Engine::choose(wanted, Mode::Cpu, sampling, Agents::Asked).unwrap();
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

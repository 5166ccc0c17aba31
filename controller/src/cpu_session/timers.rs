//! The engine inside: the agent in each process gives its threads timers and counts in its segment,
//! from which stacks are read in the end, whether the process is still there or not, and before that
//! for who watches.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use cpu::space::Range;
use cpu::stacks::{Count, Stacks};
use cpu::{Process, Recording, Refusal};
use shm_protocol::cpu::{CpuSetting, CpuState};
use shm_protocol::layout::BANK_HEADER_BYTES;
use shm_protocol::snapshot::CpuView;

use super::signals::{self, Blocked};
use crate::collect;
use crate::discovery::{Agent, Discovery, Found, Life};
use crate::dump;
use crate::family::Family;
use crate::launch::FILTERS_VARIABLE;
use crate::process;
use crate::segment::{Entry, Head};
use crate::snapshot::Snapshot;
use crate::target::{Deadline, Density, Look, RENEWAL, Target, is_running, uncollected};
use crate::terminal;

/// Delay after the stop, in which samples in progress are still counted.
const SETTLE: Duration = Duration::from_millis(5);
/// How much longer than its length a session may go on if nobody ends it.
const GRACE: Duration = Duration::from_secs(1);
/// CPU time that a process may use without noticing that it is to sample itself.
const UNNOTICED: u64 = 300_000_000;

/// Why a program that we started has no samples, if its agent never began.
const NOT_LOADED: &str = "it has not loaded the agent: it is linked statically, or for another \
                          machine or C library, or it has other rights than whoever starts it. \
                          Without --engine timers it is sampled from outside";

/// What becomes of a process that was attached and executes another program.
const EXECUTED: &str = "has executed another program, and its timers are gone: what it does from now \
                        on is not sampled. Sample it anew, or start it with mem_profiler cpu run \
                        --engine timers, which goes on with such programs";

/// What has become of a process that samples itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// None that is known.
    None,
    /// It has used CPU time and not noticed the session.
    Unnoticed,
    /// It cannot sample itself, for this reason.
    Refused(String),
}

impl Trouble {
    /// The same for people, if there is any.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::None => None,
            Self::Unnoticed => Some(
                "none of its threads has allocated memory since the session began, and its agent \
                 notices a session when one does",
            ),
            Self::Refused(why) => Some(why),
        }
    }
}

/// A process that samples itself.
struct Member {
    target: Target,
    pid: i32,
    counted: CpuView,
    /// Its CPU time when the session began.
    clock: u64,
    /// The program that it ran then.
    exe: Option<Vec<u8>>,
    blocked: (Blocked, u64),
}

impl Member {
    fn of(target: Target) -> Self {
        let pid = target.agent.pid;
        Self {
            counted: CpuView::default(),
            clock: cpu::proc::cpu_ns(pid).unwrap_or(0),
            exe: process::exe(pid),
            blocked: (Blocked::new(), 0),
            pid,
            target,
        }
    }

    /// Whether its process runs another program by now.
    fn has_executed(&self) -> bool {
        let exe = process::exe(self.pid);
        exe.is_some() && exe != self.exe && self.target.agent.confirm().is_err()
    }

    /// Why it makes no timers under seccomp filters.
    fn filtered(&self) -> String {
        let mut head = Head::new();
        let header = self.target.agent.segment.head(&mut head);
        let inherited = header.map_or(0, |header| header.seccomp().1);
        let why = "the agent makes no system call that a filter may not expect";
        match inherited {
            0 => format!("it is under a seccomp filter, and {why}"),
            1 => format!(
                "it was started under a seccomp filter, and {why}; if it lets timers pass, as those \
                 of Docker and Kubernetes do, start it with {FILTERS_VARIABLE}=1"
            ),
            n => format!(
                "it was started under {n} seccomp filters, and {why}; if they let timers pass, start \
                 it with {FILTERS_VARIABLE}={n}"
            ),
        }
    }

    /// Reads what it has counted, all of it.
    fn read(&mut self, recording: &mut Recording) -> anyhow::Result<()> {
        let target = &self.target;
        let mut head = Head::new();
        let header = target.agent.segment.full_head(&mut head)?;
        let snapshot = dump::snapshot(&target.agent, &target.session, &header)?;
        if let Some(process) = recording.process(self.pid) {
            let maps = process::maps(self.pid).unwrap_or_default();
            process.stacks = Stacks::default();
            fill(process, &snapshot, &header, &maps);
            process.used(snapshot.cpu_totals.process_ns);
            process.used(target.cpu_clock().unwrap_or(0));
        }
        self.counted = snapshot.cpu_totals;
        Ok(())
    }

    fn trouble(&self) -> Trouble {
        let refused = |why: &str| Trouble::Refused(why.to_owned());
        match self.counted.state {
            CpuState::Armed | CpuState::Disarmed
                if self.blocked.1 > 0 && self.counted.samples == 0 =>
            {
                let signal = self.counted.signal;
                refused(&blocked(self.blocked.1, signal))
            }
            CpuState::Armed | CpuState::Disarmed => Trouble::None,
            CpuState::Unnoticed => {
                let now = cpu::proc::cpu_ns(self.pid).unwrap_or(0);
                match now.saturating_sub(self.clock) > UNNOTICED {
                    true => Trouble::Unnoticed,
                    false => Trouble::None,
                }
            }
            CpuState::Filtered => Trouble::Refused(self.filtered()),
            CpuState::NoSignal => refused("it uses or blocks every real-time signal"),
            CpuState::SignalTaken => Trouble::Refused(format!(
                "the program has begun to use signal {} itself, which the timers had",
                self.counted.signal
            )),
            CpuState::Failed => {
                let error = std::io::Error::from_raw_os_error(self.counted.errno.cast_signed());
                Trouble::Refused(format!("the kernel gives it no timers: {error}"))
            }
        }
    }
}

/// The engine.
pub struct Timers {
    rate: u32,
    members: Vec<Member>,
    /// Agents that were found, before a process is attached.
    found: Option<Vec<Found>>,
    /// Where the processes of a program that we start are looked for.
    family: Option<(Discovery, Family, HashSet<Entry>)>,
    renewal: Instant,
    /// Why there are no samples of processes that are over.
    troubles: HashMap<i32, String>,
    /// Processes of the program that we start whose agents began.
    begun: HashSet<i32>,
    /// Those that ended before that was seen.
    unbegun: HashSet<i32>,
    /// Whether the sessions are another's, which began them with ours.
    beside: bool,
    is_used: bool,
    /// When the session ends; `None`: that is not known.
    end: Option<Instant>,
}

impl Timers {
    /// For processes that carry the agent.
    pub fn new(rate: u32, beside: bool) -> Self {
        Self {
            rate,
            members: Vec::new(),
            found: None,
            family: None,
            renewal: Instant::now() + RENEWAL,
            troubles: HashMap::new(),
            begun: HashSet::new(),
            unbegun: HashSet::new(),
            beside,
            is_used: false,
            end: None,
        }
    }

    /// Lets sessions end by themselves some time after this.
    pub fn limit(&mut self, length: Option<Duration>) {
        self.end = length.map(|length| Instant::now() + length + GRACE);
    }

    /// When sessions end by themselves, as segments hold it.
    fn deadline(&self) -> u64 {
        let left = |end: Instant| end.saturating_duration_since(Instant::now());
        Deadline::ns_after(self.end.map(left))
    }

    /// Takes in what a program that we start, and its children, sample by themselves.
    pub fn follow(&mut self, discovery: Discovery) {
        self.is_used = true;
        self.family = Some((discovery, Family::new(), HashSet::new()));
    }

    /// Has a process sample itself from now on.
    pub fn attach(&mut self, pid: i32) -> Result<(), Refusal> {
        let refused = |why: String| Refusal::Agent { pid, why };
        let found = self
            .found
            .get_or_insert_with(|| Discovery::new().scan().found);
        let is_it = |found: &&Found| found.pid == pid && found.life == Life::Running;
        let Some(found) = found.iter().find(is_it) else {
            return Err(refused(
                "it was not started with the agent (mem_profiler cpu run --engine timers -- COMMAND \
                 does that)"
                    .to_owned(),
            ));
        };
        let agent = found.clone().open();
        let agent = agent.map_err(|error| refused(error.to_string()))?;
        let target = match self.beside {
            true => self.share(agent),
            false => self.begin(agent),
        };
        let target = target.map_err(|error| refused(error.to_string()))?;
        self.members.push(Member::of(target));
        self.is_used = true;
        Ok(())
    }

    fn begin(&self, agent: Agent) -> anyhow::Result<Target> {
        let mut head = Head::new();
        let header = agent.segment.head(&mut head)?;
        if is_running(&header) {
            anyhow::bail!(
                "a session of it is running: mem_profiler stop -p {} ends it",
                agent.pid
            );
        }
        if let Some(session) = uncollected(&agent, &header) {
            anyhow::bail!(
                "the heap profile of its session {} is not written yet: mem_profiler dump -p {} does \
                 that",
                session.number,
                agent.pid
            );
        }
        let mut target = Target::take(agent)?;
        target.session.cpu = setting(self.rate, target.agent.pid);
        target.prepare(Density::uniform(0))?;
        target.publish(self.deadline())?;
        Ok(target)
    }

    /// The session that the one beside has begun.
    fn share(&self, agent: Agent) -> anyhow::Result<Target> {
        let mut head = Head::new();
        let session = agent.segment.head(&mut head)?.session();
        let session = session.filter(|session| session.cpu.rate == u64::from(self.rate));
        match session {
            Some(session) => Ok(Target::share(agent, session)?),
            None => anyhow::bail!("its session is over"),
        }
    }

    /// What keeps processes from being sampled.
    pub fn troubled(&self) -> Vec<(i32, Trouble)> {
        let all = self.members.iter().map(|m| (m.pid, m.trouble()));
        all.filter(|(_, trouble)| *trouble != Trouble::None)
            .collect()
    }

    /// Why nothing was sampled of processes.
    pub fn take_troubles(&mut self) -> HashMap<i32, String> {
        std::mem::take(&mut self.troubles)
    }

    /// Whether any process has sampled itself.
    pub fn is_used(&self) -> bool {
        self.is_used
    }

    /// Lets a process go that another engine samples from now on.
    pub fn release(&mut self, pid: i32, recording: &mut Recording) {
        if let Some(at) = self.members.iter().position(|member| member.pid == pid) {
            let member = self.members.swap_remove(at);
            self.stop(&member);
            self.take_in(member, recording);
        }
    }

    /// Looks after the sessions, and notes how far they are.
    pub fn collect(&mut self, recording: &mut Recording) {
        if Instant::now() >= self.renewal && !self.beside && self.end.is_none() {
            self.renewal = Instant::now() + RENEWAL;
            for member in &mut self.members {
                // At its end it is read all the same.
                let _ = member.target.publish(Deadline::ns_after(None));
            }
        }
        self.adopt(recording);
        let mut at = 0;
        while at < self.members.len() {
            let member = &mut self.members[at];
            let looked = member.target.look();
            for warning in member.target.take_warnings() {
                terminal::warning(&warning);
            }
            match looked {
                // What a program that we start executes goes on by itself.
                Ok(_) if self.family.is_none() && member.has_executed() => {
                    member.target.agent.life = Life::Replaced;
                    let title = member.target.agent.title();
                    terminal::warning(&format!("{title} {EXECUTED}"));
                    self.over(at, recording);
                }
                Ok(Look::Counting | Look::Stopped) => {
                    note(member, recording);
                    at += 1;
                }
                Ok(Look::Dead) => self.over(at, recording),
                Err(error) => {
                    let member = self.members.swap_remove(at);
                    self.troubles
                        .insert(member.pid, format!("its segment became unusable: {error}"));
                }
            }
        }
        for pid in recording.look() {
            if !self.members.iter().any(|member| member.pid == pid) {
                if !is_foreign(recording, pid) {
                    self.unbegun.insert(pid);
                }
                recording.ended(pid);
            }
        }
    }

    /// A member's process is gone.
    fn over(&mut self, at: usize, recording: &mut Recording) {
        let member = self.members.swap_remove(at);
        let pid = member.pid;
        self.take_in(member, recording);
        recording.ended(pid);
    }

    /// Takes in sessions that agents of the program's processes began by themselves.
    fn adopt(&mut self, recording: &mut Recording) {
        let Some((discovery, family, known)) = &mut self.family else {
            return;
        };
        if nix::unistd::geteuid().is_root() {
            family.look();
        }
        if !discovery.has_new(known) {
            return;
        }
        let scan = discovery.scan_except(known);
        known.extend(&scan.settled);
        let mut new = Vec::new();
        for found in scan.found {
            let (entry, life) = (found.entry, found.life);
            if !family.has(&found) {
                if life != Life::Running {
                    known.insert(entry);
                }
                continue;
            }
            // `None`: not begun yet, or it is gone; the next search asks again.
            if let Ok(Some(target)) = found.open().map_or(Ok(None), Target::adopt) {
                known.insert(entry);
                new.push(target);
            }
        }
        for target in new {
            self.adopted(target, recording);
        }
    }

    fn adopted(&mut self, mut target: Target, recording: &mut Recording) {
        if target.agent.life == Life::Running {
            // If nobody is there any more to end it, it ends by itself. Where it cannot be told so,
            // its process has ended.
            let _ = target.publish(Deadline::ns_after(None));
        }
        let pid = target.agent.pid;
        self.begun.insert(pid);
        if let Some(at) = self.members.iter().position(|member| member.pid == pid) {
            // It executes another program by now.
            let mut earlier = self.members.swap_remove(at);
            earlier.target.agent.life = Life::Replaced;
            self.take_in(earlier, recording);
            recording.executed(pid);
        } else if recording.process(pid).is_none() {
            recording.add_newborn(pid);
        }
        let is_over = target.agent.life != Life::Running;
        let mut member = Member::of(target);
        member.clock = 0;
        self.members.push(member);
        if is_over {
            self.over(self.members.len() - 1, recording);
        }
    }

    /// Ends all sessions, and takes in what they counted.
    pub fn finish(&mut self, recording: &mut Recording) {
        self.adopt(recording);
        if self.family.is_some() {
            let all = self.unbegun.drain().chain(recording.pids());
            let could = all.filter(|pid| !self.begun.contains(pid));
            for pid in could.filter(|pid| !is_foreign(recording, *pid)) {
                self.troubles.insert(pid, NOT_LOADED.to_owned());
            }
        }
        self.members.iter().for_each(|member| self.stop(member));
        std::thread::sleep(SETTLE);
        for member in std::mem::take(&mut self.members) {
            self.take_in(member, recording);
        }
    }

    fn stop(&self, member: &Member) {
        if self.beside {
            return;
        }
        if let Err(error) = member.target.stop() {
            terminal::warning(&format!("{}: {error}", member.target.agent.title()));
        }
    }

    /// What keeps a process from being sampled, if that is known.
    pub fn trouble(&self, pid: i32) -> Option<String> {
        let member = self.members.iter().find(|member| member.pid == pid);
        match member {
            Some(member) => member.trouble().reason().map(str::to_owned),
            None => self.troubles.get(&pid).cloned(),
        }
    }

    /// Takes in what the processes have counted so far, for who shows it while they run.
    pub fn show(&mut self, recording: &mut Recording) {
        for member in &mut self.members {
            if let Err(error) = member.read(recording) {
                self.troubles.insert(member.pid, error.to_string());
            }
        }
    }

    /// Reads what a process has counted, and gives its segment back.
    fn take_in(&mut self, mut member: Member, recording: &mut Recording) {
        member.target.settle_life();
        let pid = member.pid;
        if let Err(error) = member.read(recording) {
            self.troubles.insert(pid, error.to_string());
        }
        let trouble = match member.counted.state {
            // However little time it used: this is why there is nothing.
            CpuState::Unnoticed => Trouble::Unnoticed,
            _ => member.trouble(),
        };
        if let Some(why) = trouble.reason() {
            self.troubles.insert(pid, why.to_owned());
        }
        if !self.beside
            && let Err(error) = member.target.release()
        {
            let path = crate::text::path(member.target.agent.segment.path());
            terminal::warning(&format!("{path}: {error}"));
        }
    }
}

/// Whether a process runs another machine's program, of which the recording tells.
fn is_foreign(recording: &mut Recording, pid: i32) -> bool {
    let process = recording.process(pid);
    process.is_some_and(|process| process.foreign().is_some())
}

/// What is asked of a process: signals that it uses are not to be touched.
pub fn setting(rate: u32, pid: i32) -> CpuSetting {
    CpuSetting {
        rate: rate.into(),
        avoid: signals::in_use(pid),
    }
}

/// Notes how far a process is, for who watches the session.
fn note(member: &mut Member, recording: &mut Recording) {
    let (segment, number) = (&member.target.agent.segment, member.target.session.number);
    let mut buffer = [0; BANK_HEADER_BYTES];
    let Ok(bank) = segment.bank(number, &mut buffer) else {
        return;
    };
    member.counted = bank.cpu();
    if let Some(process) = recording.process(member.pid) {
        count(process, &member.counted);
        let time = (process.cpu_ns(), process.counts.ns);
        let whose = (member.pid, member.counted.signal);
        member.blocked.1 = member.blocked.0.most(whose, time);
        process.counts.blocked = member.blocked.1;
    }
}

/// Why there are no samples of threads.
fn blocked(threads: u64, signal: u32) -> String {
    let (who, block) = match threads {
        1 => ("a thread".to_owned(), "blocks"),
        n => (format!("{n} threads"), "block"),
    };
    format!("{who} of it {block} signal {signal}, which the timers use")
}

fn count(process: &mut Process, counted: &CpuView) {
    let counts = &mut process.counts;
    counts.samples = counted.samples.saturating_add(counted.full_samples);
    counts.ns = counted.ns.saturating_add(counted.full_ns);
    counts.table_full = counted.full_samples;
    counts.truncated = counted.truncated;
    counts.lost = counted.overruns.saturating_add(counted.postponed);
}

/// Takes a process's stacks and modules out of its segment. `maps`: what it maps, while it is there.
pub fn fill(
    process: &mut Process,
    snapshot: &Snapshot,
    header: &shm_protocol::snapshot::Header<'_>,
    maps: &[u8],
) {
    let (modules, relocations) = collect::modules(header, maps);
    for module in modules {
        use std::os::unix::ffi::OsStrExt;
        let range = Range::of_module(
            (module.start, module.end),
            module.file_offset,
            module.path.as_os_str().as_bytes(),
            &module.build_id.0,
        );
        process.space.replace(range);
    }
    let threads: Vec<u32> = (snapshot.thread_entries.iter())
        .map(|thread| process.named_thread(thread.tid.cast_signed(), thread.name()))
        .collect();
    let mut frames = Vec::new();
    let mut sum = Count::default();
    for record in &snapshot.cpu {
        let Some((samples, ns)) = record.cpu() else {
            continue;
        };
        let end = snapshot.stack(record.node, &mut frames);
        for frame in &mut frames {
            *frame = relocations.shown(*frame).wrapping_sub(1);
        }
        if !end.whole {
            frames.push(cpu::recording::TRUNCATED);
        }
        let thread = end.thread.and_then(|index| threads.get(index as usize));
        let count = Count { samples, ns };
        let outermost_first = frames.iter().rev().copied();
        process
            .stacks
            .add(thread.copied().unwrap_or(0), outermost_first, count);
        sum.samples = sum.samples.saturating_add(samples);
        sum.ns = sum.ns.saturating_add(ns);
    }
    let mut counted = snapshot.cpu_totals;
    // A hostile process may have told anything; these are what the stacks add up to.
    (counted.samples, counted.ns) = (sum.samples, sum.ns);
    if counted.full_samples > 0 {
        let count = Count {
            samples: counted.full_samples,
            ns: counted.full_ns,
        };
        let frame = std::iter::once(cpu::recording::TABLE_FULL);
        process.stacks.add(0, frame, count);
    }
    count(process, &counted);
}

//! One process in a session: taking it, starting it, watching it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use shm_protocol::Geometry;
use shm_protocol::clock::unix_ns;
use shm_protocol::layout::{
    BANK_HEADER_BYTES, HEADER_BYTES, MAX_SEGMENT_BYTES, MIN_SEGMENT_BYTES, Node, REFUSES_SANITIZER,
    REFUSES_SECCOMP, RESERVE_STEPS, Record,
};
use shm_protocol::segment::Session;
use shm_protocol::snapshot::{Header, Totals};

use crate::claims::Claims;
use crate::clock::now_ns;
use crate::discovery::{Agent, Life};
use crate::ended::Fate;
use crate::governor::{self, Governor, Reading, Step};
use crate::process::{self, Stat};
use crate::segment::{Head, Refusal, io_error};
use crate::text;

/// Part of the address space that a process has left which sampled objects may reserve.
const RANGE_SHARE: u64 = 16;
/// Parts of a table that have memory behind them at first, of [`RESERVE_STEPS`].
const FIRST_STEPS: u8 = 4;
/// How long a session without an end outlives its controller.
pub const ROLLING: Duration = Duration::from_secs(60);
/// How long a process may take from its last destructor to its end.
const LAST_MOMENTS: Duration = Duration::from_millis(500);
/// How often such a session is prolonged.
pub const RENEWAL: Duration = Duration::from_secs(20);

/// When a session ends. A rolling end is kept odd, a fixed one even, so that others can
/// tell "42 s left" from "until it is stopped".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Never: the agent started it by itself.
    Never,
    /// At this time of the segment's clock.
    At(u64),
    /// When its controller is told to, or has been dead until this time.
    Rolling(u64),
}

impl End {
    /// Reads a deadline.
    pub fn of(deadline_ns: u64) -> Self {
        match deadline_ns {
            0 => Self::Never,
            ns if ns % 2 == 1 => Self::Rolling(ns),
            ns => Self::At(ns),
        }
    }

    /// The deadline of a session that starts or is prolonged now.
    pub fn deadline_ns(length: Option<Duration>) -> u64 {
        let ns = |d: Duration| now_ns().saturating_add(d.as_nanos().min(u64::MAX.into()) as u64);
        length.map_or_else(|| ns(ROLLING) | 1, |length| (ns(length) & !1).max(2))
    }

    /// For people.
    pub fn left(self) -> String {
        match self {
            Self::Never | Self::Rolling(_) => "until it is stopped".to_owned(),
            Self::At(ns) => {
                let left = Duration::from_nanos(ns.saturating_sub(now_ns()));
                format!("{} left", text::duration(left))
            }
        }
    }
}

/// Whether a session counts at this moment.
pub fn is_running(header: &Header<'_>) -> bool {
    let session = header.session();
    header.epoch() != 0
        && session.is_some_and(|s| s.deadline_ns == 0 || s.deadline_ns > now_ns())
        && session.is_some_and(|s| header.expired().0 != s.number)
}

/// The last session, if nobody wrote it out and it counted something.
pub fn uncollected(agent: &Agent, header: &Header<'_>) -> Option<Session> {
    let session = header
        .session()
        .filter(|s| s.number != header.collected_session())?;
    let mut buffer = [0; BANK_HEADER_BYTES];
    let bank = agent.segment.bank(session.number, &mut buffer).ok()?;
    (bank.session() == session.number && bank.totals().samples > 0).then_some(session)
}

/// What a look at a target showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// It counts.
    Counting,
    /// Somebody turned its session off.
    Stopped,
    /// The process is gone.
    Dead,
}

/// A process in a session.
pub struct Target {
    /// The process.
    pub agent: Agent,
    /// The session; its number is 0 before [`Target::prepare`].
    pub session: Session,
    /// Totals when last looked at.
    pub totals: Totals,
    /// Whether the table grew at the last look.
    pub growing: bool,
    /// Share of the process's CPU time that sampling is to take, if that is limited.
    max_overhead: Option<f64>,
    governor: Option<Governor>,
    warned_helpless: bool,
    warnings: Vec<String>,
    pidfd: Option<OwnedFd>,
    steps: u8,
    full: bool,
    /// Size of the segment with tables.
    segment_bytes: usize,
}

impl Target {
    /// Takes a process for a session: it has the segment mapped, and no other controller
    /// is at it.
    pub fn take(agent: Agent) -> Result<Self, String> {
        agent.confirm()?;
        let pidfd = process::pidfd(agent.pid);
        if !agent
            .segment
            .lock()
            .map_err(|e| format!("its segment cannot be locked: {e}"))?
        {
            return Err(conflict(&agent));
        }
        let session = Session {
            number: 0,
            interval: 0,
            deadline_ns: 0,
            start_ns: 0,
            start_unix_ns: 0,
            controller_pid: u64::from(std::process::id()),
            range_limit: 0,
        };
        let totals = Totals::default();
        let segment_bytes = segment_bytes(&agent)?;
        let target = Self {
            agent,
            session,
            totals,
            growing: false,
            max_overhead: None,
            governor: None,
            warned_helpless: false,
            warnings: Vec::new(),
            pidfd,
            steps: 0,
            full: false,
            segment_bytes,
        };
        match target.is_alive() {
            true => Ok(target),
            false => Err("it ended just now".to_owned()),
        }
    }

    /// Takes over the session that an agent started by itself, or that is left of one. None
    /// while there is no session.
    pub fn adopt(agent: Agent) -> Result<Option<Self>, String> {
        let fail = |what: String| format!("{}: {what}", agent.title());
        let mut head = Head::new();
        let header = agent
            .segment
            .head(&mut head)
            .map_err(|e| fail(e.to_string()))?;
        let mut buffer = [0; BANK_HEADER_BYTES];
        let Some(session) = header.session() else {
            return Ok(None);
        };
        let bank = agent.segment.bank(session.number, &mut buffer);
        let bank = bank.map_err(|e| fail(e.to_string()))?;
        if bank.session() != session.number {
            return Ok(None);
        }
        if !agent.segment.lock().map_err(|e| fail(e.to_string()))? {
            return Err(fail(conflict(&agent)));
        }
        let (totals, steps) = (bank.totals(), bank.reserved_steps());
        let pidfd = (agent.life == Life::Running)
            .then(|| process::pidfd(agent.pid))
            .flatten();
        let segment_bytes = agent.segment.view().bytes();
        Ok(Some(Self {
            agent,
            session,
            totals,
            growing: false,
            max_overhead: None,
            governor: None,
            warned_helpless: false,
            warnings: Vec::new(),
            pidfd,
            steps,
            full: false,
            segment_bytes,
        }))
    }

    /// Limits the share of the process's CPU time that sampling takes, from the next look
    /// on. Nothing to say is no limit.
    #[must_use]
    pub fn limited(mut self, max_overhead: Option<f64>) -> Self {
        self.max_overhead = max_overhead;
        self
    }

    /// Whether the process that we took is still there.
    pub fn is_alive(&self) -> bool {
        if self.agent.life != Life::Running {
            return false;
        }
        match &self.pidfd {
            Some(fd) if process::has_ended(fd) => false,
            // The pidfd may be of a later process of the same pid, so ask once more.
            _ => Stat::of(self.agent.pid).is_some_and(|s| {
                s.start_time == self.agent.segment.name.start_time && !s.is_dead()
            }),
        }
    }

    /// Whether nobody uses the segment any more: the process ended before our eyes, maps
    /// another image's, or is provably gone.
    pub fn is_gone(&self) -> bool {
        match (self.agent.life, &self.pidfd) {
            (Life::Running, _) => false,
            (Life::Dead, Some(fd)) if process::has_ended(fd) => true,
            _ => {
                let start = self.agent.entry.name.start_time;
                Claims::since(start).check(&self.agent).is_ok()
            }
        }
    }

    /// Becomes readable when the process ends.
    pub fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(AsFd::as_fd)
    }

    /// Memory in the shared folder that the start of a session takes.
    pub fn first_bytes(&self) -> u64 {
        let g = Geometry::of_segment(self.segment_bytes);
        let table = g.nodes_in(FIRST_STEPS) as usize * size_of::<Node>()
            + g.records_in(FIRST_STEPS) as usize * size_of::<Record>();
        (HEADER_BYTES + BANK_HEADER_BYTES + g.slots * 4 + table) as u64
    }

    /// Empties a bank for the next session.
    pub fn prepare(&mut self, interval: u64) -> Result<(), String> {
        let mut head = Head::new();
        let header = self
            .agent
            .segment
            .head(&mut head)
            .map_err(|e| e.to_string())?;
        let last = header.session().map_or(0, |s| s.number);
        check_willing(
            &header,
            self.agent.pid,
            self.agent.segment.view().has_tables(),
        )?;
        self.session.range_limit = process::address_space_left(self.agent.pid).map_or(0, |left| {
            // 0 would be no limit.
            (left / RANGE_SHARE).max(1)
        });
        self.session.number = last.checked_add(1).unwrap_or(1);
        self.session.interval = interval;
        self.steps = FIRST_STEPS;
        let segment = &self.agent.segment;
        let prepared = segment.grow(self.segment_bytes as u64).and_then(|()| {
            segment
                .view()
                .prepare_bank(self.session.number, FIRST_STEPS)
        });
        prepared.map_err(|e| self.no_room(&e))
    }

    fn no_room(&self, error: &shm_protocol::segment::Errno) -> String {
        if error.0 != libc::ENOSPC {
            return format!("its segment cannot be prepared: {}", io_error(*error));
        }
        let folder = &self.agent.segment.folder;
        no_room(
            &text::path(&folder.path),
            self.first_bytes(),
            folder.free_bytes().ok(),
        )
    }

    /// Starts the session, or prolongs it.
    pub fn publish(&mut self, deadline_ns: u64) -> Result<(), String> {
        if self.session.start_ns == 0 {
            self.session.start_ns = now_ns();
            self.session.start_unix_ns = unix_ns();
        }
        self.session.deadline_ns = deadline_ns;
        let published = self.agent.segment.view().publish(&self.session);
        published
            .map(|_| ())
            .map_err(|e| format!("its segment cannot be written: {}", io_error(e)))
    }

    /// Turns the session off.
    pub fn stop(&self) -> Result<(), String> {
        let stopped = self.agent.segment.view().stop();
        stopped.map_err(|e| format!("its session cannot be stopped: {}", io_error(e)))
    }

    /// Looks how far it is, and gives the table more room where it fills up.
    pub fn look(&mut self) -> Result<Look, Refusal> {
        if !self.is_alive() {
            return Ok(Look::Dead);
        }
        let mut epoch = [0];
        self.agent
            .segment
            .view()
            .read_at(0, &mut epoch)
            .map_err(io_error)?;
        let mut buffer = [0; BANK_HEADER_BYTES];
        let bank = self.agent.segment.bank(self.session.number, &mut buffer)?;
        self.totals = bank.totals();
        let g = self.agent.segment.view().geometry();
        let half = |used: usize, limit: u32| used as u64 * 2 > u64::from(limit);
        let crowded = half(bank.nodes(), g.nodes_in(self.steps))
            || half(bank.records(), g.records_in(self.steps));
        self.growing = crowded && !self.full && self.steps < RESERVE_STEPS;
        if self.growing {
            self.grow();
        }
        if epoch == [0] {
            return Ok(Look::Stopped);
        }
        self.govern().map_err(io_error)?;
        Ok(Look::Counting)
    }

    /// Widens or narrows the interval where sampling takes more or less than it may.
    fn govern(&mut self) -> Result<(), shm_protocol::segment::Errno> {
        let (Some(share), Some(cpu_ns)) = (self.max_overhead, process::cpu_ns(self.agent.pid))
        else {
            return Ok(());
        };
        let (interval, start_ns) = (self.session.interval, self.session.start_ns);
        let new = || Governor::new(share, interval, start_ns);
        let governor = self.governor.get_or_insert_with(new);
        let step = governor.step(Reading {
            at_ns: now_ns(),
            cpu_ns,
            samples: self.totals.samples,
            timed: self.totals.timed,
            timed_ns: self.totals.timed_ns,
        });
        let view = self.agent.segment.view();
        if let Step::Change(interval) = step {
            self.session.interval = interval;
            view.publish(&self.session)?;
        }
        if step != Step::Wait {
            let (history, least) = (governor.history(), governor.least());
            view.log_intervals(self.session.number, history, least)?;
        }
        if governor.is_helpless() && !self.warned_helpless {
            self.warned_helpless = true;
            self.warnings.push(format!(
                "{}: sampling takes more than {} of its CPU time even every {} bytes, the widest \
                 interval there is: its objects are large, and large ones are always sampled",
                self.agent.title(),
                text::percent(share),
                governor::CEILING
            ));
        }
        Ok(())
    }

    /// Warnings that came up since the last call.
    pub fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }

    fn grow(&mut self) {
        let steps = self.steps.saturating_mul(2).min(RESERVE_STEPS);
        match self
            .agent
            .segment
            .view()
            .reserve_steps(self.session.number, steps)
        {
            Ok(()) => self.steps = steps,
            Err(error) => {
                self.full = true;
                let folder = text::path(&self.agent.segment.folder.path);
                self.warnings.push(format!(
                    "{}: its table cannot grow in {folder} ({}): further new stacks are counted \
                     together as [table full]; make room there, or move it with MEM_PROFILER_DIR",
                    self.agent.title(),
                    io_error(error)
                ));
            }
        }
    }

    /// CPU time that the process used since it was found, in seconds.
    pub fn cpu_seconds(&self) -> f64 {
        let now = Stat::of(self.agent.pid).map_or(0, |s| s.cpu_ticks);
        let ticks = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK);
        let per_second = ticks.ok().flatten().unwrap_or(100).max(1);
        now.saturating_sub(self.agent.cpu_ticks) as f64 / per_second as f64
    }

    /// An agent that has turned its session off because the program ends is a moment ahead
    /// of the process's end: waits for that.
    fn let_end(&self) {
        let mut head = Head::new();
        let header = self.agent.segment.head(&mut head);
        if header.is_ok_and(|header| header.exited())
            && let Some(fd) = &self.pidfd
        {
            process::wait_for_end(fd, LAST_MOMENTS);
        }
    }

    /// Whether the process still has the segment mapped.
    pub fn settle_life(&mut self) {
        if self.agent.life != Life::Running {
            return;
        }
        self.let_end();
        if !self.is_alive() {
            self.agent.life = Life::Dead;
            let start = self.agent.segment.name.start_time;
            let fate = Fate::of(self.agent.pid, start, self.pidfd());
            self.agent.fate = self.agent.fate.or(fate);
        } else if process::maps(self.agent.pid).is_some() && self.agent.confirm().is_err() {
            self.agent.life = Life::Replaced;
        }
    }
}

/// Size of an agent's segment with tables, by its own word.
fn segment_bytes(agent: &Agent) -> Result<usize, String> {
    let mut head = Head::new();
    let header = agent.segment.head(&mut head).map_err(|e| e.to_string())?;
    let bytes = usize::try_from(header.segment_bytes()).unwrap_or(usize::MAX);
    match (MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES).contains(&bytes) {
        true => Ok(bytes),
        false => Err(Refusal::Size(bytes as u64).to_string()),
    }
}

/// Whether a session would do its process no harm, as far as that can be seen from here.
fn check_willing(header: &Header<'_>, pid: i32, has_tables: bool) -> Result<(), String> {
    match header.refuses() {
        (REFUSES_SANITIZER, _) => {
            return Err(
                "it runs under a sanitizer (AddressSanitizer, LeakSanitizer, ThreadSanitizer, \
                 MemorySanitizer), whose allocator the agent leaves in charge: profile a build \
                 without it"
                    .to_owned(),
            );
        }
        (REFUSES_SECCOMP, _) => return Err(SANDBOXED.to_owned()),
        _ => {}
    }
    // A filter that came in a way that the agent does not see.
    match process::seccomp(pid) > header.seccomp() && !has_tables {
        true => Err(SANDBOXED.to_owned()),
        false => Ok(()),
    }
}

/// The message for a process that has put itself under a filter.
const SANDBOXED: &str = "it has put itself under a seccomp filter since it started, and the \
    agent makes no system call that the filter may not expect: start it with \
    MEM_PROFILER_START=1, which maps the tables beforehand";

/// The message for a folder without room.
pub fn no_room(folder: &str, needs: u64, free: Option<u64>) -> String {
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let free = free.map_or("unknown".to_owned(), mib);
    format!(
        "no room in {folder}: the session needs {}, {free} are free; make room there, or move the \
         segments with MEM_PROFILER_DIR (for the program and for mem_profiler)",
        mib(needs)
    )
}

/// Who else has the segment.
fn conflict(agent: &Agent) -> String {
    let mut head = Head::new();
    let running = agent
        .segment
        .head(&mut head)
        .ok()
        .filter(is_running)
        .and_then(|h| h.session());
    match running {
        Some(session) => {
            let left = End::of(session.deadline_ns).left();
            format!(
                "a session of mem_profiler {} is running, {left}",
                session.controller_pid
            )
        }
        None => "another mem_profiler is just starting or ending a session".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rolling_and_fixed_ends_are_told_apart() {
        let fixed = End::deadline_ns(Some(Duration::from_secs(90)));
        let End::At(ns) = End::of(fixed) else {
            panic!("{fixed}")
        };
        assert!(ns.abs_diff(now_ns()) <= 90_000_000_000);
        assert!(matches!(End::of(End::deadline_ns(None)), End::Rolling(_)));
        assert_eq!(End::of(0), End::Never);
        assert!(End::of(fixed).left().ends_with(" left"));
        assert_eq!(End::Rolling(7).left(), "until it is stopped");
        assert!(matches!(
            End::of(End::deadline_ns(Some(Duration::MAX))),
            End::At(_)
        ));
    }
}

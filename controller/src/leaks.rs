//! A check for leaks: which sampled objects no pointer of the process leads to any more.
//!
//! The process is stopped for as long as it takes to copy its page tables, and goes on; the copy
//! is read at leisure. Where no copy can be had, the process itself is read while it is stopped,
//! if that is wanted.

mod base;
mod exemptions;
mod held;
mod holders;
mod intervals;
mod known;
mod memory;
mod options;
mod regions;
mod report;
mod roots;
mod stacks;
mod suppressions;
mod variables;

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use capture::{Copy, Pause, Refusal, Stopped, Thread};
use reachability::jemalloc::{self, Globals};
use reachability::lost::{self, Found, Lost};
use reachability::mark::{self, Marks};
use reachability::object::Sampled;
use reachability::{Heap, Memory, Pointers, causes};
use shm_protocol::NodeId;
use shm_protocol::clock::tick_of;
use shm_protocol::layout::{AgentMemory, HeapGlobals};
use shm_protocol::segment::Session;
use shm_protocol::snapshot::Header;

use crate::discovery::Agent;
use crate::dump;
use crate::process;
use crate::snapshot::Snapshot;
use base::Since;
use held::Held;
use known::Known;
use memory::MomentMemory;
use regions::Region;
use roots::Roots;
use stacks::Sum;

pub use base::{Amount, Base, Earlier, TRIGGER};
pub use holders::{Chain, Holder, Link, Wanted, holders};
pub use options::Options;
pub use report::{Report, names, report};
pub use stacks::{Leak, Leaks, Loss};
pub use suppressions::{Suppressions, file_of};
pub use variables::Variables;

/// Longest time to stop all threads.
const PATIENCE: Duration = Duration::from_secs(5);

/// How the process is kept from changing while it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// A copy is read, and the process goes on.
    Copied,
    /// The process is read while it is stopped.
    Stopped,
    /// A copy if there can be one, else the process.
    CopiedIfPossible,
}

/// Which objects are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Those that no pointer leads to.
    Unreachable,
    /// All that are not freed.
    Unfreed,
}

/// How a process is checked.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    /// How it is kept from changing.
    pub means: Means,
    /// Which objects are lost.
    pub scope: Scope,
    /// How pointers are searched for.
    pub options: &'a Options,
    /// Which leaks are known.
    pub suppressions: &'a Suppressions,
    /// An earlier check: only what was lost since is told.
    pub base: Option<Earlier<'a>>,
}

/// What a suppression was good for.
#[derive(Clone, Debug)]
pub struct Used {
    /// Its template, for people.
    pub template: String,
    /// The lost objects whose stacks match it.
    pub sum: Sum,
}

/// What was found, and at what price.
pub struct Check {
    /// The session's table.
    pub snapshot: Snapshot,
    /// What is lost.
    pub leaks: Leaks,
    /// What is lost of each stack, also if it was before.
    pub amounts: HashMap<NodeId, Amount>,
    /// How long the process stood still, and its threads.
    pub pause: Pause,
    /// Bytes that were searched for pointers.
    pub scanned: u64,
    /// How long the search took.
    pub search: Duration,
    /// Parts of the heap whose objects are not known.
    pub left_out: usize,
    /// Bytes that were read while the process ran on.
    pub missed: u64,
    /// Whether there are too many lost objects to say which keep which others.
    pub too_many: bool,
    /// The suppressions that were used, in their order.
    pub used: Vec<Used>,
    /// What went wrong with them.
    pub trouble: Option<String>,
}

/// A process at one moment.
struct Moment {
    threads: Vec<Thread>,
    regions: Vec<Region>,
    timers: String,
    epoll: Vec<(String, Vec<u64>)>,
    memory: MomentMemory,
    /// Keeps the memory as it is.
    hold: Hold,
}

/// What is held while the memory is read.
enum Hold {
    Copy(
        #[expect(dead_code, reason = "dropped at the end")] Copy,
        Pause,
    ),
    Process(Stopped),
}

/// How often a process is captured again because of stacks that are new.
const TRIES: usize = 3;

/// Checks a process. `header` is the full head of its segment.
pub fn check(
    agent: &Agent,
    header: &Header<'_>,
    session: &Session,
    plan: &Plan<'_>,
) -> anyhow::Result<Check> {
    if let Some(Earlier::Dump(base)) = plan.base {
        base.suits(agent, header, session)?;
    }
    let mut known = Known::new(plan.suppressions, agent.pid);
    let mut tries = 0;
    loop {
        if !plan.suppressions.is_empty() {
            known.learn(&dump::snapshot(agent, session, header)?, header);
        }
        tries += 1;
        let (mut check, is_new) = attempt((agent, header, session), plan, &known)?;
        if !is_new || tries == TRIES {
            check.trouble = known.trouble();
            return Ok(check);
        }
    }
}

/// Checks a process once. Whether something is lost of a stack that `known` was not told of.
fn attempt(
    (agent, header, session): (&Agent, &Header<'_>, &Session),
    plan: &Plan<'_>,
    known: &Known<'_>,
) -> anyhow::Result<(Check, bool)> {
    let globals = globals(header)?;
    agent.confirm()?;
    let moment = Moment::of(agent.pid, plan.means)?;
    let start = Instant::now();
    let own = (&globals, header.agent_memory());
    let mut search = Search::of(&moment, own, plan.options, false)?;
    if plan.scope == Scope::Unfreed {
        search.begin_at_exemptions(&moment.memory, header.agent_memory());
    }
    let mut found = search.lost(&moment.memory, session, plan.scope);
    if found.lost.iter().any(|lost| lost.object.ignored) {
        search.excuse(&moment.memory, &mut found, |lost| lost.object.ignored);
    }
    let mut suppressed = Suppressed::default();
    if !plan.suppressions.is_empty() {
        let stacks = Snapshot::read_stacks(&agent.segment, session)?;
        let is_excused = |lost: &Lost| suppressed.add(lost, known, &stacks);
        search.excuse(&moment.memory, &mut found, is_excused);
    }
    let how = search.causes(&moment.memory, &found, plan.scope);
    let left_out = search.heap.left_out() + moment.memory.left_out() + found.left_out as usize;
    let pause = moment.hold.release();
    let end = dump::end_of(session, header);
    let snapshot = Snapshot::read(&agent.segment, session, end)?;
    let stacks = Snapshot::read_stacks(&agent.segment, session)?;
    let amounts = stacks::amounts(&found.lost, &stacks);
    let since = plan.base.map(|base| match base {
        Earlier::Dump(base) => base.since(&amounts, &snapshot, (header, agent.pid)),
        Earlier::Own(before) => Since::of(&amounts, before),
    });
    let when = (tick_of(end.0), since.as_ref());
    let leaks = Leaks::of(&found.lost, how.as_deref(), &stacks, when);
    let check = Check {
        snapshot,
        leaks,
        amounts,
        pause,
        scanned: search.marks.scanned,
        search: start.elapsed(),
        left_out,
        missed: moment.memory.missed(),
        too_many: how.is_none() && plan.scope == Scope::Unreachable,
        used: suppressed.used(plan.suppressions),
        trouble: None,
    };
    Ok((check, suppressed.is_new))
}

/// What the suppressions are good for.
#[derive(Default)]
struct Suppressed {
    by_template: BTreeMap<usize, Sum>,
    /// Whether something is of a stack that was not looked at.
    is_new: bool,
}

impl Suppressed {
    /// Whether a suppression names the stack of a lost object; counts it if so.
    fn add(&mut self, lost: &Lost, known: &Known<'_>, stacks: &[(NodeId, u32)]) -> bool {
        let Some((leaf, _)) = stacks.get(lost.object.record as usize) else {
            return false;
        };
        let template = known.template(*leaf);
        // Of [table full], nobody knows a stack.
        self.is_new |= template.is_none() && *leaf != 0;
        let template = template.flatten();
        if let Some(template) = template {
            self.by_template.entry(template).or_default().add(lost);
        }
        template.is_some()
    }

    fn used(&self, suppressions: &Suppressions) -> Vec<Used> {
        let used = |(template, sum): (&usize, &Sum)| Used {
            template: suppressions.template(*template),
            sum: *sum,
        };
        self.by_template.iter().map(used).collect()
    }
}

/// Where the allocator keeps its data.
fn globals(header: &Header<'_>) -> anyhow::Result<HeapGlobals> {
    header.heap().context(
        "the program keeps its own allocator (MEM_PROFILER_ALLOCATOR=system), whose objects nobody \
         can list: start it without that variable",
    )
}

impl Moment {
    fn of(pid: i32, means: Means) -> anyhow::Result<Self> {
        // Reading it takes too long to be done meanwhile. What is an entry at the moment is one
        // shortly before or shortly after it.
        let mut epoll = roots::epoll_data(pid);
        let mut stopped = Stopped::stop(pid, PATIENCE)?;
        let maps = process::maps(pid).filter(|maps| !maps.is_empty());
        let maps = maps.with_context(|| format!("/proc/{pid}/maps cannot be read"))?;
        let timers = roots::limited(&format!("/proc/{pid}/timers"));
        let regions = regions::parse(&maps);
        drop(maps);
        let threads = stopped.threads().to_vec();
        let copy = match means {
            Means::Stopped => None,
            Means::Copied => Some(stopped.copy().map_err(without_copy)?),
            Means::CopiedIfPossible => match stopped.copy() {
                Err(refusal) if refusal.is_of_copy() => None,
                copied => Some(copied?),
            },
        };
        let (memory, hold) = match copy {
            None => (
                MomentMemory::of(pid, pid, &regions, (&[], Held::default())),
                Hold::Process(stopped),
            ),
            Some(copy) => {
                let copied = process::maps(copy.pid()).unwrap_or_default();
                let absent = roots::absent(&regions, &copied);
                let held = Held::of(pid, &regions, &absent);
                let pause = stopped.resume();
                (
                    MomentMemory::of(copy.pid(), pid, &regions, (&absent, held)),
                    Hold::Copy(copy, pause),
                )
            }
        };
        epoll.extend(roots::epoll_data(pid));
        Ok(Self {
            threads,
            regions,
            timers,
            epoll,
            memory,
            hold,
        })
    }
}

/// A refusal, with the option that does without a copy.
fn without_copy(refusal: Refusal) -> anyhow::Error {
    match refusal.is_of_copy() {
        true => anyhow!("{refusal}: --stop"),
        false => refusal.into(),
    }
}

impl Hold {
    fn release(self) -> Pause {
        match self {
            Self::Copy(_, pause) => pause,
            Self::Process(stopped) => stopped.resume(),
        }
    }
}

/// The heap and what was reached in it.
struct Search {
    heap: Heap,
    roots: Roots,
    pointers: Pointers,
    marks: Marks,
}

impl Search {
    /// Follows all pointers of a process; `trace` remembers what led to each object.
    fn of(
        moment: &Moment,
        (globals, agent): (&HeapGlobals, AgentMemory),
        options: &Options,
        trace: bool,
    ) -> anyhow::Result<Self> {
        let memory = &moment.memory;
        let map = jemalloc::read(
            memory,
            &Globals {
                emap: globals.emap,
                arenas: globals.arenas,
                page: globals.page,
            },
        )?;
        let base = memory.word(globals.range_base).unwrap_or(0);
        let size = memory.word(globals.range_size).unwrap_or(0);
        let heap = Heap::of(&map, base..base.saturating_add(size));
        drop(map);
        let process = roots::Process {
            memory,
            heap: &heap,
            threads: &moment.threads,
            regions: &moment.regions,
            agent,
        };
        let mut roots = Roots::of(&process, options);
        if options.globals {
            roots.add_kernels(moment.epoll.clone(), &moment.timers);
        }
        roots.add_exemptions(exemptions::read(memory, &heap, agent.exemptions));
        let pointers = options.pointers(memory, &heap);
        let marks = mark::mark(memory, &heap, &roots.to_mark(&pointers, trace));
        Ok(Self {
            heap,
            roots,
            pointers,
            marks,
        })
    }

    /// Reaches only what the program says is no leak.
    fn begin_at_exemptions(&mut self, memory: &MomentMemory, agent: AgentMemory) {
        let mut roots = Roots::default();
        roots.add_exemptions(exemptions::read(memory, &self.heap, agent.exemptions));
        self.marks = mark::mark(memory, &self.heap, &roots.to_mark(&self.pointers, false));
    }

    /// The lost objects of a session.
    fn lost(&self, memory: &MomentMemory, session: &Session, scope: Scope) -> Found {
        let wanted = |object: &Sampled| is_of(object, session);
        let mut found = lost::find(memory, &self.heap, &self.marks, wanted);
        if scope == Scope::Unreachable {
            // The caches in which the allocator keeps free objects are no program's memory.
            let internal = mark::targets(memory, &self.heap, &self.roots.agents);
            found
                .unknown
                .retain(|region| !internal.get(*region as usize));
        }
        found
    }

    /// Takes the lost objects that `is_excused` names for kept: they are roots, too. Neither they nor
    /// what they lead to is lost any more; what other lost objects lead to as well is kept, too.
    fn excuse(
        &mut self,
        memory: &MomentMemory,
        found: &mut Found,
        mut is_excused: impl FnMut(&Lost) -> bool,
    ) {
        let all = found.lost.iter().zip(0..);
        let excused = all.filter(|(lost, _)| is_excused(lost));
        let excused: Vec<u32> = excused.map(|(_, index)| index).collect();
        if !excused.is_empty() {
            let (heap, marks) = (&self.heap, &mut self.marks);
            found.excuse(memory, heap, &self.pointers, marks, &excused);
        }
    }

    /// How each of the lost objects is lost.
    fn causes(
        &self,
        memory: &MomentMemory,
        found: &Found,
        scope: Scope,
    ) -> Option<Vec<causes::How>> {
        match scope {
            Scope::Unreachable => causes::order(memory, &self.heap, &self.pointers, found),
            Scope::Unfreed => None,
        }
    }
}

/// Whether an object was counted in a session; objects tell only the last 8 bits of its number.
fn is_of(object: &Sampled, session: &Session) -> bool {
    let first = tick_of(session.start_ns);
    object.session == session.number as u8 && object.born.wrapping_sub(first) as i32 >= -1
}

//! A check for leaks: which sampled objects no pointer of the process leads to any more.
//!
//! [`check`] finds them, [`report()`] names their stacks, [`holders()`] says what keeps an object alive,
//! and [`test_alignment`] checks an assumption of the search on the process itself. The process is
//! stopped for as long as it takes to copy its page tables, and continues; the copy is read
//! afterwards. If no copy can be made, the process itself is read while it is stopped, on request;
//! or repeatedly while it runs ([`Means`]).
//!
//! # Promises
//! - The process is stopped only while it is copied or, with [`Means::Stopped`], while it is
//!   searched; with [`Means::Running`] never.
//! - Everything read from it is treated as hostile: counts, sizes, addresses and lists are bounded
//!   and checked.
//! - An object to which a root or a reached object points, even into its middle, is not reported.
//! - Nothing is printed.
//!
//! # Caller's duties
//! - The segment and the session belong to the process that is checked, and the session samples
//!   its heap. Objects from before the session are unknown.
//!
//! # Limits
//! - What limits `reachability` has: jemalloc as built into the agent, 48-bit addresses, no
//!   disguised pointers.
//! - A process that may not be traced, or that another tracer has stopped, is refused.

mod base;
mod control_blocks;
mod exemptions;
mod gentle;
mod held;
mod holders;
mod intervals;
mod kernel;
mod known;
mod lsan;
mod memory;
mod moment;
mod notes;
mod options;
mod refusal;
mod regions;
mod report;
mod roots;
mod search;
mod stacks;
mod suppressions;
mod unstopped;
mod variables;

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use anyhow::Context;
use capture::{Failure, Pause};
use mem_agents::discovery::Agent;
use mem_agents::dump;
use mem_agents::snapshot::Snapshot;
use reachability::ProcessMemory;
use reachability::lost::Lost;
use shm_protocol::NodeId;
use shm_protocol::clock::tick_of;
use shm_protocol::layout::{HeapGlobals, STATED_OPTIONS, STATED_SUPPRESSIONS};
use shm_protocol::segment::Session;
use shm_protocol::snapshot::Header;

use base::Since;
use gentle::Look;
use known::Known;
use moment::{Hold, Moment};
use search::{Search, is_counted};
use stacks::Sum;

pub use base::{Amount, Base, Earlier, TRIGGER};
pub use holders::{Chain, Holder, Link, Wanted, holders};
pub use lsan::LsanOptions;
pub use options::Options;
pub use report::{Report, names, report};
pub use stacks::{Leak, Leaks};
pub use suppressions::Suppressions;
pub use variables::Variables;

/// How the process is kept from changing while it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// A copy is read, and the process continues.
    Copied,
    /// The process is read while it is stopped.
    Stopped,
    /// A copy if there can be one, else the process.
    CopiedIfPossible,
    /// Not at all: it is read this many times while it runs, and only what is lost each time is.
    Running(u32),
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
    /// Whether each lost object is listed.
    pub identify: bool,
    /// An earlier check: only what was lost since is reported.
    pub base: Option<Earlier<'a>>,
}

/// What a suppression was good for.
#[derive(Clone, Debug)]
pub struct Used {
    /// Its template, for display.
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
    /// How long the process was stopped, and its threads.
    pub pause: Pause,
    /// Bytes that were searched for pointers.
    pub scanned: u64,
    /// How long the search took.
    pub search: Duration,
    /// How often a process was searched that ran on.
    pub looks: Option<u32>,
    /// Address and size of the lost objects, if that was requested.
    pub objects: Vec<(u64, u64)>,
    /// Parts of the heap whose objects are not known.
    pub left_out: usize,
    /// Bytes that were read while the process ran on.
    pub missed: u64,
    /// Bytes of shared memory that were read while the process ran on.
    pub shared: u64,
    /// Whether the program keeps its own allocator, of which only sampled objects are known.
    pub own_allocator: bool,
    /// Requests of io_uring that were under way.
    pub under_way: u64,
    /// Whether the copy searched its own memory. An error: it should have, but was read from
    /// outside.
    pub by_copy: Result<bool, Failure>,
    /// Whether there are too many lost objects to determine which keep which others.
    pub too_many: bool,
    /// The suppressions that were used, in their order.
    pub used: Vec<Used>,
    /// Leaves of the stacks whose lost objects the program has written before, with their number.
    pub overwritten: BTreeMap<NodeId, u64>,
    /// Regions of sampled objects that were not reached, and whose headers say nothing.
    pub unclear: u64,
    /// What went wrong with them.
    pub trouble: Option<String>,
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
    let (suppressions, trouble) = with_stated(plan.suppressions, agent.pid, header);
    let plan = &Plan {
        suppressions: &suppressions,
        ..*plan
    };
    let mut known = Known::new(plan.suppressions, agent.pid);
    let mut tries = 0;
    loop {
        if !plan.suppressions.is_empty() {
            known.learn(&dump::snapshot(agent, session, header)?, header);
        }
        tries += 1;
        let (mut check, is_new) = attempt((agent, header, session), plan, &known)?;
        if !is_new || tries == TRIES {
            check.trouble = known.trouble().or(trouble);
            return Ok(check);
        }
    }
}

/// gperftools' test of what leaks are from, in words: the check of a plan that has found some is
/// made once more with pointers at any address.
pub fn test_alignment(
    agent: &Agent,
    header: &Header<'_>,
    session: &Session,
    plan: &Plan<'_>,
) -> anyhow::Result<String> {
    if plan.options.alignment == 1 {
        return Ok("pointers at any address count already: nothing is left to test".to_owned());
    }
    let options = Options {
        alignment: 1,
        ..plan.options.clone()
    };
    let plan = Plan {
        options: &options,
        identify: false,
        ..*plan
    };
    let found = check(agent, header, session, &plan)?;
    Ok(match found.leaks.total.samples {
        0 => "Found no leaks without pointer alignment: something might be placing pointers at \
              unaligned addresses!",
        _ => "Found leaks without pointer alignment as well: unaligned pointers must not be the cause \
              of leaks.",
    }
    .to_owned())
}

/// The suppressions with those that the program has stated, and what is wrong with these.
fn with_stated(
    suppressions: &Suppressions,
    pid: i32,
    header: &Header<'_>,
) -> (Suppressions, Option<String>) {
    let place = header.agent_memory().exemptions;
    let text = exemptions::text(
        &ProcessMemory::of(proc::living_thread(pid)),
        place,
        STATED_SUPPRESSIONS,
    );
    let mut all = suppressions.clone();
    let added = text.map_or(Ok(()), |text| all.add_stated(&text));
    (all, added.err())
}

/// LeakSanitizer's options that the program has stated.
pub fn stated_options(pid: i32, header: &Header<'_>) -> String {
    let place = header.agent_memory().exemptions;
    let text = exemptions::text(
        &ProcessMemory::of(proc::living_thread(pid)),
        place,
        STATED_OPTIONS,
    );
    String::from_utf8_lossy(&text.unwrap_or_default()).into_owned()
}

/// Checks a process once. Whether something is lost of a stack that `known` has not seen.
fn attempt(
    (agent, header, session): (&Agent, &Header<'_>, &Session),
    plan: &Plan<'_>,
    known: &Known<'_>,
) -> anyhow::Result<(Check, bool)> {
    let globals = globals(header)?;
    let start = Instant::now();
    let look = || look((agent, header, session), &globals, plan);
    let (look, looks) = match plan.means {
        Means::Running(times) => {
            let (look, count) = gentle::repeat(times, look)?;
            (look, Some(count))
        }
        _ => (look()?, None),
    };
    let Look {
        moment,
        mut search,
        mut found,
    } = look;
    if !found.lost.is_empty() {
        let stacks = Snapshot::read_stacks(&agent.segment, session)?;
        found.lost.retain(|lost| is_counted(&lost.object, &stacks));
    }
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
    moment.confirm()?;
    let left_out = search.heap.left_out() + moment.memory.left_out() + found.left_out as usize;
    let is_copied = matches!(moment.hold, Hold::Copy(..));
    let pause = moment.hold.release();
    let end = dump::end_of(session, header);
    let snapshot = Snapshot::read(&agent.segment, session, end)?;
    known_at_all(&snapshot)?;
    let stacks = Snapshot::read_stacks(&agent.segment, session)?;
    let overwritten = stacks::settle_weights(&mut found.lost, &stacks, &snapshot);
    let amounts = stacks::amounts(&found.lost, &stacks);
    let since = plan.base.map(|base| match base {
        Earlier::Dump(base) => base.since(&amounts, &snapshot, (header, agent.pid)),
        Earlier::Own(before) => Since::of(&amounts, before),
    });
    let when = (tick_of(end.ns), since.as_ref());
    let identified = found.lost.iter().filter(|_| plan.identify);
    let objects = identified.map(|lost| (lost.object.at, lost.object.bytes));
    let objects = objects.collect();
    let leaks = Leaks::of(&found.lost, how.as_deref(), &stacks, when);
    let check = Check {
        snapshot,
        leaks,
        amounts,
        pause,
        scanned: search.marks.scanned,
        search: start.elapsed(),
        looks,
        objects,
        left_out,
        missed: moment.memory.missed(),
        shared: if is_copied { moment.memory.shared() } else { 0 },
        own_allocator: header.system_allocator(),
        under_way: moment.kernels.under_way,
        by_copy: moment.memory.searched(),
        too_many: how.is_none() && plan.scope == Scope::Unreachable,
        used: suppressed.used(plan.suppressions),
        overwritten,
        unclear: found.unclear,
        trouble: None,
    };
    Ok((check, suppressed.is_new))
}

/// Fails if no object could be tracked: a process about which nothing is known would be reported as
/// having lost nothing.
fn known_at_all(snapshot: &Snapshot) -> anyhow::Result<()> {
    let (samples, untracked) = (snapshot.totals.samples, snapshot.untracked());
    anyhow::ensure!(
        samples == 0 || untracked < samples,
        "none of its {samples} samples has a place in the range of sampled objects, since the \
         address space is limited or used up: raise the limit (ulimit -v) and start it again"
    );
    Ok(())
}

/// Captures a process and searches it.
fn look(
    (agent, header, session): (&Agent, &Header<'_>, &Session),
    globals: &HeapGlobals,
    plan: &Plan<'_>,
) -> anyhow::Result<Look> {
    agent.confirm()?;
    let moment = Moment::of(agent, plan.means)?;
    let own = (globals, header.agent_memory());
    let search = Search::of(&moment, own, plan.options, false);
    let mut search = search.or_else(|error| {
        moment.confirm()?;
        agent.confirm().with_context(|| {
            let pid = agent.pid;
            format!("process {pid} executed another program while it was captured; try again")
        })?;
        Err(error)
    })?;
    if plan.scope == Scope::Unfreed {
        search.begin_at_exemptions(&moment.memory, header.agent_memory());
    }
    let found = search.lost(&moment.memory, session, plan.scope);
    moment.confirm()?;
    Ok(Look {
        moment,
        search,
        found,
    })
}

/// What the suppressions are good for.
#[derive(Default)]
struct Suppressed {
    by_template: BTreeMap<usize, Sum>,
    /// Whether something is of a stack that was not examined.
    is_new: bool,
}

impl Suppressed {
    /// Whether a suppression names the stack of a lost object; counts it if so.
    fn add(&mut self, lost: &Lost, known: &Known<'_>, stacks: &[(NodeId, u32)]) -> bool {
        let Some((leaf, _)) = stacks.get(lost.object.record as usize) else {
            return false;
        };
        let template = known.template(*leaf);
        // For [table full], no stack is known.
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
        "the program keeps its own allocator (MEM_PROFILER_ALLOCATOR=system), in which case its \
         sampled objects cannot be listed on this processor: start it without that variable",
    )
}

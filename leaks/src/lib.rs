//! Leak check: finds sampled objects that no pointer of the process leads to.
//!
//! [`check`] finds them, [`report()`] names their stacks, [`holders()`] explains what keeps an
//! object alive, and [`test_alignment`] tests the search's assumption about pointer alignment. The
//! process is stopped only while its page tables are copied, as by fork; the copy is searched
//! afterwards. On request, the process itself is searched, while it is stopped or repeatedly while
//! it runs ([`Method`]).
//!
//! # Guarantees
//! - The process is stopped only while it is copied or, with [`Method::Stopped`], while it is
//!   searched; with [`Method::Running`] it is never stopped.
//! - Everything read from the process is untrusted: counts, sizes, addresses and lists are bounded
//!   and validated.
//! - An object to which a root or a reachable object points, even into its middle, is not reported.
//! - Nothing is printed.
//!
//! # Callers must
//! - pass the segment and a session of the process that is checked; the session must sample its
//!   heap. Objects from before the session are unknown.
//!
//! # Limits
//! - The limits of `reachability` apply: jemalloc as built into the agent, 48-bit addresses, no
//!   disguised pointers.
//! - A process that may not be traced, or that another tracer has stopped, is refused.

mod base;
mod calls;
mod control_blocks;
mod duplicate_stacks;
mod exemptions;
mod frame;
mod gentle;
mod holders;
mod intervals;
mod kernel;
mod lsan;
mod memory;
mod moment;
mod notes;
mod options;
mod refusal;
mod regions;
mod report;
mod roots;
mod saved;
mod search;
mod stacks;
mod suppression_cache;
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
use shm_protocol::layout::{DECLARED_OPTIONS, DECLARED_SUPPRESSIONS, HeapGlobals};
use shm_protocol::segment::Session;
use shm_protocol::snapshot::Header;

use base::NewLosses;
use gentle::SearchResult;
use moment::{Hold, Moment};
use search::{Search, is_counted};
use stacks::Sum;
use suppression_cache::{StackMatch, SuppressionCache};

pub use base::{Amount, Base, Earlier, TRIGGER};
pub use frame::{Frame, Part, own_part};
pub use holders::{Chain, Holder, Link, Wanted, holders};
pub use lsan::LsanOptions;
pub use options::Options;
pub use report::{Report, names, report};
pub use stacks::{Leak, Leaks};
pub use suppressions::Suppressions;
pub use variables::Variables;

/// Method of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Searches a copy while the process continues.
    Copied,
    /// Searches the process while it is stopped.
    Stopped,
    /// Searches a copy if one can be made, or else the stopped process.
    CopiedIfPossible,
    /// Searches the running process this many times, and reports objects that are lost every time.
    Running(u32),
}

/// Criterion by which objects count as lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Objects that no pointer leads to.
    Unreachable,
    /// All objects that are not freed.
    Unfreed,
}

/// Parameters of a check.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    /// Method of the search.
    pub method: Method,
    /// Criterion by which objects count as lost.
    pub scope: Scope,
    /// Selection of the roots and pointers that count.
    pub options: &'a Options,
    /// Known leaks, which are not reported.
    pub suppressions: &'a Suppressions,
    /// True if every lost object is to be listed.
    pub identify: bool,
    /// Earlier check. Only losses since then are reported.
    pub base: Option<Earlier<'a>>,
}

/// Suppression that has matched.
#[derive(Clone, Debug)]
pub struct UsedSuppression {
    /// Template of the suppression, for display.
    pub template: String,
    /// Lost objects whose stacks match the template.
    pub sum: Sum,
}

/// Result of a check.
pub struct Check {
    /// Tables of the session.
    pub snapshot: Snapshot,
    /// Losses to report.
    pub leaks: Leaks,
    /// Losses by stack, including those of an earlier check.
    pub amounts: HashMap<NodeId, Amount>,
    /// Duration of the stop, and number of threads.
    pub pause: Pause,
    /// Number of bytes searched for pointers.
    pub scanned: u64,
    /// Duration of the search.
    pub search: Duration,
    /// Number of searches, if the process was searched while it ran.
    pub searches: Option<u32>,
    /// Address and size of each lost object, if requested.
    pub objects: Vec<(u64, u64)>,
    /// Number of memory areas whose contents are unknown.
    pub left_out: usize,
    /// Bytes missing from the copy that were read while the process ran.
    pub missed: u64,
    /// Bytes of shared memory that were read while the process ran.
    pub shared: u64,
    /// True if the program keeps its own allocator, so that only sampled objects are known.
    pub own_allocator: bool,
    /// Number of io_uring requests in flight.
    pub in_flight: u64,
    /// True if the copy searched its own memory. An error if that failed; the memory was then
    /// searched from outside.
    pub searched_by_copy: Result<bool, Failure>,
    /// True if there are too many lost objects to find out which of them keep others alive.
    pub too_many: bool,
    /// Suppressions that have matched, in order.
    pub used: Vec<UsedSuppression>,
    /// Number of lost objects with overwritten headers, by leaf node of their stack.
    pub overwritten: BTreeMap<NodeId, u64>,
    /// Number of unreachable regions of sampled objects without a valid header.
    pub unclear: u64,
    /// Error about the suppressions, for display.
    pub suppressions_error: Option<String>,
}

/// Maximum number of captures. The process is captured again if objects are lost whose stacks were
/// not compared with the suppressions.
const MAX_CAPTURES: usize = 3;

/// Checks a process. `header` is its segment's complete header.
pub fn check(
    agent: &Agent,
    header: &Header<'_>,
    session: &Session,
    plan: &Plan<'_>,
) -> anyhow::Result<Check> {
    if let Some(Earlier::Dump(base)) = plan.base {
        base.check_comparable(agent, header, session)?;
    }
    let (suppressions, suppressions_error) =
        with_declared_suppressions(plan.suppressions, agent.pid, header);
    let plan = &Plan {
        suppressions: &suppressions,
        ..*plan
    };
    let mut cache = SuppressionCache::new(plan.suppressions, agent.pid);
    let mut tries = 0;
    loop {
        if !plan.suppressions.is_empty() {
            cache.examine(&dump::snapshot(agent, session, header)?, header);
        }
        tries += 1;
        let (mut check, has_unexamined) = check_once(agent, header, session, plan, &cache)?;
        if !has_unexamined || tries == MAX_CAPTURES {
            check.suppressions_error = cache.take_error().or(suppressions_error);
            return Ok(check);
        }
    }
}

/// Repeats a check that has found leaks, this time accepting pointers at any address. Returns the
/// result in words. Corresponds to gperftools' `HEAP_CHECK_TEST_POINTER_ALIGNMENT`.
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

/// Adds the suppressions that the program itself declares. Also returns the error if they are
/// invalid, for display.
fn with_declared_suppressions(
    suppressions: &Suppressions,
    pid: i32,
    header: &Header<'_>,
) -> (Suppressions, Option<String>) {
    let descriptor = header.agent_memory().exemptions;
    let text = exemptions::text(
        &ProcessMemory::of(proc::living_thread(pid)),
        descriptor,
        DECLARED_SUPPRESSIONS,
    );
    let mut all = suppressions.clone();
    let added = text.map_or(Ok(()), |text| all.add_declared(&text));
    (all, added.err())
}

/// Returns the LeakSanitizer options that the program itself declares.
pub fn declared_options(pid: i32, header: &Header<'_>) -> String {
    let descriptor = header.agent_memory().exemptions;
    let text = exemptions::text(
        &ProcessMemory::of(proc::living_thread(pid)),
        descriptor,
        DECLARED_OPTIONS,
    );
    String::from_utf8_lossy(&text.unwrap_or_default()).into_owned()
}

/// Performs one check. Also returns true if an object is lost whose stack `cache` has not examined.
fn check_once(
    agent: &Agent,
    header: &Header<'_>,
    session: &Session,
    plan: &Plan<'_>,
    cache: &SuppressionCache<'_>,
) -> anyhow::Result<(Check, bool)> {
    let globals = globals(header)?;
    let start = Instant::now();
    let search_once = || search(agent, header, session, &globals, plan);
    let (result, searches) = match plan.method {
        Method::Running(times) => {
            let (result, count) = gentle::repeat(times, search_once)?;
            (result, Some(count))
        }
        _ => (search_once()?, None),
    };
    let SearchResult {
        moment,
        mut search,
        mut found,
    } = result;
    if !found.lost.is_empty() {
        let stacks = Snapshot::read_stacks(&agent.segment, session)?;
        found.lost.retain(|lost| is_counted(&lost.object, &stacks));
    }
    if found.lost.iter().any(|lost| lost.object.ignored) {
        search.excuse(&moment.memory, &mut found, |lost| lost.object.ignored);
    }
    let mut suppressed = SuppressionUses::default();
    if !plan.suppressions.is_empty() {
        let stacks = Snapshot::read_stacks(&agent.segment, session)?;
        let is_excused = |lost: &Lost| suppressed.add(lost, cache, &stacks);
        search.excuse(&moment.memory, &mut found, is_excused);
    }
    let causes = search.causes(&moment.memory, &found, plan.scope);
    moment.confirm()?;
    let left_out = search.heap.left_out() + moment.memory.left_out() + found.left_out as usize;
    let is_copied = matches!(moment.hold, Hold::Copy(..));
    let pause = moment.hold.release();
    let end = dump::end_of(session, header);
    let snapshot = Snapshot::read(&agent.segment, session, end)?;
    ensure_tracked(&snapshot)?;
    let stacks = Snapshot::read_stacks(&agent.segment, session)?;
    let overwritten = stacks::correct_weights(&mut found.lost, &stacks, &snapshot);
    let amounts = stacks::amounts(&found.lost, &stacks);
    let new_losses = plan.base.map(|base| match base {
        Earlier::Dump(base) => base.new_losses(&amounts, &snapshot, header, agent.pid),
        Earlier::SameSession(before) => NewLosses::between(&amounts, before),
    });
    let mut objects = Vec::new();
    if plan.identify {
        let lost = found.lost.iter();
        objects.extend(lost.map(|lost| (lost.object.at, lost.object.bytes)));
    }
    let mut leaks = Leaks::of(
        &found.lost,
        causes.as_deref(),
        &stacks,
        tick_of(end.ns),
        new_losses.as_ref(),
    );
    let leaves = leaks.leaks.iter().map(|leak| leak.node);
    let merged_nodes = duplicate_stacks::merge(leaves, &snapshot, header, agent.pid);
    leaks.join(&merged_nodes);
    let check = Check {
        snapshot,
        leaks,
        amounts,
        pause,
        scanned: search.marks.scanned,
        search: start.elapsed(),
        searches,
        objects,
        left_out,
        missed: moment.memory.missed_bytes(),
        shared: if is_copied {
            moment.memory.shared_bytes()
        } else {
            0
        },
        own_allocator: header.system_allocator(),
        in_flight: moment.kernel.in_flight,
        searched_by_copy: moment.memory.searched_by_copy(),
        too_many: causes.is_none() && plan.scope == Scope::Unreachable,
        used: suppressed.used(plan.suppressions),
        overwritten,
        unclear: found.unclear,
        suppressions_error: None,
    };
    Ok((check, suppressed.has_unexamined))
}

/// Fails if no sampled object is tracked: such a process would seem to have no leaks.
fn ensure_tracked(snapshot: &Snapshot) -> anyhow::Result<()> {
    let samples = snapshot.totals.samples;
    let untracked = snapshot.untracked();
    anyhow::ensure!(
        samples == 0 || untracked < samples,
        "none of its {samples} samples has a place in their range: if its addresses are limited \
         (ulimit -v), raise the limit and restart it"
    );
    Ok(())
}

/// Captures a process and searches it.
fn search(
    agent: &Agent,
    header: &Header<'_>,
    session: &Session,
    globals: &HeapGlobals,
    plan: &Plan<'_>,
) -> anyhow::Result<SearchResult> {
    agent.confirm()?;
    let moment = Moment::of(agent, plan.method)?;
    let agent_memory = header.agent_memory();
    let search = Search::of(&moment, globals, agent_memory, plan.options, false);
    let mut search = search.or_else(|error| {
        moment.confirm()?;
        agent.confirm().with_context(|| {
            let pid = agent.pid;
            format!("process {pid} executed another program while it was captured; try again")
        })?;
        Err(error)
    })?;
    if plan.scope == Scope::Unfreed {
        search.restart_from_exemptions(&moment.memory, header.agent_memory());
    }
    let found = search.lost(&moment.memory, session, plan.scope);
    moment.confirm()?;
    Ok(SearchResult {
        moment,
        search,
        found,
    })
}

/// Lost objects that suppressions match.
#[derive(Default)]
struct SuppressionUses {
    /// Sums by index of the template.
    by_template: BTreeMap<usize, Sum>,
    /// True if an object is lost whose stack was not examined.
    has_unexamined: bool,
}

impl SuppressionUses {
    /// Returns true if a suppression matches the stack of a lost object, and counts the object.
    fn add(&mut self, lost: &Lost, cache: &SuppressionCache<'_>, stacks: &[(NodeId, u32)]) -> bool {
        let Some((leaf, _)) = stacks.get(lost.object.record as usize) else {
            return false;
        };
        match cache.match_of(*leaf) {
            StackMatch::Template(template) => {
                self.by_template.entry(template).or_default().add(lost);
                true
            }
            StackMatch::NoTemplate => false,
            StackMatch::Unexamined => {
                // `[table full]` has no stack to examine.
                self.has_unexamined |= *leaf != 0;
                false
            }
        }
    }

    fn used(&self, suppressions: &Suppressions) -> Vec<UsedSuppression> {
        let used = |(template, sum): (&usize, &Sum)| UsedSuppression {
            template: suppressions.template(*template),
            sum: *sum,
        };
        self.by_template.iter().map(used).collect()
    }
}

/// Returns the addresses of the allocator's global data.
fn globals(header: &Header<'_>) -> anyhow::Result<HeapGlobals> {
    header.heap().context(
        "it keeps its own allocator (MEM_PROFILER_ALLOCATOR=system), so sampled objects cannot be listed on this processor",
    )
}

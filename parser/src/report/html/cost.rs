//! Tab with the cost of allocation: for each function its CPU time, the part spent in the
//! allocator, and in a combined profile what it allocates and holds.

use std::borrow::Cow;
use std::sync::LazyLock;

use profile::printable::printable;
use profile::{Mapping, Profile};
use regex::Regex;
use serde::Serialize;

use super::tab::{Data, PageContext, ProfileKind, Tab};
use crate::json;
use crate::nodes::Nodes;
use crate::view::ViewStack;
use crate::view::without_parameters;

/// The tab of costs.
pub const TAB: Tab = Tab {
    script: include_str!("cost.js"),
    profiles: ProfileKind::Time,
    data: Some(Data {
        key: "cost",
        json: object,
    }),
};

/// Maximum number of rows.
const MAX_ROWS: usize = 20_000;

/// Pattern of the functions by which programs allocate and free, and of allocator-internal
/// functions, for stacks without any frame of the program.
static ALLOCATOR: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let c = "(malloc|calloc|realloc|reallocarray|free|cfree|free_sized|free_aligned_sized|memalign\
        |aligned_alloc|posix_memalign|valloc|pvalloc|mallocx|rallocx|xallocx|dallocx|sdallocx)";
    let inside = r"_int_(malloc|free|realloc|memalign)|malloc_(consolidate|trim)|sysmalloc|systrim|tc_(new|delete)\w*|tcmalloc::.*";
    let cpp = r"operator (new|delete)(\[\])?";
    let rust = "(__r(ust|dl|g)_|alloc::alloc::)(alloc|dealloc|realloc|alloc_zeroed)";
    let suffix = r"(\.(part|cold|isra|constprop|lto_priv)(\.\d+)*|@.*)*";
    Regex::new(&format!(
        "^((__libc_|__|_|je_|_rjem_|tc_|mi_|rp|scalable_)?{c}|{inside}|{cpp}|{rust}){suffix}$"
    ))
    .ok()
});

/// Returns true if a function belongs to an allocator.
fn is_allocator(name: &str) -> bool {
    let name = without_parameters(name);
    ALLOCATOR.as_ref().is_some_and(|names| names.is_match(name))
}

/// Sums of a function itself, and with its callees.
#[derive(Clone, Copy, Default)]
struct Sum {
    flat: i128,
    cum: i128,
}

/// All sums of a function.
#[derive(Clone, Copy, Default)]
struct Row {
    time: Sum,
    /// Time in the allocator; `flat` if the function called it itself.
    allocator: Sum,
    bytes: Sum,
    objects: Sum,
    live: Sum,
}

/// Columns of the profile.
struct Columns {
    time: usize,
    bytes: Option<usize>,
    objects: Option<usize>,
    live: Option<usize>,
}

impl Columns {
    fn new(profile: &Profile) -> Option<Self> {
        Some(Self {
            time: profile.time_column()?,
            bytes: profile.type_index("alloc_space"),
            objects: profile.type_index("alloc_objects"),
            live: profile.type_index("inuse_space"),
        })
    }
}

#[derive(Serialize)]
struct Cost<'a> {
    /// Nanoseconds of all stacks that are shown.
    time: i128,
    /// Part of `time` in the allocator, in nanoseconds.
    allocator: i128,
    /// Duration of the heap's session, in seconds; `None` without one.
    seconds: Option<f64>,
    left_out: usize,
    names: Vec<Cow<'a, str>>,
    flat: Values,
    cum: Values,
}

/// Values of one kind, one for each name.
#[derive(Serialize, Default)]
struct Values {
    time: Vec<i128>,
    allocator: Vec<i128>,
    bytes: Vec<i128>,
    objects: Vec<i128>,
    live: Vec<i128>,
}

fn object(page: &PageContext) -> String {
    let profile = page.context.view.profile();
    let cost = Columns::new(profile).map(|columns| cost(page, &columns));
    json::embedded(&cost)
}

fn cost<'a>(page: &PageContext<'a>, columns: &Columns) -> Cost<'a> {
    let context = page.context;
    let (rows, totals) = rows(page, columns);
    let mut ranking = rank_entries(&rows, context.nodes);
    let left_out = ranking.len().saturating_sub(MAX_ROWS);
    ranking.truncate(MAX_ROWS);
    let facts = &context.view.profile().facts;
    let has_memory = columns.bytes.is_some();
    let length = facts.duration_ns.filter(|&ns| has_memory && ns > 0);
    let name = |&entry: &u32| printable(context.nodes.name(entry));
    Cost {
        time: totals.time.flat,
        allocator: totals.allocator.flat,
        seconds: length.map(|ns| ns as f64 / 1e9),
        left_out,
        names: ranking.iter().map(name).collect(),
        flat: values(&rows, &ranking, |sum| sum.flat),
        cum: values(&rows, &ranking, |sum| sum.cum),
    }
}

fn values(rows: &[Row], ranking: &[u32], part: fn(Sum) -> i128) -> Values {
    let mut values = Values::default();
    for row in ranking.iter().map(|&entry| rows[entry as usize]) {
        values.time.push(part(row.time));
        values.allocator.push(part(row.allocator));
        values.bytes.push(part(row.bytes));
        values.objects.push(part(row.objects));
        values.live.push(part(row.live));
    }
    values
}

/// Returns the sums of each entry, and of everything.
fn rows(page: &PageContext, columns: &Columns) -> (Vec<Row>, Row) {
    let view = page.context.view;
    let nodes = page.context.nodes;
    let allocators: Vec<bool> = (0..nodes.count() as u32)
        .map(|entry| is_allocator(&nodes.entry(entry).name))
        .collect();
    let agents: Vec<bool> = view.profile().mappings.iter().map(is_agent).collect();
    let mut rows = vec![Row::default(); nodes.count()];
    let mut totals = Row::default();
    let mut seen = vec![usize::MAX; nodes.count()];
    for ViewStack {
        index: stack,
        frames,
        ..
    } in view.stacks()
    {
        let values = view.profile().values_of(stack);
        let value = |column: Option<usize>| column.map_or(0, |c| i128::from(values[c]));
        let stack_values = [
            value(Some(columns.time)),
            value(columns.bytes),
            value(columns.objects),
            value(columns.live),
        ];
        let in_agent = calls_of_agent(view.profile(), &agents, nodes, frames);
        let visible = frames.iter().zip(in_agent);
        let entries: Vec<(u32, bool)> = visible
            .filter(|(f, _)| !view.is_hidden(**f))
            .flat_map(|(&f, in_agent)| nodes.of_location(f).iter().map(move |&e| (e, in_agent)))
            .collect();
        // The outermost allocator function is responsible for its callees.
        let is_allocator =
            |&(entry, in_agent): &(u32, bool)| in_agent || allocators[entry as usize];
        let outermost_allocator = match stack_values[0] {
            0 => None,
            _ => entries.iter().rposition(is_allocator),
        };
        totals.time.flat += stack_values[0];
        totals.allocator.flat += outermost_allocator.map_or(0, |_| stack_values[0]);
        for (depth, &(entry, _)) in entries.iter().enumerate() {
            let row = &mut rows[entry as usize];
            let is_first = std::mem::replace(&mut seen[entry as usize], stack) != stack;
            row.add(stack_values, depth == 0, is_first);
            if let Some(allocator) = outermost_allocator
                && depth > allocator
            {
                let is_caller = depth == allocator + 1;
                row.allocator.flat += if is_caller { stack_values[0] } else { 0 };
                row.allocator.cum += if is_first { stack_values[0] } else { 0 };
            }
        }
    }
    (rows, totals)
}

/// Returns for each frame whether it is the agent's, in a call that allocates or frees. The agent's
/// entry point may have jumped to an inner function, so that no frame has the name `malloc`. Calls
/// of its other entry points (`dlopen`, …) do not count.
fn calls_of_agent(profile: &Profile, agents: &[bool], nodes: &Nodes, frames: &[u32]) -> Vec<bool> {
    let is_agent_frame = |&frame: &u32| {
        let mapping = profile.locations[frame as usize].mapping;
        agents.get(mapping as usize).is_some_and(|&is| is)
    };
    let mut in_agent: Vec<bool> = frames.iter().map(is_agent_frame).collect();
    let mut end = in_agent.len();
    while let Some(outermost) = in_agent[..end].iter().rposition(|&is| is) {
        let last_before = in_agent[..=outermost].iter().rposition(|&is| !is);
        let start = last_before.map_or(0, |before| before + 1);
        let entry = nodes.of_location(frames[outermost]).last();
        let name = entry.map_or("", |&entry| nodes.entry(entry).name.as_str());
        let allocates = name.is_empty()
            || is_allocator(name)
            || name.contains("mem_agent::") && !name.contains("::loader::");
        in_agent[start..=outermost].fill(allocates);
        end = start;
    }
    in_agent
}

fn is_agent(mapping: &Mapping) -> bool {
    let name = mapping.path.file_name();
    name.is_some_and(|name| name.as_encoded_bytes().starts_with(b"libmem_agent"))
}

impl Row {
    /// Adds a stack's time, bytes, objects and live bytes. `is_innermost` is true if the function is
    /// the stack's innermost one; `is_first`, if it was not counted for this stack before.
    fn add(&mut self, values: [i128; 4], is_innermost: bool, is_first: bool) {
        let sums = [
            &mut self.time,
            &mut self.bytes,
            &mut self.objects,
            &mut self.live,
        ];
        for (sum, value) in sums.into_iter().zip(values) {
            sum.flat += if is_innermost { value } else { 0 };
            sum.cum += if is_first { value } else { 0 };
        }
    }
}

/// Returns the entries with any value, ordered by their largest share of any column.
fn rank_entries(rows: &[Row], nodes: &Nodes) -> Vec<u32> {
    let parts = |row: &Row| [row.time, row.allocator, row.bytes, row.live].map(|sum| sum.cum.abs());
    let mut largest = [1i128; 4];
    for row in rows {
        for (largest, part) in largest.iter_mut().zip(parts(row)) {
            *largest = part.max(*largest);
        }
    }
    let rank = |row: &Row| {
        let shares = parts(row).into_iter().zip(largest);
        shares
            .map(|(part, largest)| part as f64 / largest as f64)
            .fold(0.0, f64::max)
    };
    let mut ranking: Vec<(f64, u32)> = rows.iter().map(rank).zip(0..).collect();
    ranking.retain(|(rank, _)| *rank > 0.0);
    ranking.sort_by(|a, b| {
        let name = |entry: u32| nodes.name(entry);
        (b.0.total_cmp(&a.0)).then_with(|| name(a.1).cmp(name(b.1)))
    });
    ranking.into_iter().map(|(_, entry)| entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_allocators_are_known_by_name() {
        let known = [
            "malloc",
            "free",
            "__libc_calloc",
            "je_mallocx",
            "_rjem_sdallocx",
            "operator new(unsigned long)",
            "operator delete[](void*, unsigned long)",
            "_int_malloc",
            "_int_free.part.0",
            "tcmalloc::allocate_full_malloc_oom(unsigned long)",
            "__rust_dealloc",
            "alloc::alloc::alloc",
            "mi_free",
        ];
        for name in known {
            assert!(is_allocator(name), "{name}");
        }
        let others = [
            "",
            "mallocator",
            "my_malloc",
            "freedom",
            "operator()",
            "Arena::allocate(int)",
            "free_list",
            "arena_new",
        ];
        for name in others {
            assert!(!is_allocator(name), "{name}");
        }
    }
}

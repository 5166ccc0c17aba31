//! Finds the roots of a process: memory outside its heap in which it keeps pointers.
//!
//! These are registers and stacks of threads, writable data of modules, the program's own mappings,
//! and words stored in the kernel ([`super::kernel`]). Memory of the allocator and of the agent is
//! excluded.

use std::mem::offset_of;
use std::ops::Range;

use capture::Thread;
use mem_agents::text;
use profile::maps::Entry;
use reachability::{Heap, Memory, PointerRules, mark};
use shm_protocol::layout::{AgentMemory, OwnMapping};

use super::control_blocks;
use super::exemptions::{self, Exemptions};
use super::intervals::joined;
use super::kernel::KernelData;
use super::options::Options;
use super::regions::Region;

/// Number of bytes below the stack pointer that a function may use (System V ABI for x86-64).
const RED_ZONE: u64 = if cfg!(target_arch = "x86_64") { 128 } else { 0 };
/// Maximum size of the upper part of an exited thread's stack that is searched for its control
/// block, in bytes.
const MAX_STACK_TOP: u64 = 1 << 20;
/// Maximum size of one part of the agent's memory, in bytes.
const MAX_AGENT_BYTES: u64 = 1 << 24;
/// Maximum number of the agent's spare thread records that are read.
const MAX_SPARE: u64 = 1 << 12;
/// Maximum number of the agent's mappings that are read.
const MAX_OWN_MAPPINGS: u64 = 1 << 10;

/// Roots of a process.
#[derive(Debug, Default)]
pub struct Roots {
    /// Descriptions, by number.
    pub roots: Vec<Root>,
    /// Root words, with the number of their description.
    pub words: Vec<(u64, u32)>,
    /// Ranges to search, with the number of their description.
    pub ranges: Vec<(Range<u64>, u32)>,
    /// Memory of the agent, which is excluded.
    pub agent: Vec<Range<u64>>,
}

/// Description of a root.
#[derive(Clone, Debug)]
pub struct Root {
    /// Name for display.
    pub name: String,
    /// Path and address of the ELF file whose variables the root contains.
    pub module: Option<(Vec<u8>, u64)>,
}

/// State of a process from which its roots are found.
pub struct Process<'a> {
    /// Memory of the process.
    pub memory: &'a dyn Memory,
    /// Heap of the process.
    pub heap: &'a Heap,
    /// Stopped threads.
    pub threads: &'a [Thread],
    /// Mappings of the process.
    pub regions: &'a [Region],
    /// Location of the agent's memory.
    pub agent: AgentMemory,
}

/// Kind of a region.
enum Kind {
    Stack,
    Data,
}

impl Roots {
    /// Finds the roots that the options select, except for those in the kernel.
    pub fn of(process: &Process<'_>, options: &Options) -> Self {
        let mut roots = Self::default();
        let mut stacks = Vec::with_capacity(process.threads.len());
        for thread in process.threads {
            stacks.extend((thread.sp != 0).then_some((thread.sp, thread.tid)));
            if options.registers {
                roots.add_thread(process, thread);
            }
        }
        stacks.sort_unstable();
        let agent = agent_memory(process);
        for region in process.regions {
            if region.is_searched() {
                roots.add_region(process, region, &agent, &stacks, options);
            }
        }
        roots.agent = agent;
        // Ranges of modules come first: a variable is a better explanation than a stack.
        let has_no_module =
            |range: &(Range<u64>, u32)| roots.roots[range.1 as usize].module.is_none();
        let mut ranges = std::mem::take(&mut roots.ranges);
        ranges.sort_by_key(has_no_module);
        roots.ranges = ranges;
        roots
    }

    fn add_root(&mut self, name: String) -> u32 {
        self.roots.push(Root { name, module: None });
        self.roots.len() as u32 - 1
    }

    fn add_thread(&mut self, process: &Process<'_>, thread: &Thread) {
        let heap = process.heap;
        let number = self.add_root(format!("registers of thread {}", thread.tid));
        // Calls do not preserve these registers, so within a function of the C library they hold no
        // pointers of the caller. They may hold stale pointers from copying memory.
        let scratch = if is_in_c_library_call(process, thread) {
            &[][..]
        } else {
            &thread.scratch
        };
        let words = thread.words.iter().chain(scratch);
        let words = words.filter(|word| **word > 0xffff);
        self.words.extend(words.map(|word| (*word, number)));
        // A stack may be an object of the heap, as with coroutines. The stack pointer keeps it
        // alive, whatever limit on offsets applies.
        let object = heap.find(thread.sp).and_then(|(_, r)| heap.region(r));
        self.words.extend(object.map(|(at, _)| (at, number)));
    }

    /// Adds a region. `stacks` has the stack pointer and id of each thread, sorted.
    fn add_region(
        &mut self,
        process: &Process<'_>,
        region: &Region,
        agent: &[Range<u64>],
        stacks: &[(u64, i32)],
        options: &Options,
    ) {
        let UsedPart { kind, range, name } = used_part(process, region, stacks);
        let range = match kind {
            Kind::Stack => match thread_local(process, &range) {
                Some(variables) if options.stacks && options.thread_variables => {
                    range.start..variables.end
                }
                Some(variables) if options.stacks => range.start..variables.start,
                Some(variables) if options.thread_variables => variables,
                None if options.stacks => range,
                _ => return,
            },
            Kind::Data if options.globals => range,
            Kind::Data => return,
        };
        let number = self.add_root(name);
        let module = region.module.and_then(|module| process.regions.get(module));
        let module = module.map(|first| (first.name.clone(), first.range.start));
        self.roots[number as usize].module = module;
        for part in subtract(range, agent) {
            let outside = process.heap.outside(part);
            self.ranges
                .extend(outside.into_iter().map(|range| (range, number)));
        }
    }

    /// Adds the objects and regions that the program declares.
    pub fn add_exemptions(&mut self, exemptions: Exemptions) {
        let number = self.add_root("object that the program ignores".to_owned());
        let objects = exemptions.objects.into_iter();
        self.words.extend(objects.map(|at| (at, number)));
        let number = self.add_root("region that the program registered".to_owned());
        // Includes regions within objects.
        let regions = exemptions.regions.into_iter();
        self.ranges.extend(regions.map(|range| (range, number)));
    }

    /// Converts to the roots of a search.
    pub fn as_mark_roots<'a>(&'a self, pointers: &'a PointerRules, trace: bool) -> mark::Roots<'a> {
        mark::Roots {
            words: &self.words,
            ranges: &self.ranges,
            pointers,
            trace,
        }
    }

    /// Adds the words that the kernel will return to the process.
    pub fn add_kernel_data(&mut self, kernel_data: &KernelData) {
        for (name, words) in &kernel_data.words {
            let number = self.add_root(name.clone());
            self.words.extend(words.iter().map(|word| (*word, number)));
        }
    }
}

/// Returns true if a thread is in a system call made by a function of the C library.
fn is_in_c_library_call(process: &Process<'_>, thread: &Thread) -> bool {
    let regions = process.regions;
    let pc = thread.pc;
    let at = regions.partition_point(|region| region.range.end <= pc);
    let region = regions.get(at).filter(|region| region.range.contains(&pc));
    let name = region.map(|region| String::from_utf8_lossy(&region.name));
    thread.in_call && name.is_some_and(|name| capture::is_c_library(&name))
}

/// Part of a region that is in use.
struct UsedPart {
    kind: Kind,
    /// Range without the unused part of a stack.
    range: Range<u64>,
    /// Name for display.
    name: String,
}

/// Returns the part of a region that is in use.
fn used_part(process: &Process<'_>, region: &Region, stacks: &[(u64, i32)]) -> UsedPart {
    let range = region.range.clone();
    let lowest = stacks.get(stacks.partition_point(|(sp, _)| *sp < range.start));
    let is_stack = region.has_guard || region.name.starts_with(b"[stack");
    if let Some((sp, tid)) = lowest.filter(|(sp, _)| range.contains(sp)) {
        let name = format!("stack of thread {tid}");
        let start = if is_stack {
            sp.saturating_sub(RED_ZONE).max(range.start)
        } else {
            range.start
        };
        return UsedPart {
            kind: Kind::Stack,
            range: start..range.end,
            name,
        };
    }
    let module = region.module.and_then(|module| process.regions.get(module));
    let path = module.map_or(&region.name, |module| &module.name);
    let name = match (
        &path[..],
        module.map_or(region.file.1, |module| module.file.1),
    ) {
        ([], _) => "mapping of the program's own".to_owned(),
        (name, 0) => text::escape(name),
        (path, _) => format!("data of {}", text::escape(text::base_name(path))),
    };
    let start = block_of_dead_thread(process, region).unwrap_or(range.start);
    UsedPart {
        kind: Kind::Data,
        range: start..range.end,
        name,
    }
}

/// Number of bytes below a thread control block that count as thread-local variables of the program
/// and its initial libraries. The first frames of the stack, if they are within that distance, are
/// treated like variables.
const STATIC_TLS_BYTES: u64 = 4096;

/// Returns the upper end of a thread's stack: its thread-local variables and its control block,
/// which points to the variables of libraries loaded later.
fn thread_local(process: &Process<'_>, stack: &Range<u64>) -> Option<Range<u64>> {
    let mut pointers = process.threads.iter().map(|thread| thread.thread_pointer);
    let block = pointers.find(|at| stack.contains(at))?;
    Some(stack.start.max(block.saturating_sub(STATIC_TLS_BYTES))..stack.end)
}

/// Returns the address of the control block on the stack of an exited thread, which the C library
/// keeps for reuse. Returns `None` for other regions.
fn block_of_dead_thread(process: &Process<'_>, region: &Region) -> Option<u64> {
    if !region.has_guard || !region.name.is_empty() {
        return None;
    }
    // The block lies at the upper end, above the thread's variables, so it is the last one found.
    let Range { start, end } = region.range;
    let last = start.max(end.saturating_sub(MAX_STACK_TOP))..end;
    let block = control_blocks::find(process.memory, last).pop();
    let is_alive = |at: u64| process.threads.iter().any(|t| t.thread_pointer == at);
    block.filter(|block| !is_alive(*block))
}

/// Returns the agent's memory, sorted: its library, its thread-local variables (with jemalloc's,
/// which point to free memory), its tables and its per-thread records.
fn agent_memory(process: &Process<'_>) -> Vec<Range<u64>> {
    let agent = &process.agent;
    let pages = |bytes: u64| bytes.min(MAX_AGENT_BYTES).next_multiple_of(4096);
    let range = |start: u64, bytes: u64| start..start.saturating_add(bytes.min(MAX_AGENT_BYTES));
    let mut ranges = vec![range(
        agent.start,
        pages(agent.end.saturating_sub(agent.start)),
    )];
    // Addresses of the pointers to the per-thread records.
    let mut pointers = Vec::new();
    ranges.push(agent.start..agent.end.max(agent.start).next_multiple_of(4096));
    for thread in process.threads.iter().filter(|t| t.thread_pointer != 0) {
        let at = |distance: u64| thread.thread_pointer.wrapping_add(distance);
        ranges.push(range(at(agent.variables), agent.variables_bytes));
        pointers.push(at(agent.thread));
    }
    pointers.extend((0..agent.spare_count.min(MAX_SPARE)).map(|n| agent.spare.wrapping_add(n * 8)));
    let records = pointers
        .into_iter()
        .filter_map(|at| process.memory.word(at));
    let records = records.filter(|at| *at != 0);
    ranges.extend(records.map(|at| range(at, pages(agent.thread_bytes))));
    ranges.extend(exemptions::memory(process.memory, agent.exemptions));
    let listed = (0..agent.own_count.min(MAX_OWN_MAPPINGS)).filter_map(|n| {
        let at = agent.own.wrapping_add(n * size_of::<OwnMapping>() as u64);
        let word = |field: usize| process.memory.word(at.wrapping_add(field as u64));
        let start = offset_of!(OwnMapping, start);
        let bytes = offset_of!(OwnMapping, bytes);
        let bytes = word(bytes).filter(|bytes| *bytes > 0)?;
        Some(range(word(start)?, pages(bytes)))
    });
    ranges.extend(listed);
    joined(ranges)
}

/// Subtracts other ranges, which are sorted and disjoint, from a range.
fn subtract(range: Range<u64>, others: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut rest = Vec::new();
    let mut start = range.start;
    let first = others.partition_point(|other| other.end <= range.start);
    for other in &others[first..] {
        if other.start > start {
            rest.push(start..other.start.min(range.end));
        }
        start = start.max(other.end);
        if start >= range.end {
            break;
        }
    }
    rest.push(start..range.end);
    rest.retain(|part| part.start < part.end);
    rest
}

/// Returns the mappings to be searched that are missing from a copy. `copy` is the text of the
/// copy's maps. Both are sorted.
pub fn missing_in_copy(regions: &[Region], copy: &[u8]) -> Vec<Range<u64>> {
    let copied: Vec<Range<u64>> = Entry::all(copy).map(|e| e.start..e.end).collect();
    let searched = regions.iter().filter(|region| region.is_searched());
    searched
        .filter(|region| {
            let start = region.range.start;
            let at = copied.partition_point(|range| range.end <= start);
            copied.get(at).is_none_or(|range| range.start > start)
        })
        .map(|region| region.range.clone())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_the_agent_are_subtracted() {
        let cut = |range: Range<u64>| subtract(range, &[10..20, 40..50]);
        assert_eq!(cut(0..30), [0..10, 20..30]);
        assert_eq!(cut(12..15), []);
        assert_eq!(cut(15..25), vec![20..25; 1]);
        assert_eq!(cut(30..60), [30..40, 50..60]);
        assert_eq!(cut(45..47), []);
        assert_eq!(subtract(5..6, &[]), vec![5..6; 1]);
    }
}

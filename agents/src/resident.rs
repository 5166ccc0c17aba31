//! Resident anonymous memory of a process, by owner.
//!
//! Owners are distinguished by address: the allocator's memory by its radix tree, the agent's by
//! its list of mappings and by the range of sampled objects, variables by the files that they
//! belong to. The maps alone do not suffice, because the kernel joins adjacent mappings of
//! different owners.

use std::cell::RefCell;
use std::mem::offset_of;
use std::ops::Range;

use proc::{Pages, Wanted};
use profile::maps::Entry;
use profile::resident::ByOwner;
use reachability::jemalloc::{self, Globals, joined};
use reachability::{Memory, ProcessMemory};
use shm_protocol::layout::{AgentMemory, HeapGlobals, OwnMapping};
use shm_protocol::snapshot::Header;

use crate::thread_stacks::Stacks;
use crate::variables;

/// Maximum number of pages that are looked up on kernels that cannot skip missing ones: 128 GiB, or
/// a few tenths of a second.
pub const MAX_PAGES: u64 = 1 << 25;
/// Maximum number of the agent's mappings that are read.
const MAX_OWN_MAPPINGS: u64 = 1 << 10;

/// Anonymous memory of a process with the agent, by owner: address ranges, sorted and disjoint.
#[derive(Debug)]
pub struct Owners {
    heap: jemalloc::Mapped,
    agent: Vec<Range<u64>>,
    stacks: Vec<Range<u64>>,
    /// Program's own mappings, and stacks of threads whose stack pointers are not known.
    pub own_mappings: Vec<Range<u64>>,
}

impl Owners {
    /// Finds the owners' memory in a running process. `maps` is the text of its maps, `stacks` are
    /// those of its threads. Returns `None` if the program keeps its own allocator, or without
    /// permission to read the process's memory.
    pub fn find(pid: i32, header: &Header<'_>, maps: &[u8], stacks: &Stacks) -> Option<Self> {
        if header.system_allocator() {
            return None;
        }
        let addresses = header.heap()?;
        let globals = Globals {
            emap: addresses.emap,
            arenas: addresses.arenas,
            page: addresses.page,
        };
        let memory = ExistingMemory::of(pid);
        let heap = jemalloc::mapped(&memory, &globals).ok()?;
        let anonymous = anonymous_mappings(maps, &variables::find(pid, maps));
        let objects = [&heap.in_use, &heap.unused, &heap.metadata];
        let objects = joined(objects.into_iter().flatten().cloned().collect());
        let range = sampled_range(&memory, &addresses);
        let mut agent = agent_mappings(&memory, &header.agent_memory());
        agent.extend(header_table(&range, &anonymous, &objects));
        let agent = joined(agent);
        let others = joined([objects, agent.clone()].concat());
        let mut owners = Self {
            heap,
            agent,
            stacks: Vec::new(),
            own_mappings: Vec::new(),
        };
        let first_stack = Entry::all(maps).find(|entry| entry.path == b"[stack]");
        for mapping in anonymous {
            let is_first_stack = first_stack.is_some_and(|stack| stack.start == mapping.start);
            let stacks = if is_first_stack {
                vec![mapping.clone()]
            } else {
                stacks.within(&mapping)
            };
            for rest in subtract(mapping, &stacks) {
                owners.own_mappings.extend(subtract(rest, &others));
            }
            for stack in stacks {
                owners.stacks.extend(subtract(stack, &others));
            }
        }
        Some(owners)
    }

    /// Returns the resident memory of each owner. Returns `None` if the lookup is not allowed, or
    /// would take too long.
    pub fn resident(&self, pid: i32) -> Option<ByOwner> {
        let mut pages = Pages::with_limit(pid, MAX_PAGES);
        if !pages.is_known() {
            return None;
        }
        Some(ByOwner {
            heap_in_use: resident_bytes(&mut pages, &self.heap.in_use)?,
            heap_unused: resident_bytes(&mut pages, &self.heap.unused)?,
            heap_metadata: resident_bytes(&mut pages, &self.heap.metadata)?,
            agent: resident_bytes(&mut pages, &self.agent)?,
            stacks: resident_bytes(&mut pages, &self.stacks)?,
            own_mappings: resident_bytes(&mut pages, &self.own_mappings)?,
        })
    }
}

/// Returns the size of the resident private pages in these ranges, in bytes. Returns `None` if the
/// lookup would take too long.
pub fn resident_bytes(pages: &mut Pages, ranges: &[Range<u64>]) -> Option<u64> {
    let mut bytes = 0;
    for range in ranges {
        let found = pages.present(range.clone(), Wanted::ResidentPrivate)?;
        bytes += found.iter().map(|part| part.end - part.start).sum::<u64>();
    }
    Some(bytes)
}

/// Returns the private anonymous memory that is not variables of a program or library.
fn anonymous_mappings(maps: &[u8], variables: &[Range<u64>]) -> Vec<Range<u64>> {
    let is_anonymous = |entry: &Entry<'_>| {
        let is_kernel_mapping = entry.path.starts_with(b"[v");
        let is_accessible = !entry.permissions.starts_with(b"---");
        let is_private = entry.permissions.ends_with(b"p");
        entry.inode == 0 && is_private && is_accessible && !is_kernel_mapping
    };
    let mappings = Entry::all(maps).filter(is_anonymous);
    mappings
        .flat_map(|entry| subtract(entry.start..entry.end, variables))
        .collect()
}

/// Returns the agent's mappings, read from its list in the process's memory.
fn agent_mappings(memory: &dyn Memory, agent: &AgentMemory) -> Vec<Range<u64>> {
    let listed = (0..agent.own_count.min(MAX_OWN_MAPPINGS)).filter_map(|number| {
        let entry = agent
            .own
            .wrapping_add(number * size_of::<OwnMapping>() as u64);
        let word = |field: usize| memory.word(entry.wrapping_add(field as u64));
        let start = word(offset_of!(OwnMapping, start)).filter(|start| *start != 0)?;
        let end = start.checked_add(word(offset_of!(OwnMapping, bytes))?)?;
        Some(start..end)
    });
    joined(listed.collect())
}

/// Returns the range of sampled objects, which is empty before there is one.
fn sampled_range(memory: &dyn Memory, heap: &HeapGlobals) -> Range<u64> {
    let start = memory.word(heap.range_base).unwrap_or(0);
    let bytes = memory.word(heap.range_size).unwrap_or(0);
    start..start.saturating_add(bytes)
}

/// Returns the accessible parts of the range of sampled objects that are not the allocator's: the
/// agent's table of headers, which the range begins with.
fn header_table(
    range: &Range<u64>,
    anonymous: &[Range<u64>],
    allocator: &[Range<u64>],
) -> Vec<Range<u64>> {
    let accessible = anonymous
        .iter()
        .map(|mapping| mapping.start.max(range.start)..mapping.end.min(range.end));
    accessible
        .filter(|part| part.start < part.end)
        .flat_map(|part| subtract(part, allocator))
        .collect()
}

/// Subtracts other ranges, which are sorted and disjoint, from a range.
pub fn subtract(range: Range<u64>, others: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut rest = Vec::new();
    let mut start = range.start;
    let first = others.partition_point(|other| other.end <= range.start);
    for other in others[first..].iter().take_while(|o| o.start < range.end) {
        if other.start > start {
            rest.push(start..other.start);
        }
        start = start.max(other.end);
    }
    if start < range.end {
        rest.push(start..range.end);
    }
    rest
}

/// Memory of a running process. Skips pages that do not exist: reading them would create them.
pub struct ExistingMemory {
    memory: ProcessMemory,
    /// Pages that [`next`](Memory::next) returns.
    wanted: Wanted,
    /// True if reads of other pages fail.
    is_strict: bool,
    pages: RefCell<Pages>,
    /// Range that was looked up last, and its pages.
    last: RefCell<(Range<u64>, Vec<Range<u64>>)>,
}

impl ExistingMemory {
    /// Prepares reads of the memory of the process `pid`.
    pub fn of(pid: i32) -> Self {
        Self {
            memory: ProcessMemory::of(proc::living_thread(pid)),
            wanted: Wanted::Private,
            is_strict: false,
            pages: RefCell::new(Pages::with_limit(pid, MAX_PAGES)),
            last: RefCell::new((0..0, Vec::new())),
        }
    }

    /// Prepares reads of resident private pages. Reads of any others fail: they would make the
    /// process larger, bring pages back from swap, or wait for a file.
    pub fn resident(pid: i32) -> Self {
        Self {
            wanted: Wanted::ResidentPrivate,
            is_strict: true,
            ..Self::of(pid)
        }
    }

    /// Returns true if all pages of a range may be read.
    fn may_read(&self, at: u64, bytes: usize) -> bool {
        let page = proc::page_size();
        let Some(end) = at.checked_add(bytes as u64) else {
            return false;
        };
        let pages = at / page * page..end.next_multiple_of(page);
        let found = self.pages.borrow_mut().present(pages.clone(), self.wanted);
        found.is_some_and(|found| found.len() == 1 && found[0] == pages)
    }
}

impl Memory for ExistingMemory {
    fn read(&self, at: u64, buffer: &mut [u8]) -> usize {
        if self.is_strict && !self.may_read(at, buffer.len()) {
            return 0;
        }
        self.memory.read(at, buffer)
    }

    fn gather(&self, pieces: &[(u64, usize)], buffer: &mut [u8]) {
        self.memory.gather(pieces, buffer);
    }

    fn next(&self, range: Range<u64>) -> Option<Range<u64>> {
        let (cached, parts) = &mut *self.last.borrow_mut();
        if range.start < cached.start || range.end != cached.end {
            *cached = range.clone();
            *parts = self
                .pages
                .borrow_mut()
                .present(range.clone(), self.wanted)
                .unwrap_or_default();
        }
        let next = parts.partition_point(|part| part.end <= range.start);
        let next = parts.get(next)?;
        let next = next.start.max(range.start)..next.end.min(range.end);
        (next.start < next.end).then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_do_not_count_as_own_mappings() {
        let maps = b"1000-2000 r-xp 0 08:01 5 /bin/x\n2000-3000 rw-p 0 08:01 5 /bin/x\n\
            3000-4800 rw-p 0 00:00 0 \n5000-6000 rw-p 0 00:00 0 [heap]\n\
            7000-8000 rw-p 0 08:01 9 /data\n8000-9000 rw-p 0 00:00 0 \n\
            9000-a000 ---p 0 00:00 0 \na000-b000 rw-s 0 00:01 7 /dev/zero (deleted)\n\
            b000-c000 rw-p 0 00:00 0 [anon:pool]\nc000-d000 r--p 0 00:00 0 [vvar]\n";
        let expected = [
            0x4000..0x4800,
            0x5000..0x6000,
            0x8000..0x9000,
            0xb000..0xc000,
        ];
        let variables = [0x2000..0x3000, 0x3000..0x4000];
        assert_eq!(anonymous_mappings(maps, &variables), expected);
    }

    #[test]
    fn headers_of_sampled_objects_are_not_the_programs() {
        // Mappings: before the range, up to its second quarter with the headers, the objects and
        // behind them, and one across its end.
        let anonymous = [0..90, 100..130, 150..180, 190..220];
        let allocator = [20..30, 120..125, 155..180, 200..210];
        let found = header_table(&(100..200), &anonymous, &allocator);
        assert_eq!(found, [100..120, 125..130, 150..155, 190..200]);
        assert_eq!(header_table(&(0..0), &anonymous, &allocator), []);
    }

    #[test]
    fn ranges_of_other_owners_are_subtracted() {
        let cut = |range: Range<u64>| subtract(range, &[10..20, 40..50]);
        assert_eq!(cut(0..30), [0..10, 20..30]);
        assert_eq!(cut(12..15), []);
        assert_eq!(cut(30..60), [30..40, 50..60]);
        assert_eq!(joined(vec![5..7, 1..2, 2..4, 6..9]), [1..4, 5..9]);
    }
}

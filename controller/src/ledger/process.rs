//! Ledger of the resident memory of a process without the agent: by kind of mapping, and of the heap
//! of glibc's allocator by page.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use mem_agents::resident::{ExistingMemory, MAX_PAGES, resident_bytes};
use mem_agents::text;
use mem_agents::thread_stacks::Stacks;
use proc::Pages;
use reachability::glibc::{self, GlibcHeap, Mappings};

use super::{MODIFIED, Row};
use crate::smaps::{self, Area};

/// Share of the resident memory from which a file or name is listed by itself.
const MIN_LISTED_SHARE: f64 = 0.02;
/// Maximum number of files and names that are listed.
const MAX_LISTED: usize = 8;
/// Address at which the heap of Go's runtime begins on 64-bit systems.
const GO_HEAP: u64 = 0xc0_0000_0000;

/// Resident memory of a process.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Parts, which add up to the resident memory.
    pub parts: Vec<Row>,
    /// Largest files and named mappings, which are in the parts too.
    pub largest: Vec<Row>,
    /// Memory that is swapped out, in bytes.
    pub swap: u64,
    /// True if not all of glibc's heap was recognised: other parts contain the rest.
    pub is_heap_incomplete: bool,
}

impl Ledger {
    /// Returns the resident memory in bytes.
    pub fn total(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }
}

/// Use of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Use {
    Anonymous,
    Named,
    GoHeap,
    Stack,
    Code,
    Variables,
    File,
    Modified,
    Shared,
}

/// Reads the ledger of a process.
pub fn read(pid: i32) -> io::Result<Ledger> {
    let areas = smaps::areas(pid)?;
    let stacks = Stacks::of(pid);
    let uses = uses(&areas, &stacks);
    let is_go = areas
        .iter()
        .zip(&uses)
        .any(|(_, kind)| *kind == Use::GoHeap);
    let heap = if is_go {
        None
    } else {
        glibc::read(&ExistingMemory::resident(pid), &mappings(&areas, &uses))
    };
    let resident = heap.as_ref().map(|heap| ResidentHeap::of(pid, heap));
    let is_read = heap.as_ref().is_none_or(|heap| heap.is_complete);
    let is_heap_incomplete = !is_read || matches!(resident, Some(None));
    let resident = resident.flatten().unwrap_or_default();
    Ok(Ledger {
        parts: parts(
            &areas,
            &uses,
            resident,
            joined_stacks(pid, &areas, &uses, &stacks),
        ),
        largest: largest(&areas),
        swap: areas.iter().map(|area| area.swap).sum(),
        is_heap_incomplete,
    })
}

/// Returns the resident memory of stacks that the kernel has joined with other memory: with mappings
/// that count as anonymous memory.
fn joined_stacks(pid: i32, areas: &[Area], uses: &[Use], stacks: &Stacks) -> u64 {
    let anonymous = areas
        .iter()
        .zip(uses)
        .filter(|(area, kind)| **kind == Use::Anonymous && area.path.is_empty());
    let parts: Vec<Range<u64>> = anonymous
        .flat_map(|(area, _)| stacks.within(&(area.start..area.end)))
        .collect();
    if parts.is_empty() {
        return 0;
    }
    let mut pages = Pages::limited(pid, MAX_PAGES);
    let known = pages.is_known();
    let bytes = known.then(|| resident_bytes(&mut pages, &parts)).flatten();
    bytes.unwrap_or(0)
}

/// Determines the use of each mapping. A mapping that contains stacks and other memory counts as
/// anonymous memory.
fn uses(areas: &[Area], stacks: &Stacks) -> Vec<Use> {
    let modules = smaps::modules(areas);
    let is_module = |area: &Area| modules.binary_search(&&area.path[..]).is_ok();
    let mut uses = Vec::with_capacity(areas.len());
    // End of the last mapping if it has variables of a module: its `.bss` follows.
    let mut variables_end = None;
    for area in areas {
        let is_writable = area.permissions.get(1) == Some(&b'w');
        let is_shared = area.permissions.get(3) == Some(&b's');
        let is_bss = area.path.is_empty() && variables_end == Some(area.start);
        let mapping = area.start..area.end;
        let is_stack = !is_file(area) && stacks.within(&mapping) == [mapping];
        variables_end = None;
        let kind = if is_shared && (!is_file(area) || is_shared_memory(&area.path)) {
            Use::Shared
        } else if area.path == b"[heap]" || area.path == b"/dev/zero" {
            Use::Anonymous
        } else if is_file(area) && area.permissions.contains(&b'x') {
            Use::Code
        } else if is_file(area) && is_writable && is_module(area) {
            variables_end = Some(area.end);
            Use::Variables
        } else if is_file(area) {
            Use::File
        } else if area.path.starts_with(b"[v") || area.path.starts_with(b"[uprobes") {
            Use::Code
        } else if area.path == b"[stack]" || is_stack {
            Use::Stack
        } else if is_bss {
            Use::Variables
        } else if area.start == GO_HEAP || area.path.starts_with(b"[anon: Go") {
            Use::GoHeap
        } else if area.path.starts_with(b"[anon") && !is_glibcs(&area.path) {
            Use::Named
        } else {
            Use::Anonymous
        };
        uses.push(kind);
    }
    uses
}

/// Returns true for the names that glibc gives its memory (`glibc.mem.decorate_maps`).
fn is_glibcs(path: &[u8]) -> bool {
    path.starts_with(b"[anon: glibc: malloc")
}

fn is_file(area: &Area) -> bool {
    area.path.starts_with(b"/")
}

/// Returns true for paths of memory that only looks like a file.
fn is_shared_memory(path: &[u8]) -> bool {
    const PREFIXES: [&[u8]; 5] = [
        b"/dev/shm/",
        b"/memfd:",
        b"/SYSV",
        b"/dev/zero",
        b"[anon_shmem",
    ];
    PREFIXES.iter().any(|prefix| path.starts_with(prefix))
}

/// Returns the mappings among which the heap of glibc's allocator is looked for.
fn mappings(areas: &[Area], uses: &[Use]) -> Mappings {
    let ranges = |wanted: &dyn Fn(&Area, Use) -> bool| -> Vec<Range<u64>> {
        let areas = areas.iter().zip(uses);
        areas
            .filter(|(area, kind)| wanted(area, **kind))
            .map(|(area, _)| area.start..area.end)
            .collect()
    };
    let is_c_library = |area: &Area| {
        let name = text::base_name(&area.path);
        name.starts_with(b"libc.so.6") || name.starts_with(b"libc-2.")
    };
    let has_c_library = areas.iter().any(is_c_library);
    let program = areas.iter().find(|area| is_file(area));
    let program = program.map(|area| &area.path[..]);
    // The kernel splits it where parts of it are advised, protected or locked.
    let mut heap = areas.iter().filter(|area| area.path == b"[heap]");
    let heap = heap.next().map(|first| {
        let last = heap.next_back().unwrap_or(first);
        first.start..last.end
    });
    Mappings {
        variables: ranges(&|area, kind| {
            let is_module = if has_c_library {
                is_c_library(area)
            } else {
                Some(&area.path[..]) == program
            };
            kind == Use::Variables && is_module
        }),
        anonymous: ranges(&|area, kind| {
            let is_glibcs = area.path.is_empty() || is_glibcs(&area.path);
            kind == Use::Anonymous && area.permissions.starts_with(b"rw") && is_glibcs
        }),
        program_break: heap.unwrap_or(0..0),
    }
}

/// Resident memory of the heap of glibc's allocator, in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct ResidentHeap {
    /// Pages of the heaps, without those in `free`.
    in_use: u64,
    /// Pages that lie in a free chunk.
    free: u64,
    /// Chunks with a mapping of their own.
    mapped: u64,
}

impl ResidentHeap {
    /// Looks up the pages of a heap. Returns `None` if that is not allowed or would take too long.
    fn of(pid: i32, heap: &GlibcHeap) -> Option<Self> {
        let mut pages = Pages::limited(pid, MAX_PAGES);
        if !pages.is_known() {
            return None;
        }
        let page = proc::page_size();
        let whole_pages = |range: &Range<u64>| {
            let start = range.start.next_multiple_of(page);
            start..(range.end / page * page).max(start)
        };
        let free: Vec<_> = heap.free.iter().map(whole_pages).collect();
        let free = resident_bytes(&mut pages, &free)?;
        Some(Self {
            in_use: resident_bytes(&mut pages, &heap.heaps)?.saturating_sub(free),
            free,
            mapped: resident_bytes(&mut pages, &heap.mapped)?,
        })
    }
}

/// Lists the parts of the resident memory. The heap was read at another moment, so its parts are
/// limited to the anonymous memory.
fn parts(areas: &[Area], uses: &[Use], heap: ResidentHeap, joined_stacks: u64) -> Vec<Row> {
    let modules = smaps::modules(areas);
    let mut sums: BTreeMap<Use, u64> = BTreeMap::new();
    for (area, kind) in areas.iter().zip(uses) {
        let is_private = area.permissions.ends_with(b"p");
        let copies = match kind {
            Use::File if is_private => area.anonymous.min(area.rss),
            _ => 0,
        };
        *sums.entry(*kind).or_default() += area.rss - copies;
        // Copies of a program's pages that are read-only now: addresses that the loader has filled in.
        let is_module = modules.binary_search(&&area.path[..]).is_ok();
        let use_of_copies = if is_module {
            Use::Variables
        } else {
            Use::Modified
        };
        *sums.entry(use_of_copies).or_default() += copies;
    }
    let anonymous = sums.entry(Use::Anonymous).or_default();
    let joined_stacks = joined_stacks.min(*anonymous);
    *anonymous -= joined_stacks;
    *sums.entry(Use::Stack).or_default() += joined_stacks;
    let sum = |kind| sums.get(&kind).copied().unwrap_or(0);
    let mut anonymous = sum(Use::Anonymous);
    let mut rows = Vec::new();
    for (name, bytes, remark) in [
        (
            "heap in use",
            heap.in_use,
            "glibc's: objects, and holes between them",
        ),
        (
            "large objects",
            heap.mapped,
            "glibc's: each has its own mapping",
        ),
        ("heap free", heap.free, "glibc's: freed pages, kept"),
    ] {
        let bytes = bytes.min(anonymous);
        anonymous -= bytes;
        rows.push(Row::new(name, bytes, remark));
    }
    rows.extend([
        Row::new("Go heap", sum(Use::GoHeap), "of Go's runtime"),
        Row::new("named memory", sum(Use::Named), "anonymous, with a name"),
        Row::new(
            "own mappings",
            anonymous,
            "other heaps (Python's, Java's), the program's own",
        ),
        Row::new("stacks", sum(Use::Stack), "of threads that wait"),
        Row::new("variables", sum(Use::Variables), "of program and libraries"),
        Row::new("code", sum(Use::Code), "executable pages of files"),
        Row::new("files", sum(Use::File), "other pages of files"),
        Row::new("modified files", sum(Use::Modified), MODIFIED),
        Row::new(
            "shared memory",
            sum(Use::Shared),
            "/dev/shm, memfd, System V",
        ),
    ]);
    rows.retain(|row| row.bytes > 0);
    rows
}

/// Lists the files and named mappings with the most resident memory.
fn largest(areas: &[Area]) -> Vec<Row> {
    let total: u64 = areas.iter().map(|area| area.rss).sum();
    let mut by_name: BTreeMap<&[u8], u64> = BTreeMap::new();
    let named = areas.iter().filter(|area| !area.path.is_empty());
    for area in named.filter(|area| area.path != b"[heap]" && area.path != b"[stack]") {
        *by_name.entry(&area.path).or_default() += area.rss;
    }
    let mut rows: Vec<_> = by_name
        .into_iter()
        .filter(|(_, bytes)| *bytes as f64 >= total as f64 * MIN_LISTED_SHARE && *bytes > 0)
        .map(|(path, bytes)| Row::new(text::escape(path), bytes, ""))
        .collect();
    rows.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    rows.truncate(MAX_LISTED);
    rows
}

//! Ledger of the resident memory of a process without the agent: by kind of mapping, and of the heap
//! of glibc's allocator by page.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use mem_agents::hotspot::JavaHeap;
use mem_agents::pymalloc::{self, PythonHeap};
use mem_agents::resident::{ExistingMemory, MAX_PAGES, resident_bytes, subtract};
use mem_agents::text;
use mem_agents::thread_stacks::Stacks;
use mem_agents::variables;
use proc::Pages;
use reachability::glibc::{self, GlibcHeap, Mappings};
use reachability::jemalloc::joined;

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
    /// Anonymous memory, including the heap of the C library.
    Anonymous,
    /// Anonymous memory with a name of the program's (`PR_SET_VMA_ANON_NAME`).
    Named,
    /// Code that a runtime compiled.
    GeneratedCode,
    GoHeap,
    JavaHeap,
    Stack,
    Code,
    /// Writable data of the program and its libraries, including `.bss`.
    Variables,
    File,
    /// Pages of files that the process has changed, and keeps to itself.
    Modified,
    Shared,
}

/// Reads the ledger of a process.
pub fn read(pid: i32) -> io::Result<Ledger> {
    let mut areas = smaps::areas(pid)?;
    let maps = proc::maps(pid).unwrap_or_default();
    let variables = variables::find(pid, &maps);
    split_behind(&variables, pid, &mut areas);
    let stacks = Stacks::of(pid);
    let mut uses = uses(&areas, &variables, &stacks);
    let mappings = mappings(&areas, &uses);
    let is_go = uses.contains(&Use::GoHeap);
    let mut heap = if is_go {
        None
    } else {
        glibc::read(&ExistingMemory::resident(pid), &mappings)
    };
    let arenas = heap.as_ref().map_or(&[][..], |heap| &heap.heaps);
    let java = JavaHeap::find(pid, &maps, arenas);
    if let Some(java) = &java {
        for (area, kind) in areas.iter().zip(&mut uses) {
            if java.range.contains(&area.start) {
                *kind = Use::JavaHeap;
            }
        }
        // Java's objects may look like one.
        if let Some(heap) = &mut heap {
            heap.mapped
                .retain(|chunk| !java.range.contains(&chunk.start));
        }
    }
    let mut resident_heap = ResidentHeap::default();
    let mut is_heap_incomplete = false;
    if let Some(heap) = &heap {
        let resident = ResidentHeap::read(pid, heap);
        is_heap_incomplete = !heap.is_complete || resident.is_none();
        resident_heap = resident.unwrap_or_default();
    }
    let python = if is_go {
        None
    } else {
        let others = others(heap.as_ref(), java.as_ref());
        let anonymous = mappings.anonymous.iter().cloned();
        let ranges: Vec<_> = anonymous
            .flat_map(|range| subtract(range, &others))
            .collect();
        pymalloc::read(pid, &ranges)
    };
    let python = python.unwrap_or_default();
    Ok(Ledger {
        parts: parts(
            &areas,
            &uses,
            &Measured {
                heap: resident_heap,
                python,
                java,
                joined_stacks: joined_stacks(pid, &areas, &uses, &stacks),
            },
        ),
        largest: largest(&areas),
        swap: areas.iter().map(|area| area.swap).sum(),
        is_heap_incomplete,
    })
}

/// Returns the memory of these heaps, sorted and disjoint.
fn others(glibc: Option<&GlibcHeap>, java: Option<&JavaHeap>) -> Vec<Range<u64>> {
    let mut ranges = Vec::new();
    if let Some(heap) = glibc {
        ranges.extend_from_slice(&heap.heaps);
        ranges.extend_from_slice(&heap.mapped);
    }
    ranges.extend(java.map(|heap| heap.range.clone()));
    joined(ranges)
}

/// Splits the mappings in which other memory follows variables.
fn split_behind(variables: &[Range<u64>], pid: i32, areas: &mut Vec<Area>) {
    let mut pages = Pages::with_limit(pid, MAX_PAGES);
    for range in variables {
        let next = areas.partition_point(|area| area.end <= range.start);
        let Some(area) = areas.get_mut(next) else {
            return;
        };
        if !(area.start + 1..area.end).contains(&range.end) {
            continue;
        }
        let Some(bytes) = resident_bytes(&mut pages, std::slice::from_ref(range)) else {
            continue;
        };
        let before = Area {
            end: range.end,
            rss: bytes.min(area.rss),
            anonymous: bytes.min(area.anonymous),
            swap: 0,
            ..area.clone()
        };
        area.start = range.end;
        area.rss -= before.rss;
        area.anonymous -= before.anonymous;
        areas.insert(next, before);
    }
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
    let mut pages = Pages::with_limit(pid, MAX_PAGES);
    if !pages.is_known() {
        return 0;
    }
    resident_bytes(&mut pages, &parts).unwrap_or(0)
}

/// Determines the use of each mapping. `variables` are the addresses of variables, sorted. A mapping
/// that contains stacks and other memory counts as anonymous memory.
fn uses(areas: &[Area], variables: &[Range<u64>], stacks: &Stacks) -> Vec<Use> {
    let mut uses = Vec::with_capacity(areas.len());
    for area in areas {
        let is_shared = area.permissions.get(3) == Some(&b's');
        let after = variables.partition_point(|range| range.end <= area.start);
        let has_variables = variables
            .get(after)
            .is_some_and(|range| range.start < area.end);
        let mapping = area.start..area.end;
        let is_stack = !is_file(area) && stacks.within(&mapping) == [mapping];
        let kind = if is_shared && (!is_file(area) || is_shared_memory(&area.path)) {
            Use::Shared
        } else if area.path == b"[heap]" || area.path == b"/dev/zero" {
            Use::Anonymous
        } else if is_file(area) && area.permissions.contains(&b'x') {
            Use::Code
        } else if is_file(area) && has_variables {
            Use::Variables
        } else if is_file(area) {
            Use::File
        } else if area.path.starts_with(b"[v") || area.path.starts_with(b"[uprobes") {
            Use::Code
        } else if area.path == b"[stack]" || is_stack {
            Use::Stack
        } else if has_variables {
            Use::Variables
        } else if area.start == GO_HEAP || area.path.starts_with(b"[anon: Go") {
            Use::GoHeap
        } else if area.path.is_empty() && area.permissions.contains(&b'x') {
            Use::GeneratedCode
        } else if area.path.starts_with(b"[anon") && !is_glibc_memory(&area.path) {
            Use::Named
        } else {
            Use::Anonymous
        };
        uses.push(kind);
    }
    uses
}

/// Returns true for the names that glibc gives its memory (`glibc.mem.decorate_maps`).
fn is_glibc_memory(path: &[u8]) -> bool {
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

/// Returns the mappings in which the heap of glibc's allocator is searched for.
fn mappings(areas: &[Area], uses: &[Use]) -> Mappings {
    let ranges = |is_wanted: &dyn Fn(&Area, Use) -> bool| -> Vec<Range<u64>> {
        let areas = areas.iter().zip(uses);
        areas
            .filter(|(area, kind)| is_wanted(area, **kind))
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
    // There are several such mappings if `madvise`, `mprotect` or `mlock` has split the heap.
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
            let may_be_glibc = area.path.is_empty() || is_glibc_memory(&area.path);
            kind == Use::Anonymous && area.permissions.starts_with(b"rw") && may_be_glibc
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
    fn read(pid: i32, heap: &GlibcHeap) -> Option<Self> {
        let mut pages = Pages::with_limit(pid, MAX_PAGES);
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

/// Parts of the resident memory that were read page by page, in bytes unless a type says otherwise.
struct Measured {
    heap: ResidentHeap,
    python: PythonHeap,
    java: Option<JavaHeap>,
    /// Stacks that the kernel has joined with anonymous memory.
    joined_stacks: u64,
}

/// Lists the parts of the resident memory. The heaps were read at another moment, so their parts are
/// limited to the anonymous memory.
fn parts(areas: &[Area], uses: &[Use], measured: &Measured) -> Vec<Row> {
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
    let joined_stacks = measured.joined_stacks.min(*anonymous);
    *anonymous -= joined_stacks;
    *sums.entry(Use::Stack).or_default() += joined_stacks;
    let sum = |kind| sums.get(&kind).copied().unwrap_or(0);
    let mut anonymous = sum(Use::Anonymous);
    let mut rows = Vec::new();
    for (name, bytes, remark) in [
        (
            "heap in use",
            measured.heap.in_use,
            "glibc's: objects, and holes between them",
        ),
        (
            "large objects",
            measured.heap.mapped,
            "glibc's: each has its own mapping",
        ),
        (
            "heap free",
            measured.heap.free,
            "glibc's: freed pages, kept",
        ),
        (
            "Python objects",
            measured.python.in_use,
            pymalloc::IN_USE_REMARK,
        ),
        (
            "Python holes",
            measured.python.holes,
            pymalloc::HOLES_REMARK,
        ),
        ("Python free", measured.python.free, pymalloc::FREE_REMARK),
    ] {
        let bytes = bytes.min(anonymous);
        anonymous -= bytes;
        rows.push(Row::new(name, bytes, remark));
    }
    if let Some(java) = &measured.java {
        let used = text::bytes(java.used as f64);
        let remark = format!("{used} in use when Java counted last");
        rows.push(Row::new("Java heap", sum(Use::JavaHeap), remark));
    }
    rows.extend([
        Row::new(
            "generated code",
            sum(Use::GeneratedCode),
            "of Java, node and the like",
        ),
        Row::new("Go heap", sum(Use::GoHeap), "of Go's runtime"),
        Row::new("named memory", sum(Use::Named), "anonymous, with a name"),
        Row::new("own mappings", anonymous, "other heaps, the program's own"),
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

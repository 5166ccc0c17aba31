//! Where a process keeps pointers that are in no object of its heap.
//!
//! Registers and stacks of threads, writable data of modules, mappings that the program made
//! itself, and what the kernel keeps for it: the data of epoll entries and of timers. The
//! allocator's own memory and the agent's are none.

use std::fs;
use std::ops::Range;

use capture::Thread;
use heap_format::maps::Entry;
use reachability::{Heap, Memory, mark};
use shm_protocol::layout::AgentMemory;

use super::regions::{Pages, Region};
use crate::text;

/// Bytes below the stack pointer that a function may use (System V ABI for x86-64).
const RED_ZONE: u64 = if cfg!(target_arch = "x86_64") { 128 } else { 0 };
/// Most of a mapping that is searched for the end of a dead thread's stack.
const MOST_STACK: u64 = 64 << 20;
/// Most bytes of one part of the agent's memory, and most pointers to unused parts.
const MOST_AGENT: u64 = 1 << 24;
const MOST_SPARE: u64 = 1 << 12;
/// Most descriptors whose epoll entries are read, and most bytes of each.
const MOST_DESCRIPTORS: usize = 1 << 16;
const MOST_TEXT: u64 = 1 << 24;

/// Roots, each with a name for people.
#[derive(Debug, Default)]
pub struct Roots {
    /// What each is.
    pub roots: Vec<Root>,
    /// Words at hand, with the number of their root.
    pub words: Vec<(u64, u32)>,
    /// Ranges to read, with the number of their root.
    pub ranges: Vec<(Range<u64>, u32)>,
    /// The agent's own memory, which is no root.
    pub agents: Vec<Range<u64>>,
}

/// A root.
#[derive(Clone, Debug)]
pub struct Root {
    /// What it is, for people.
    pub name: String,
    /// The file whose variables it holds, and where that is mapped.
    pub module: Option<(Vec<u8>, u64)>,
}

/// What is known of a process to find its roots.
pub struct Process<'a> {
    /// Its memory.
    pub memory: &'a dyn Memory,
    /// Its heap.
    pub heap: &'a Heap,
    /// Its threads, as they were stopped.
    pub threads: &'a [Thread],
    /// Its mappings.
    pub regions: &'a [Region],
    /// Where the agent's own memory is.
    pub agent: AgentMemory,
}

impl Roots {
    /// All roots of a process but those in the kernel; `pages` tells which pages exist.
    pub fn of(process: &Process<'_>, pages: &mut Pages, shared: &mut Pages) -> Self {
        let mut roots = Self::default();
        for thread in process.threads {
            let number = roots.name(format!("registers of thread {}", thread.tid));
            let words = thread.words.iter().filter(|word| **word > 0xffff);
            roots.words.extend(words.map(|word| (*word, number)));
            // A stack may lie in an object, as a coroutine's does.
            roots.words.push((thread.sp, number));
        }
        let agent = agents(process);
        for region in process.regions {
            if !region.is_readable || is_kernels(&region.name) {
                continue;
            }
            let pages = if region.is_shared {
                &mut *shared
            } else {
                &mut *pages
            };
            roots.add_region(process, region, &agent, pages);
        }
        roots.agents = agent;
        // A variable says more of why an object is kept than a stack that it is on as well.
        let named = |range: &(Range<u64>, u32)| roots.roots[range.1 as usize].module.is_none();
        let mut ranges = std::mem::take(&mut roots.ranges);
        ranges.sort_by_key(named);
        roots.ranges = ranges;
        roots
    }

    fn name(&mut self, name: String) -> u32 {
        self.roots.push(Root { name, module: None });
        self.roots.len() as u32 - 1
    }

    fn add_region(
        &mut self,
        process: &Process<'_>,
        region: &Region,
        agent: &[Range<u64>],
        pages: &mut Pages,
    ) {
        let (range, name) = alive(process, region);
        let number = self.name(name);
        let module = region.module.and_then(|module| process.regions.get(module));
        let module = module.map(|first| (first.name.clone(), first.range.start));
        self.roots[number as usize].module = module;
        let parts = pages.present(range, !region.is_shared);
        for part in parts.into_iter().flat_map(|part| without(part, agent)) {
            let outside = process.heap.outside(part);
            self.ranges
                .extend(outside.into_iter().map(|range| (range, number)));
        }
    }

    /// As the search wants them.
    pub fn to_mark(&self, trace: bool) -> mark::Roots<'_> {
        mark::Roots {
            words: &self.words,
            ranges: &self.ranges,
            ignored: 0,
            trace,
        }
    }

    /// The words that the kernel hands back to the process one day: data of epoll entries and of
    /// timers. `timers`: the text of `/proc/PID/timers`.
    pub fn add_kernels(&mut self, epoll: Vec<(String, Vec<u64>)>, timers: &str) {
        for (descriptor, words) in epoll {
            let number = self.name(format!("data of epoll descriptor {descriptor}"));
            self.words
                .extend(words.into_iter().map(|word| (word, number)));
        }
        let number = self.name("value of a timer".to_owned());
        self.words
            .extend(timer_values(timers).map(|word| (word, number)));
    }
}

/// What the kernel maps into each process.
fn is_kernels(name: &[u8]) -> bool {
    [
        &b"[vvar"[..],
        b"[vdso",
        b"[vsyscall",
        b"[vectors",
        b"[sigpage",
        b"[uprobes",
    ]
    .iter()
    .any(|kernels| name.starts_with(kernels))
}

/// A region without the part of a stack that is not in use, and what it is.
fn alive(process: &Process<'_>, region: &Region) -> (Range<u64>, String) {
    let range = region.range.clone();
    let on_it = process.threads.iter().filter(|t| range.contains(&t.sp));
    let lowest = on_it.min_by_key(|thread| thread.sp);
    let is_stack = region.has_guard || region.name.starts_with(b"[stack");
    if let Some(thread) = lowest {
        let name = format!("stack of thread {}", thread.tid);
        let start = match is_stack {
            true => thread.sp.saturating_sub(RED_ZONE).max(range.start),
            false => range.start,
        };
        return (start..range.end, name);
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
    match dead_stack(process, region) {
        Some(end) => (end..range.end, name),
        None => (range, name),
    }
}

/// The end of the stack of a thread that has ended, which the C library keeps for a later one: its
/// thread control block points to itself, in its first word and its third, and is no live thread's
/// (glibc, `tcbhead_t` for x86-64).
fn dead_stack(process: &Process<'_>, region: &Region) -> Option<u64> {
    if !region.has_guard || !region.name.is_empty() || cfg!(not(target_arch = "x86_64")) {
        return None;
    }
    let range = &region.range;
    let mut buffer = vec![0; 1 << 20];
    // The block lies at the upper end, behind the thread's variables.
    let from = range.start.max(range.end.saturating_sub(MOST_STACK));
    let mut end = range.end;
    while end > from {
        let start = end.saturating_sub(buffer.len() as u64).max(from);
        let part = &mut buffer[..(end - start) as usize];
        process.memory.gather(&[(start, part.len())], part);
        for at in (0..part.len().saturating_sub(23)).step_by(16).rev() {
            let word =
                |at: usize| u64::from_le_bytes(part[at..at + 8].try_into().unwrap_or_default());
            let address = start + at as u64;
            if word(at) == address && word(at + 16) == address {
                let is_alive = process.threads.iter().any(|t| t.thread_pointer == address);
                return (!is_alive).then_some(address);
            }
        }
        // Only the first part is likely to have it: a stack of which nothing is found there is
        // not searched through.
        if range.end - start >= 1 << 20 {
            return None;
        }
        end = start;
    }
    None
}

/// The agent's own memory, by address: its library, its thread-local variables with jemalloc's,
/// which point to free memory, and what it remembers of each thread's stack.
fn agents(process: &Process<'_>) -> Vec<Range<u64>> {
    let own = &process.agent;
    let range = |start: u64, bytes: u64| start..start.saturating_add(bytes.min(MOST_AGENT));
    let mut ranges = Vec::new();
    let mut memories = Vec::new();
    ranges.push(own.start..own.end.max(own.start).next_multiple_of(4096));
    for thread in process.threads {
        let at = |distance: u64| thread.thread_pointer.wrapping_add(distance);
        ranges.push(range(at(own.variables), own.variables_bytes));
        memories.push(at(own.thread));
    }
    memories.extend((0..own.spare_count.min(MOST_SPARE)).map(|n| own.spare + n * 8));
    let memories = memories
        .into_iter()
        .filter_map(|at| process.memory.word(at));
    let memories = memories.filter(|at| *at != 0);
    ranges.extend(memories.map(|at| range(at, own.thread_bytes.next_multiple_of(4096))));
    ranges.sort_by_key(|range| range.start);
    ranges
}

/// The parts of a range that are in none of others, which are sorted.
fn without(range: Range<u64>, others: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut rest = Vec::new();
    let mut start = range.start;
    for other in others {
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

/// The data of each epoll descriptor's entries, by descriptor.
pub fn epoll_data(pid: i32) -> Vec<(String, Vec<u64>)> {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return Vec::new();
    };
    let polls = descriptors
        .flatten()
        .take(MOST_DESCRIPTORS)
        .filter(|entry| {
            let target = fs::read_link(entry.path());
            target.is_ok_and(|target| target.as_os_str() == "anon_inode:[eventpoll]")
        });
    polls
        .filter_map(|entry| {
            let number = entry.file_name().into_string().ok()?;
            let text = limited(&format!("/proc/{pid}/fdinfo/{number}"));
            let words = text.lines().filter_map(|line| {
                let (_, rest) = line.strip_prefix("tfd:")?.split_once("data:")?;
                u64::from_str_radix(rest.split_whitespace().next()?, 16).ok()
            });
            Some((number, words.collect()))
        })
        .collect()
}

/// The text of a file of `/proc`, up to a limit; empty if it cannot be read.
pub fn limited(path: &str) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = fs::File::open(path) {
        use std::io::Read;
        let _ = file.take(MOST_TEXT).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The values that timers hand to the program: `signal: NUMBER/VALUE`.
fn timer_values(text: &str) -> impl Iterator<Item = u64> {
    text.lines().filter_map(|line| {
        let (_, value) = line.strip_prefix("signal:")?.split_once('/')?;
        u64::from_str_radix(value.trim().trim_start_matches("0x"), 16).ok()
    })
}

/// Whether two readings of the mappings are of the same ones: the addresses in the first that the
/// second lacks.
pub fn absent(regions: &[Region], copy: &[u8]) -> Vec<Range<u64>> {
    let there: Vec<Range<u64>> = Entry::all(copy).map(|e| e.start..e.end).collect();
    let readable = regions.iter().filter(|region| region.is_readable);
    readable
        .filter(|region| {
            !there
                .iter()
                .any(|range| range.contains(&region.range.start))
        })
        .map(|region| region.range.clone())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_is_cut_out() {
        let cut = |range: Range<u64>| without(range, &[10..20, 15..18, 40..50]);
        assert_eq!(cut(0..30), [0..10, 20..30]);
        assert_eq!(cut(12..15), []);
        assert_eq!(cut(15..25), vec![20..25; 1]);
        assert_eq!(cut(30..60), [30..40, 50..60]);
        assert_eq!(cut(45..47), []);
        assert_eq!(without(5..6, &[]), vec![5..6; 1]);
    }

    #[test]
    fn timers_tell_their_values() {
        let text = "ID: 1\nsignal: 60/00007fff86e452a8\nnotify: signal/pid.2634\nClockID: 0\n";
        assert_eq!(timer_values(text).collect::<Vec<_>>(), [0x7fff_86e4_52a8]);
    }

    #[test]
    fn epoll_entries_tell_their_data() {
        // SAFETY: plain system calls on descriptors that are closed at the end.
        unsafe {
            let poll = libc::epoll_create1(0);
            let event = libc::eventfd(0, 0);
            let mut entry = libc::epoll_event {
                events: libc::EPOLLIN as u32,
                u64: 0x1234_5678_9abc,
            };
            assert_eq!(
                libc::epoll_ctl(poll, libc::EPOLL_CTL_ADD, event, &mut entry),
                0
            );
            let data = epoll_data(std::process::id() as i32);
            let own = data.iter().find(|(number, _)| *number == poll.to_string());
            assert_eq!(
                own.map(|(_, words)| &words[..]),
                Some(&[0x1234_5678_9abc][..])
            );
            libc::close(event);
            libc::close(poll);
        }
    }
}

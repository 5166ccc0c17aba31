//! Stacks of a process's threads: where they are, as far as the kernel tells.
//!
//! The kernel joins adjacent mappings, so a mapping with a stack may contain other memory, too. The
//! highest part of a stack holds the C library's record of the thread, with the list of robust
//! mutexes that the thread has told the kernel about.

use std::ops::Range;
use std::ptr;

use reachability::{Memory, ProcessMemory};

/// Maximum number of threads that are looked up.
const MAX_THREADS: usize = 100_000;
/// Size of a thread's stack if the process has no limit, in bytes.
const DEFAULT_STACK_BYTES: u64 = 8 << 20;
/// Plausible sizes of stacks, in bytes: from less than `PTHREAD_STACK_MIN` to less than any address
/// of a stack.
const STACK_BYTES: Range<u64> = 8 << 10..1 << 40;
/// Maximum distance from the list of robust mutexes to the end of glibc's record of a thread, in
/// bytes. The record is some 2.3 KiB long.
const MAX_RECORD_TAIL_BYTES: u64 = 4 << 10;

/// A thread's stack.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ThreadStack {
    /// Stack pointer.
    pointer: u64,
    /// Memory that the C library uses as the thread's stack; `None` if it is not known.
    range: Option<Range<u64>>,
}

/// Stacks of those threads for which the kernel reveals the stack pointer: threads that wait.
#[derive(Clone, Debug, Default)]
pub struct Stacks {
    stacks: Vec<ThreadStack>,
    /// Size of a thread's stack unless the program has chosen another one, in bytes.
    usual_bytes: u64,
}

impl Stacks {
    /// Looks up the stacks of a process.
    pub fn of(pid: i32) -> Self {
        let memory = ProcessMemory::of(proc::living_thread(pid));
        let tids = proc::threads(pid).into_iter().take(MAX_THREADS);
        let mut stacks: Vec<ThreadStack> = tids
            .filter_map(|tid| {
                Some(ThreadStack {
                    pointer: pointer(pid, tid)?,
                    range: robust_list(tid).and_then(|list| stack_range(&memory, list)),
                })
            })
            .collect();
        stacks.sort_unstable_by_key(|stack| stack.pointer);
        Self {
            stacks,
            usual_bytes: usual_bytes(pid),
        }
    }

    /// Creates stacks of which only the stack pointers are known.
    pub fn at(mut pointers: Vec<u64>) -> Self {
        pointers.sort_unstable();
        let stacks = pointers.into_iter();
        Self {
            stacks: stacks
                .map(|pointer| ThreadStack {
                    pointer,
                    range: None,
                })
                .collect(),
            usual_bytes: DEFAULT_STACK_BYTES,
        }
    }

    /// Returns true if most of a mapping consists of stacks.
    pub fn fill(&self, mapping: &Range<u64>) -> bool {
        let stacks = self.within(mapping).into_iter();
        let bytes: u64 = stacks.map(|stack| stack.end - stack.start).sum();
        bytes > (mapping.end - mapping.start) / 2
    }

    /// Returns the parts of a mapping that are stacks, in ascending order. If only stack pointers
    /// in it are known, a mapping that is no larger than a usual stack counts as one stack.
    pub fn within(&self, mapping: &Range<u64>) -> Vec<Range<u64>> {
        let first = self
            .stacks
            .partition_point(|stack| stack.pointer < mapping.start);
        let inside = self.stacks[first..]
            .iter()
            .take_while(|stack| stack.pointer < mapping.end);
        let mut found: Vec<Range<u64>> = Vec::new();
        for stack in inside.clone() {
            let range = stack.range.clone();
            let Some(range) = range.filter(|range| range.contains(&stack.pointer)) else {
                continue;
            };
            let below = found.last().map_or(mapping.start, |below| below.end);
            let part = range.start.max(below)..range.end.min(mapping.end);
            if part.start < part.end {
                found.push(part);
            }
        }
        let is_usual = mapping.end - mapping.start <= self.usual_bytes;
        if found.is_empty() && is_usual && inside.count() > 0 {
            found.push(mapping.clone());
        }
        found
    }
}

/// Returns a thread's stack pointer, if it waits.
fn pointer(pid: i32, tid: i32) -> Option<u64> {
    let text = String::from_utf8(proc::file(pid, &format!("task/{tid}/syscall"))?).ok()?;
    // The format is: number, six arguments, stack pointer, program counter; "-1 sp pc"; or
    // "running".
    let pointer = text.split_ascii_whitespace().rev().nth(1)?;
    u64::from_str_radix(pointer.strip_prefix("0x")?, 16).ok()
}

/// Returns the address of a thread's list of robust mutexes, which is within the C library's record
/// of the thread.
fn robust_list(tid: i32) -> Option<u64> {
    let mut list: u64 = 0;
    let mut bytes: usize = 0;
    // SAFETY: the kernel writes an address and a size to the two variables, which have their sizes,
    // and reads nothing of ours.
    let result = unsafe {
        libc::syscall(
            libc::SYS_get_robust_list,
            tid,
            ptr::from_mut(&mut list),
            ptr::from_mut(&mut bytes),
        )
    };
    (result == 0 && list != 0).then_some(list)
}

/// Returns the memory of a thread's stack, whose highest part is the record. glibc keeps the
/// stack's address and size in two adjacent words of the record, which are recognised by their
/// values.
fn stack_range(memory: &dyn Memory, list: u64) -> Option<Range<u64>> {
    let page = proc::page_size();
    let first_end = (list / page * page).checked_add(page)?;
    // The record may end with its page, and the next page may be unmapped.
    let words = words_of(memory, list..first_end);
    stack_range_in(&words, list).or_else(|| {
        let tail = list.checked_add(MAX_RECORD_TAIL_BYTES)?;
        let more = words_of(memory, first_end..tail.max(first_end));
        stack_range_in(&[words, more].concat(), list)
    })
}

/// Reads the words of a range, up to what cannot be read.
fn words_of(memory: &dyn Memory, range: Range<u64>) -> Vec<u64> {
    let mut bytes = vec![0; (range.end - range.start) as usize];
    let read = memory.read(range.start, &mut bytes);
    bytes[..read]
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()))
        .collect()
}

/// Returns the stack whose address and size are in adjacent words. The stack ends at most
/// [`MAX_RECORD_TAIL_BYTES`] above `list`.
fn stack_range_in(words: &[u64], list: u64) -> Option<Range<u64>> {
    let is_end = |end: &u64| list < *end && *end - list <= MAX_RECORD_TAIL_BYTES;
    words.windows(2).find_map(|pair| {
        let end = pair[0].checked_add(pair[1]).filter(is_end)?;
        STACK_BYTES.contains(&pair[1]).then_some(pair[0]..end)
    })
}

/// Returns the size of a thread's stack unless the program chooses another one: the soft limit on
/// stacks.
fn usual_bytes(pid: i32) -> u64 {
    let limits = proc::file(pid, "limits").unwrap_or_default();
    let limit = proc::status_field(&limits, "Max stack size");
    let soft = limit.and_then(|limit| limit.split_ascii_whitespace().next()?.parse().ok());
    soft.unwrap_or(DEFAULT_STACK_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_in_larger_mappings_are_told_apart_from_other_memory() {
        const MIB: u64 = 1 << 20;
        let mib = |range: Range<u64>| range.start * MIB..range.end * MIB;
        let stack = |pointer, given: Option<Range<u64>>| ThreadStack {
            pointer: pointer * MIB,
            range: given.map(mib),
        };
        let stacks = Stacks {
            stacks: vec![
                stack(9, Some(2..10)),
                stack(29, Some(22..30)),
                stack(37, Some(30..38)),
                stack(100, None),
                stack(300, Some(900..999)),
            ],
            usual_bytes: 8 * MIB,
        };
        let within = |range: Range<u64>| stacks.within(&mib(range));
        assert_eq!(within(2..10), [mib(2..10)]);
        // The guard pages are no part of the mapping.
        assert_eq!(within(3..10), [mib(3..10)]);
        // Two that the kernel has joined with each other, with what is below, and what is above.
        assert_eq!(within(10..40), [mib(22..30), mib(30..38)]);
        assert!(!stacks.fill(&mib(0..50)) && stacks.fill(&mib(20..40)));
        // The stacks of both are not known, or elsewhere.
        assert_eq!(within(96..104), [mib(96..104)]);
        assert_eq!(within(50..200), []);
        assert_eq!(within(200..400), []);
        assert_eq!(within(11..12), []);
    }

    #[test]
    fn a_pointer_is_no_size_of_a_stack() {
        let list = 0x7f8c_422f_f9a0;
        let words = [
            list,
            list,
            0,
            list + 0x3b0,
            0x7f8c_4220_0000,
            0x10_0000,
            0x1000,
        ];
        let found = stack_range_in(&words, list);
        assert_eq!(found, Some(0x7f8c_4220_0000..0x7f8c_4230_0000));
        assert_eq!(stack_range_in(&words[..4], list), None);
        assert_eq!(stack_range_in(&[], list), None);
    }

    #[test]
    fn the_stack_of_a_thread_that_waits_is_found() {
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let (addresses, address) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().stack_size(300 << 10);
        let thread = thread.spawn(move || {
            let local = 0u8;
            // SAFETY: takes nothing, and cannot fail.
            let tid = unsafe { libc::syscall(libc::SYS_gettid) } as i32;
            addresses.send((tid, ptr::from_ref(&local) as u64)).unwrap();
            // Ends with the sender.
            let _ = receiver.recv();
        });
        let (tid, local) = address.recv().unwrap();
        let pid = std::process::id() as i32;
        while proc::file(pid, &format!("task/{tid}/syscall"))
            .is_none_or(|text| text.starts_with(b"running"))
        {
            std::thread::yield_now();
        }
        let stacks = Stacks::of(pid);
        let found = stacks.stacks.iter().filter_map(|stack| stack.range.clone());
        let found: Vec<Range<u64>> = found.filter(|range| range.contains(&local)).collect();
        drop(sender);
        thread.unwrap().join().unwrap();
        assert_eq!(found.len(), 1, "{stacks:?}");
        let bytes = found[0].end - found[0].start;
        assert!((300 << 10..400 << 10).contains(&bytes), "{found:?}");
    }
}

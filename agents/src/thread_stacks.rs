//! Stacks of a process's threads: where they are, as far as the kernel tells.
//!
//! The kernel joins adjacent mappings, so a mapping with a stack may contain other memory, too. The
//! highest part of a stack holds the C library's record of the thread, with the list of robust
//! mutexes that the thread has told the kernel about.

use std::ops::Range;
use std::ptr;

/// Maximum number of threads that are looked up.
const MAX_THREADS: usize = 100_000;
/// Size of a thread's stack if the process has no limit, in bytes.
const DEFAULT_STACK_BYTES: u64 = 8 << 20;
/// Distance from the list of robust mutexes to the end of the last page of a stack, in bytes: more
/// than none, less than a page. In glibc's record of a thread, some 1.5 KiB follow the list.
const RECORD_TAIL_BYTES: u64 = 1 << 10;

/// A thread's stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ThreadStack {
    /// Stack pointer.
    pointer: u64,
    /// End of the memory that the C library has given to the thread; `None` if it is not known.
    end: Option<u64>,
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
        let tids = proc::threads(pid).into_iter().take(MAX_THREADS);
        let mut stacks: Vec<ThreadStack> = tids
            .filter_map(|tid| {
                Some(ThreadStack {
                    pointer: pointer(pid, tid)?,
                    // The main thread's record is elsewhere.
                    end: if tid == pid { None } else { end(tid) },
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
                .map(|pointer| ThreadStack { pointer, end: None })
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

    /// Returns the parts of a mapping that are stacks, in ascending order. If the end of none is known,
    /// a mapping that is no larger than usual stacks is one as a whole.
    pub fn within(&self, mapping: &Range<u64>) -> Vec<Range<u64>> {
        let first = self
            .stacks
            .partition_point(|stack| stack.pointer < mapping.start);
        let inside = self.stacks[first..]
            .iter()
            .take_while(|stack| stack.pointer < mapping.end);
        let mut found: Vec<Range<u64>> = Vec::new();
        for stack in inside.clone() {
            let is_inside = |end: &u64| stack.pointer < *end && *end <= mapping.end;
            let Some(end) = stack.end.filter(is_inside) else {
                continue;
            };
            let page = proc::page_size();
            let usual = end.saturating_sub(self.usual_bytes);
            let start = usual.min(stack.pointer / page * page);
            let below = found.last().map_or(mapping.start, |below| below.end);
            let start = start.max(below);
            if start < end {
                found.push(start..end);
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
    // The format is: number, six arguments, stack pointer, program counter; "-1 sp pc"; or "running".
    let pointer = text.split_ascii_whitespace().rev().nth(1)?;
    u64::from_str_radix(pointer.strip_prefix("0x")?, 16).ok()
}

/// Returns the end of the pages with the C library's record of a thread.
fn end(tid: i32) -> Option<u64> {
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
    let end = list.checked_add(RECORD_TAIL_BYTES)?;
    (result == 0 && list != 0).then(|| end.next_multiple_of(proc::page_size()))
}

/// Returns the size of a thread's stack unless the program chooses another one: the limit of a stack.
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
        let stack = |pointer, end| ThreadStack { pointer, end };
        let stacks = Stacks {
            stacks: vec![
                stack(9 * MIB, Some(10 * MIB)),
                stack(29 * MIB, Some(30 * MIB)),
                stack(37 * MIB, Some(38 * MIB)),
                stack(100 * MIB, None),
                stack(300 * MIB, Some(999 * MIB)),
            ],
            usual_bytes: 8 * MIB,
        };
        let mib = |range: Range<u64>| range.start * MIB..range.end * MIB;
        let within = |range: Range<u64>| stacks.within(&mib(range));
        // A mapping of its own.
        assert_eq!(within(2..10), [mib(2..10)]);
        // Two that the kernel has joined, with 12 MiB below and 2 above.
        assert_eq!(within(10..40), [mib(22..30), mib(30..38)]);
        // The ends of both are not known, or elsewhere.
        assert_eq!(within(96..104), [mib(96..104)]);
        assert_eq!(within(50..200), []);
        assert_eq!(within(200..400), []);
        assert_eq!(within(11..12), []);
    }
}

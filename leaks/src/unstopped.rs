//! Finds the threads of a running process. The kernel shows registers of waiting threads. For the
//! others, only the stacks are found.

use std::ops::Range;

use capture::Thread;
use reachability::{Heap, Memory};

use super::control_blocks;
use super::regions::Region;

/// Maximum number of bytes outside stacks that are searched for control blocks.
const MAX_BYTES: u64 = 256 << 20;
/// Maximum size of the upper part of a stack that is searched for the thread's control block.
const MAX_STACK_TOP: u64 = 1 << 20;

/// Returns the number of threads, and the threads that wait in the kernel, with the arguments of
/// their system calls as words.
pub fn threads(pid: i32) -> (usize, Vec<Thread>) {
    let tids = proc::threads(pid);
    let waiting = tids.iter().filter_map(|&tid| {
        let text = proc::file(pid, &format!("task/{tid}/syscall"))?;
        parse_waiting(tid, &String::from_utf8_lossy(&text))
    });
    (tids.len(), waiting.collect())
}

/// Parses `/proc/PID/task/TID/syscall`: `NUMBER ARGUMENTS… SP PC`, or `-1 SP PC` for a thread that
/// waits for another reason. Returns `None` for a running thread.
fn parse_waiting(tid: i32, text: &str) -> Option<Thread> {
    let mut fields = text.split_ascii_whitespace();
    fields.next()?.parse::<i64>().ok()?;
    let number = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    let mut words = fields.map(number).collect::<Option<Vec<u64>>>()?;
    let pc = words.pop()?;
    let sp = words.pop().filter(|sp| *sp != 0)?;
    Some(Thread {
        tid,
        sp,
        pc,
        in_call: false,
        thread_pointer: 0,
        words,
        scratch: Vec::new(),
    })
}

/// Adds the control blocks of all threads, and the stacks of running threads. Those stacks count as
/// used from end to end, since the stack pointers are unknown.
pub fn complete_threads(
    threads: &mut Vec<Thread>,
    memory: &dyn Memory,
    heap: &Heap,
    regions: &[Region],
) {
    let mut stacks: Vec<u64> = threads.iter().map(|thread| thread.sp).collect();
    stacks.sort_unstable();
    let is_known = |range: &Range<u64>| {
        let first = stacks.partition_point(|sp| *sp < range.start);
        stacks.get(first).is_some_and(|sp| *sp < range.end)
    };
    let mut bytes_left = MAX_BYTES;
    let mut found = Vec::new();
    for region in regions.iter().filter(|region| region.is_readable) {
        let range = &region.range;
        if region.name.starts_with(b"[stack") {
            if !is_known(range) {
                found.push(thread_at(0, range.start, 0));
            }
            continue;
        }
        let is_program_memory = region.name.is_empty() || region.name == b"[heap]";
        if !is_program_memory || region.is_shared {
            continue;
        }
        for block in blocks(region, memory, heap, &mut bytes_left) {
            let tid = control_blocks::tid(memory, block);
            let is_stack = region.has_guard && !is_known(range);
            let sp = if is_stack { range.start } else { 0 };
            if tid != 0 {
                found.push(thread_at(tid as i32, sp, block));
            }
        }
    }
    threads.extend(found);
}

/// Returns a thread whose registers are unknown, except for the thread pointer. `sp` is the start
/// of its stack; 0 if unknown.
fn thread_at(tid: i32, sp: u64, thread_pointer: u64) -> Thread {
    Thread {
        tid,
        sp,
        pc: 0,
        in_call: false,
        thread_pointer,
        words: Vec::new(),
        scratch: Vec::new(),
    }
}

/// Finds the control blocks in a mapping, outside the program's objects. Of memory outside stacks,
/// searches at most `bytes_left` bytes, and subtracts what it searched.
fn blocks(region: &Region, memory: &dyn Memory, heap: &Heap, bytes_left: &mut u64) -> Vec<u64> {
    let Range { start, end } = region.range;
    if region.has_guard {
        let top = start.max(end.saturating_sub(MAX_STACK_TOP))..end;
        return control_blocks::find(memory, top);
    }
    let mut found = Vec::new();
    for part in heap.outside(start..end) {
        let mut at = part.start;
        while let Some(present) = memory.next(at..part.end) {
            let bytes = present.end - present.start;
            let Some(rest) = bytes_left.checked_sub(bytes) else {
                return found;
            };
            *bytes_left = rest;
            at = present.end;
            found.extend(control_blocks::find(memory, present));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_threads_have_stack_and_arguments() {
        let parse = |text: &str| parse_waiting(7, text).map(|t| (t.sp, t.pc, t.words));
        let call = "232 0x5 0x7ffc00001000 0x200 0x3e8 0x0 0x8 0x7ffc00000f90 0x7f0000012345\n";
        let words = vec![0x5, 0x7ffc_0000_1000, 0x200, 0x3e8, 0, 8];
        assert_eq!(
            parse(call),
            Some((0x7ffc_0000_0f90, 0x7f00_0001_2345, words))
        );
        let stopped = "-1 0x7ffc00000f90 0x401000\n";
        assert_eq!(parse(stopped), Some((0x7ffc_0000_0f90, 0x40_1000, vec![])));
        for text in [
            "running\n",
            "",
            "1",
            "1 0x2",
            "-1 0x0 0x0\n",
            "0 1 2 3\n",
            "\u{e9}",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }

    #[test]
    #[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
    fn a_running_thread_is_found_by_its_control_block() {
        use std::sync::mpsc::channel;

        use reachability::ProcessMemory;

        use super::super::memory::MomentMemory;
        use super::super::regions;
        use super::super::saved::SavedMemory;

        let (send, received) = channel();
        let (end, ended) = channel::<()>();
        let thread = std::thread::spawn(move || {
            // SAFETY: the call takes no arguments.
            let tid = unsafe { libc::syscall(libc::SYS_gettid) } as i32;
            send.send((tid, &raw const tid as u64)).expect("heard");
            let _ = ended.recv();
        });
        let (tid, local) = received.recv().expect("a thread");
        let pid = std::process::id() as i32;
        let maps = std::fs::read("/proc/self/maps").expect("our own");
        let regions = regions::parse(&maps);
        let memory = MomentMemory::of(pid, pid, &regions, &[], SavedMemory::default());
        let heap = Heap::default();
        let mut threads = Vec::new();
        complete_threads(&mut threads, &memory, &heap, &regions);
        let found = threads.iter().find(|thread| thread.tid == tid);
        let found = found.expect("its control block");
        let word = ProcessMemory::of(pid).word(found.thread_pointer);
        assert_eq!(word, Some(found.thread_pointer));
        assert!(
            (found.sp..found.thread_pointer).contains(&local),
            "{found:x?}"
        );
        drop(end);
        thread.join().expect("no panic");
    }
}

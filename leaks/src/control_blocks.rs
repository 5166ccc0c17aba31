//! The C library's thread control blocks, found by what is in them.

use std::ops::Range;

use reachability::Memory;

/// Bytes read at once.
const CHUNK: usize = 4096;
/// Blocks are aligned to this at least.
const STEP: usize = 16;
/// Where a block of glibc for x86-64 has the thread's number (`struct pthread`), which the kernel
/// sets to 0 when the thread ends.
const NUMBER: u64 = 0x2d0;

/// Addresses of what looks like a block in some memory: it points to itself in its first word and its
/// third (glibc, `tcbhead_t` for x86-64). None for other processors, whose blocks do not.
pub fn find(memory: &dyn Memory, range: Range<u64>) -> Vec<u64> {
    let mut found = Vec::new();
    if cfg!(not(target_arch = "x86_64")) {
        return found;
    }
    let (mut at, end) = (range.start, range.end);
    let mut buffer = vec![0; CHUNK];
    // In pages that exist.
    while let Some(part) = memory.next(at..end) {
        let start = part.start.next_multiple_of(STEP as u64);
        let len = CHUNK.min((part.end - part.start) as usize + STEP);
        memory.gather(&[(start, len)], &mut buffer[..len]);
        let step = (len - STEP) as u64;
        for offset in (0..len.saturating_sub(23)).step_by(STEP) {
            let word =
                |at: usize| u64::from_le_bytes(buffer[at..at + 8].try_into().unwrap_or_default());
            let address = start + offset as u64;
            if word(offset) == address && word(offset + 16) == address {
                found.push(address);
            }
        }
        at = start + step.max(STEP as u64);
    }
    found.dedup();
    found
}

/// The number of the thread of a block, in its own pid namespace; 0 once it has ended.
pub fn number(memory: &dyn Memory, block: u64) -> u32 {
    memory.word(block.wrapping_add(NUMBER)).unwrap_or(0) as u32
}

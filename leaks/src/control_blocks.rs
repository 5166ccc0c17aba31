//! Finds the C library's thread control blocks in memory by their contents.

use std::ops::Range;

use reachability::Memory;

/// Number of bytes that are read at once.
const CHUNK_BYTES: usize = 4096;
/// Minimum alignment of a block, in bytes.
const BLOCK_ALIGNMENT: usize = 16;
/// Size of the part of a block by which it is recognised, in bytes: its first three words.
const HEAD_BYTES: usize = 24;
/// Offset of the thread id in a block (`struct pthread` of glibc for x86-64). The kernel sets the
/// id to 0 when the thread exits.
const TID_OFFSET: u64 = 0x2d0;

/// Returns the addresses of likely control blocks: the first and the third word point to the block
/// itself (`tcbhead_t` of glibc for x86-64). Returns none on other processors, whose blocks have no
/// such words.
pub fn find(memory: &dyn Memory, range: Range<u64>) -> Vec<u64> {
    let mut found = Vec::new();
    if cfg!(not(target_arch = "x86_64")) {
        return found;
    }
    let mut at = range.start;
    let end = range.end;
    let mut buffer = vec![0; CHUNK_BYTES];
    // `next` skips absent pages.
    while let Some(part) = memory.next(at..end) {
        let start = part.start.next_multiple_of(BLOCK_ALIGNMENT as u64);
        let len = CHUNK_BYTES.min((part.end - part.start) as usize + BLOCK_ALIGNMENT);
        memory.gather(&[(start, len)], &mut buffer[..len]);
        let advance = (len - BLOCK_ALIGNMENT) as u64;
        for offset in (0..len.saturating_sub(HEAD_BYTES - 1)).step_by(BLOCK_ALIGNMENT) {
            let word =
                |at: usize| u64::from_le_bytes(buffer[at..at + 8].try_into().unwrap_or_default());
            let address = start + offset as u64;
            if word(offset) == address && word(offset + 16) == address {
                found.push(address);
            }
        }
        at = start + advance.max(BLOCK_ALIGNMENT as u64);
    }
    found.dedup();
    found
}

/// Returns the id of a block's thread in its own pid namespace, or 0 if the thread has exited.
pub fn tid(memory: &dyn Memory, block: u64) -> u32 {
    memory.word(block.wrapping_add(TID_OFFSET)).unwrap_or(0) as u32
}

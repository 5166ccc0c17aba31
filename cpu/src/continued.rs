//! Copies of stacks that continue in the memory of the process.
//!
//! The kernel copies less than 64 KiB of a stack. What lies beyond is read from the process
//! afterwards. It belongs to functions that wait for inner ones, so it seldom changes. It is
//! trusted only if the callee of the function at the end of the copy has not returned meanwhile:
//! after reading, the words that lead out of that callee, and the words saved next to them, must
//! still be the same as in the copy.

use unwind::Cause;
use unwind::stack::Memory;

use crate::memory::Copied;

/// Maximum distance in bytes from the stack pointer that is followed: the usual limit of a stack.
const MAX_BYTES: u64 = 8 << 20;
/// Number of bytes that are read at once. Not all of the rest, since one function may have half a
/// megabyte of locals, and while that is read, inner functions may return.
const PART_BYTES: usize = 64 << 10;
/// Number of these bytes that precede the requested word.
const BYTES_BEFORE: u64 = 4 << 10;
/// Maximum number of parts that are read of one stack.
const MAX_PARTS: usize = 256;
/// Number of last-read words that are compared, and number of bytes below each, where registers are
/// saved. The words are the return address into the function at the end of the copy, and the one
/// that leads to its frame. Inner functions may have returned, which does not matter to what lies
/// beyond.
const COMPARED_WORDS: usize = 2;
const COMPARED_BELOW: u64 = 48;

/// Buffer for what is read.
#[derive(Debug, Default)]
pub struct Rest {
    /// Address of the last part.
    from: u64,
    bytes: Vec<u8>,
    check: Vec<u8>,
}

/// Copy of a stack that continues in the process.
pub struct Continued<'a> {
    copied: Copied<'a>,
    pid: i32,
    /// Last addresses in the copy that were read, and their number.
    trail: ([u64; COMPARED_WORDS], usize),
    rest: &'a mut Rest,
    parts: usize,
    /// Size of the stack that was needed, in bytes from the stack pointer on.
    pub needed: u64,
    /// True if the process's stack has changed.
    is_over: bool,
}

impl<'a> Continued<'a> {
    /// Returns a copy of a process's stack.
    pub fn new(copied: Copied<'a>, pid: i32, rest: &'a mut Rest) -> Self {
        rest.bytes.clear();
        Self {
            copied,
            pid,
            trail: ([0; COMPARED_WORDS], 0),
            rest,
            parts: 0,
            needed: 0,
            is_over: false,
        }
    }

    /// Returns true if a word beyond the end of the copy was needed.
    pub fn is_short(&self) -> bool {
        self.copied.is_short
    }

    fn behind(&mut self, address: u64) -> Result<u64, Cause> {
        let (low, high) = self.copied.range();
        let to = address.wrapping_sub(low);
        if address < high || to >= MAX_BYTES || !address.is_multiple_of(8) {
            return Err(Cause::OutOfStack);
        }
        self.needed = self.needed.max(to + 8);
        let word = self.word(address).or_else(|| {
            self.look(address);
            self.word(address)
        });
        word.ok_or(Cause::OutOfStack)
    }

    /// Returns a word of the last part that was read.
    fn word(&self, address: u64) -> Option<u64> {
        let at = usize::try_from(address.checked_sub(self.rest.from)?).ok()?;
        let word = self.rest.bytes.get(at..at.checked_add(8)?)?;
        word.try_into().ok().map(u64::from_ne_bytes)
    }

    /// Reads the part around an address, if the stack is unchanged.
    fn look(&mut self, address: u64) {
        self.parts += 1;
        if self.is_over || self.parts > MAX_PARTS {
            return;
        }
        let (_, high) = self.copied.range();
        self.rest.from = address.saturating_sub(BYTES_BEFORE).max(high);
        self.rest.bytes.resize(PART_BYTES, 0);
        let read = capture::read_memory(self.pid, self.rest.from, &mut self.rest.bytes);
        self.rest.bytes.truncate(read);
        self.is_over = !self.is_same();
        if self.is_over {
            self.rest.bytes.clear();
        }
    }

    /// Returns true if the process's memory still equals the copy around the last words.
    fn is_same(&mut self) -> bool {
        let (words, count) = self.trail;
        let words = &words[..count.min(COMPARED_WORDS)];
        let (Some(first), Some(last)) = (words.iter().min(), words.iter().max()) else {
            return false;
        };
        let (low, _) = self.copied.range();
        let first = first.saturating_sub(COMPARED_BELOW).max(low);
        let check = &mut self.rest.check;
        check.resize((last + 8 - first) as usize, 0);
        let is_read = capture::read_memory(self.pid, first, check) == check.len();
        is_read
            && words.iter().all(|word| {
                let (from, to) = (word.saturating_sub(COMPARED_BELOW).max(low), word + 8);
                let now = &check[(from - first) as usize..(to - first) as usize];
                self.copied.bytes(from, to) == Some(now)
            })
    }
}

impl Memory for Continued<'_> {
    fn read(&mut self, address: u64) -> Result<u64, Cause> {
        match self.copied.read(address) {
            Ok(word) => {
                let (words, count) = &mut self.trail;
                words[*count % COMPARED_WORDS] = address;
                *count += 1;
                Ok(word)
            }
            Err(_) => self.behind(address),
        }
    }

    fn read_inner(&mut self, _: u64, address: u64) -> Result<u64, Cause> {
        self.read(address)
    }

    fn move_to(&mut self, sp: u64) -> Result<(), Cause> {
        self.read(sp & !7).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COPIED: usize = 1024;

    /// Returns a stack of this process: words that are their own numbers.
    fn stack(words: usize) -> Vec<u64> {
        (0..words as u64).collect()
    }

    fn copy(stack: &[u64]) -> Vec<u8> {
        let words = &stack[..COPIED / 8];
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn continued<'a>(low: u64, copy: &'a [u8], rest: &'a mut Rest) -> Continued<'a> {
        let pid = std::process::id().cast_signed();
        Continued::new(Copied::new(low, copy), pid, rest)
    }

    #[test]
    fn what_is_behind_the_copy_is_read_from_the_process() {
        let stack = stack(100_000);
        let (copy, low) = (copy(&stack), stack.as_ptr() as u64);
        let mut rest = Rest::default();
        let mut memory = continued(low, &copy, &mut rest);
        for word in [0, 100, 120, 127, 128, 9_000, 99_999, 128, 3] {
            assert_eq!(memory.read(low + 8 * word), Ok(word));
        }
        assert!(memory.is_short());
        for wild in [low - 8, low + 8 * 128 + 4, low + MAX_BYTES, 0, u64::MAX - 7] {
            assert_eq!(memory.read(wild), Err(Cause::OutOfStack), "{wild:x}");
        }
    }

    #[test]
    fn a_stack_that_is_another_one_by_now_is_not_followed() {
        // Of the words that were read, or saved beside them, one has changed; or none were read.
        for (changed, read, expected) in [
            (127, &[60, 120, 127][..], false),
            (57, &[60, 120, 127], true),
            (119, &[60, 120, 127], false),
            (20, &[60, 120, 127], true),
            (90, &[60, 120, 127], true),
            (90, &[], false),
        ] {
            let mut stack = stack(1000);
            let (copy, low) = (copy(&stack), stack.as_ptr() as u64);
            stack[changed] = 1 << 40;
            let stack = std::hint::black_box(stack);
            let mut rest = Rest::default();
            let mut memory = continued(low, &copy, &mut rest);
            for word in read {
                assert_eq!(memory.read(low + 8 * word), Ok(*word));
            }
            let found = memory.read(low + 8 * 500).is_ok();
            assert_eq!(found, expected, "{changed} {read:?}");
            drop(stack);
        }
    }
}

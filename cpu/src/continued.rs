//! Stack copies that are continued from the memory of the process. The kernel copies less than
//! 64 KiB of a stack. The rest is read from the process afterwards. It belongs to functions that
//! wait for their callees, so it seldom changes. It is trusted only if the function at the end of
//! the copy still waits for the same call. To check this, the words by which its callee was
//! unwound, and the registers saved next to them, are read again and compared with the copy.

use unwind::Cause;
use unwind::stack::Memory;

use crate::memory::Copied;

/// Maximum distance in bytes from the stack pointer that is read: the usual limit of a stack's
/// size.
const MAX_BYTES: u64 = 8 << 20;
/// Number of bytes per read. Reading the whole rest would take too long: one function may have
/// half a megabyte of locals, and while that is read, its callees may return.
const PART_BYTES: usize = 64 << 10;
/// Number of bytes of a part that precede the requested word.
const BYTES_BEFORE: u64 = 4 << 10;
/// Maximum number of parts that are read of one stack.
const MAX_PARTS: usize = 256;
/// Number of words of the copy that are compared, the last ones that were read: the return address
/// into the function at the end of the copy, and the word from which that function's frame was
/// computed, such as the saved frame pointer. The words below need not be compared: the functions
/// that they belong to may return without changing the rest of the stack.
const COMPARED_WORDS: usize = 2;
/// Number of bytes below each compared word that are compared too, since registers are saved there.
const COMPARED_BELOW: u64 = 48;

/// Number of bytes below the stack pointer of another stack that may be read: Go's assembler saves
/// the frame pointer there on aarch64.
const BYTES_BELOW: u64 = 8;

/// Buffers for the rest of a stack.
#[derive(Debug, Default)]
pub struct RestBuffers {
    /// Address of the last part that was read.
    part_start: u64,
    /// Contents of that part.
    bytes: Vec<u8>,
    /// Words that were read again, to compare them with the copy.
    check: Vec<u8>,
}

/// Copy of a stack that continues in the process.
pub struct Continued<'a> {
    copied: Copied<'a>,
    pid: i32,
    /// Last addresses in the copy that were read.
    trail: [u64; COMPARED_WORDS],
    /// Number of words read from the copy.
    copied_reads: usize,
    rest: &'a mut RestBuffers,
    parts: usize,
    /// Number of bytes above the stack pointer that were needed.
    pub needed: u64,
    /// True if the process's stack has changed since it was copied.
    has_changed: bool,
    /// Lowest address in use of the other stack on which the copied one continues; `None` if there
    /// is no other stack.
    other_stack: Option<u64>,
}

impl<'a> Continued<'a> {
    /// Wraps the copy of a stack of process `pid`.
    pub fn new(copied: Copied<'a>, pid: i32, rest: &'a mut RestBuffers) -> Self {
        rest.bytes.clear();
        Self {
            copied,
            pid,
            trail: [0; COMPARED_WORDS],
            copied_reads: 0,
            rest,
            parts: 0,
            needed: 0,
            has_changed: false,
            other_stack: None,
        }
    }

    /// Returns true if a word beyond the end of the copy was needed.
    pub fn is_short(&self) -> bool {
        self.copied.is_short
    }

    /// Returns a word that lies beyond the end of the copy.
    fn read_beyond(&mut self, address: u64) -> Result<u64, Cause> {
        let (copy_start, copy_end) = self.copied.range();
        let stack_start = self.other_stack.unwrap_or(copy_start);
        let min_address = self.other_stack.unwrap_or(copy_end);
        let offset = address.wrapping_sub(stack_start);
        if address < min_address || offset >= MAX_BYTES || !address.is_multiple_of(8) {
            return Err(Cause::OutOfStack);
        }
        if self.other_stack.is_none() {
            self.needed = self.needed.max(offset + 8);
        }
        let word = self.part_word(address).or_else(|| {
            self.read_part(address);
            self.part_word(address)
        });
        word.ok_or(Cause::OutOfStack)
    }

    /// Returns a word of the last part that was read.
    fn part_word(&self, address: u64) -> Option<u64> {
        let offset = usize::try_from(address.checked_sub(self.rest.part_start)?).ok()?;
        let word = self.rest.bytes.get(offset..offset.checked_add(8)?)?;
        word.try_into().ok().map(u64::from_ne_bytes)
    }

    /// Reads the part around an address, if the stack is unchanged.
    fn read_part(&mut self, address: u64) {
        self.parts += 1;
        if self.has_changed || self.parts > MAX_PARTS {
            return;
        }
        let first = self.other_stack.unwrap_or(self.copied.range().1);
        self.rest.part_start = address.saturating_sub(BYTES_BEFORE).max(first);
        self.rest.bytes.resize(PART_BYTES, 0);
        let read = capture::read_memory(self.pid, self.rest.part_start, &mut self.rest.bytes);
        self.rest.bytes.truncate(read);
        self.has_changed = !self.is_same();
        if self.has_changed {
            self.rest.bytes.clear();
        }
    }

    /// Returns true if the process's stack still equals the copy around the last words that were
    /// read from the copy.
    fn is_same(&mut self) -> bool {
        let words = &self.trail[..self.copied_reads.min(COMPARED_WORDS)];
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
                let from = word.saturating_sub(COMPARED_BELOW).max(low);
                let to = word + 8;
                let now = &check[(from - first) as usize..(to - first) as usize];
                self.copied.bytes(from, to) == Some(now)
            })
    }
}

impl Memory for Continued<'_> {
    fn read(&mut self, address: u64) -> Result<u64, Cause> {
        match self.copied.read(address) {
            Ok(word) => {
                self.trail[self.copied_reads % COMPARED_WORDS] = address;
                self.copied_reads += 1;
                Ok(word)
            }
            Err(_) => self.read_beyond(address),
        }
    }

    fn read_callee_stack(&mut self, _: u64, address: u64) -> Result<u64, Cause> {
        self.read(address)
    }

    /// Continues in the copy if that has the address. Otherwise, the other stack is read from the
    /// process.
    fn move_to(&mut self, sp: u64) -> Result<(), Cause> {
        let sp = sp & !7;
        let (low, high) = self.copied.range();
        if !(low..high).contains(&sp) {
            self.other_stack = Some(sp.saturating_sub(BYTES_BELOW));
            self.rest.bytes.clear();
        }
        self.read(sp).map(|_| ())
    }

    fn word(&mut self, address: u64) -> Option<u64> {
        let mut word = [0; 8];
        let is_read = capture::read_memory(self.pid, address, &mut word) == word.len();
        (is_read && address.is_multiple_of(8)).then(|| u64::from_ne_bytes(word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COPIED: usize = 1024;

    /// Returns a stack of this process, each word of which is its own index.
    fn stack(words: usize) -> Vec<u64> {
        (0..words as u64).collect()
    }

    fn copy(stack: &[u64]) -> Vec<u8> {
        let words = &stack[..COPIED / 8];
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn continued<'a>(low: u64, copy: &'a [u8], rest: &'a mut RestBuffers) -> Continued<'a> {
        let pid = std::process::id().cast_signed();
        Continued::new(Copied::new(low, copy), pid, rest)
    }

    #[test]
    fn words_beyond_the_copy_are_read_from_the_process() {
        let stack = stack(100_000);
        let copy = copy(&stack);
        let low = stack.as_ptr() as u64;
        let mut rest = RestBuffers::default();
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
    fn a_stack_that_has_changed_is_not_followed() {
        // The changed word, the words read from the copy, and whether the stack still counts as the
        // same.
        for (changed, read, expected) in [
            (127, &[60, 120, 127][..], false),
            (57, &[60, 120, 127], true),
            (119, &[60, 120, 127], false),
            (20, &[60, 120, 127], true),
            (90, &[60, 120, 127], true),
            (90, &[], false),
        ] {
            let mut stack = stack(1000);
            let copy = copy(&stack);
            let low = stack.as_ptr() as u64;
            stack[changed] = 1 << 40;
            let stack = std::hint::black_box(stack);
            let mut rest = RestBuffers::default();
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

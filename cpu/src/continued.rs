//! A copy of a stack, and what lies beyond its end, which is read from the process afterwards.
//!
//! The kernel copies less than 64 KiB. What lies further out belongs to functions that wait for
//! those further in, and seldom changes. It is trusted if the callee of the function at the end of
//! the copy has not returned meanwhile: once it has been read, the words that lead out of that
//! callee, and those saved next to them, must still be the same as in the copy.

use unwind::Cause;
use unwind::stack::Memory;

use crate::memory::Copied;

/// The most that is followed, from the stack pointer on: the usual limit of a stack.
const MOST: u64 = 8 << 20;
/// What is read at once: a part of the stack, not everything beyond. One function may have half a
/// megabyte of its own, and while it is read, those further in may return.
const PART: usize = 64 << 10;
/// How much of it lies in front of the word that is looked for.
const BEFORE: u64 = 4 << 10;
/// The most parts of one stack.
const MOST_PARTS: usize = 256;
/// How many of the last words are compared, and how much below each: registers are saved there.
/// They are the return address into the function at the end of the copy, and where its part of the
/// stack begins. Functions further in may have returned: they have no part in what lies beyond.
const WORDS: usize = 2;
const BESIDE: u64 = 48;

/// Room for what is read.
#[derive(Debug, Default)]
pub struct Rest {
    /// Where the last part begins.
    from: u64,
    bytes: Vec<u8>,
    check: Vec<u8>,
}

/// A copy that continues in the process.
pub struct Continued<'a> {
    copied: Copied<'a>,
    pid: i32,
    /// Addresses in the copy that were read last, and how many there were.
    trail: ([u64; WORDS], usize),
    rest: &'a mut Rest,
    parts: usize,
    /// How much of the stack was requested, from the stack pointer on.
    pub needed: u64,
    /// Whether the process's stack is another one by now.
    is_over: bool,
}

impl<'a> Continued<'a> {
    /// The copy of a stack of a process.
    pub fn new(copied: Copied<'a>, pid: i32, rest: &'a mut Rest) -> Self {
        rest.bytes.clear();
        Self {
            copied,
            pid,
            trail: ([0; WORDS], 0),
            rest,
            parts: 0,
            needed: 0,
            is_over: false,
        }
    }

    /// Whether something was looked for beyond the end of the copy.
    pub fn is_short(&self) -> bool {
        self.copied.is_short
    }

    fn behind(&mut self, address: u64) -> Result<u64, Cause> {
        let (low, high) = self.copied.range();
        let to = address.wrapping_sub(low);
        if address < high || to >= MOST || !address.is_multiple_of(8) {
            return Err(Cause::OutOfStack);
        }
        self.needed = self.needed.max(to + 8);
        let word = self.word(address).or_else(|| {
            self.look(address);
            self.word(address)
        });
        word.ok_or(Cause::OutOfStack)
    }

    /// A word of the last part.
    fn word(&self, address: u64) -> Option<u64> {
        let at = usize::try_from(address.checked_sub(self.rest.from)?).ok()?;
        let word = self.rest.bytes.get(at..at.checked_add(8)?)?;
        word.try_into().ok().map(u64::from_ne_bytes)
    }

    /// Reads the part around an address, if it belongs to the copy.
    fn look(&mut self, address: u64) {
        self.parts += 1;
        if self.is_over || self.parts > MOST_PARTS {
            return;
        }
        let (_, high) = self.copied.range();
        self.rest.from = address.saturating_sub(BEFORE).max(high);
        self.rest.bytes.resize(PART, 0);
        let read = capture::read_memory(self.pid, self.rest.from, &mut self.rest.bytes);
        self.rest.bytes.truncate(read);
        self.is_over = !self.is_same();
        if self.is_over {
            self.rest.bytes.clear();
        }
    }

    /// Whether the process still has around the last words what the copy has.
    fn is_same(&mut self) -> bool {
        let (words, count) = self.trail;
        let words = &words[..count.min(WORDS)];
        let (Some(first), Some(last)) = (words.iter().min(), words.iter().max()) else {
            return false;
        };
        let (low, _) = self.copied.range();
        let first = first.saturating_sub(BESIDE).max(low);
        let check = &mut self.rest.check;
        check.resize((last + 8 - first) as usize, 0);
        let is_read = capture::read_memory(self.pid, first, check) == check.len();
        is_read
            && words.iter().all(|word| {
                let (from, to) = (word.saturating_sub(BESIDE).max(low), word + 8);
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
                words[*count % WORDS] = address;
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

    /// A stack of this process: words that are their own numbers.
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
        for wild in [low - 8, low + 8 * 128 + 4, low + MOST, 0, u64::MAX - 7] {
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

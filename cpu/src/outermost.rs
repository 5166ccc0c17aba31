//! Recognises the C library's start function of a program or thread by the position of its frame,
//! for libraries without unwind tables, such as musl.

use unwind::Registers;
use unwind::stack::Memory;

/// Maximum number of words between the frame and what lies above the first frame of a stack.
const MAX_WORDS: u64 = 64;
/// Maximum number of arguments of a program.
const MAX_ARGUMENTS: u64 = 1024;
/// Maximum distance in bytes of a program's arguments from the words that point to them.
const MAX_DISTANCE: u64 = 16 << 20;
/// Size of a word in bytes.
const WORD: u64 = 8;

/// Returns true if the frame is directly below the arguments with which the kernel starts a
/// program, or below the descriptor of a thread, which the C library puts above its stack.
pub fn is_start(at: Registers, memory: &mut impl Memory) -> bool {
    if !at.sp.is_multiple_of(WORD) {
        return false;
    }
    (0..MAX_WORDS).any(|word| {
        let address = at.sp.saturating_add(word * WORD);
        memory.read(address).is_ok_and(|value| {
            has_arguments(address, value, memory) || is_descriptor(address, value, memory)
        })
    })
}

/// Returns true if `address` holds an argument count, followed by that many addresses of strings
/// above it, and a 0.
fn has_arguments(address: u64, count: u64, memory: &mut impl Memory) -> bool {
    if !(1..=MAX_ARGUMENTS).contains(&count) {
        return false;
    }
    let mut word = |index: u64| memory.read(address.saturating_add(index * WORD)).ok();
    let is_above = |text: u64| text > address && text - address < MAX_DISTANCE;
    (1..=count).all(|index| word(index).is_some_and(is_above)) && word(count + 1) == Some(0)
}

/// Returns true if a thread's descriptor is at `address`. It begins with its own address; its third
/// and fourth word are addresses of descriptors in the list of all threads.
fn is_descriptor(address: u64, value: u64, memory: &mut impl Memory) -> bool {
    let mut word = |index: u64| memory.read(address.saturating_add(index * WORD)).ok();
    let is_other = |word: Option<u64>| word.is_some_and(|word| word > 0xffff && word != address);
    value == address && is_other(word(1)) && is_other(word(2)) && is_other(word(3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Copied;

    const SP: u64 = 0x7fff_0000;

    fn start(words: &[u64]) -> bool {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let at = Registers {
            ip: 0x1000,
            sp: SP,
            fp: 0,
        };
        is_start(at, &mut Copied::new(SP, &bytes))
    }

    #[test]
    fn frames_below_arguments_and_descriptors_are_those_of_the_start() {
        let text = SP + 0x100;
        assert!(start(&[7, 7, 2, text, text + 9, 0, text]));
        assert!(!start(&[7, 7, 3, text, text + 9, 0, text]));
        assert!(!start(&[7, 7, 2, text, SP - 8, 0, text]));
        assert!(!start(&[7, 7, 2, text, text + 9]));
        let own = SP + 16;
        assert!(start(&[0, 0, own, text, own + 0x8000, own + 0x9000]));
        // An empty list like one of C++.
        assert!(!start(&[0, 0, own, own, 7, own - 1]));
        assert!(!start(&[]) && !start(&[0; 80]));
    }
}

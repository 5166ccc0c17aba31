//! Copies of a part of a thread's stack.

use unwind::Cause;
use unwind::stack::Memory;

/// Maximum distance in bytes between the end of a copy and a word that a longer copy could have
/// contained.
const MAX_DISTANCE: u64 = 1 << 20;

/// Copy of a part of a stack.
#[derive(Clone, Copy, Debug)]
pub struct Copied<'a> {
    low: u64,
    bytes: &'a [u8],
    /// True if a word beyond the end of the copy was needed.
    pub is_short: bool,
}

impl<'a> Copied<'a> {
    /// Wraps bytes that were copied from address `low`.
    #[must_use]
    pub fn new(low: u64, bytes: &'a [u8]) -> Self {
        Self {
            low,
            bytes,
            is_short: false,
        }
    }

    /// Returns the first address, and the one after the last byte.
    pub(crate) fn range(&self) -> (u64, u64) {
        (self.low, self.low.saturating_add(self.bytes.len() as u64))
    }

    /// Returns the bytes of an address range, or `None` if it is not all in the copy.
    pub(crate) fn bytes(&self, from: u64, to: u64) -> Option<&'a [u8]> {
        let offset = |address: u64| usize::try_from(address.checked_sub(self.low)?).ok();
        self.bytes.get(offset(from)?..offset(to)?)
    }
}

impl Memory for Copied<'_> {
    fn read(&mut self, address: u64) -> Result<u64, Cause> {
        let offset = address.wrapping_sub(self.low);
        let end = offset.saturating_add(8);
        let (Ok(from), Ok(to)) = (usize::try_from(offset), usize::try_from(end)) else {
            return Err(Cause::OutOfStack);
        };
        let Some(word) = self
            .bytes
            .get(from..to)
            .filter(|_| address.is_multiple_of(8))
        else {
            let distance = end.wrapping_sub(self.bytes.len() as u64);
            self.is_short |= address >= self.low && distance < MAX_DISTANCE;
            return Err(Cause::OutOfStack);
        };
        Ok(u64::from_ne_bytes(word.try_into().unwrap_or_default()))
    }

    fn read_callee_stack(&mut self, _: u64, address: u64) -> Result<u64, Cause> {
        self.read(address)
    }

    fn move_to(&mut self, sp: u64) -> Result<(), Cause> {
        self.read(sp & !7).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_outside_the_copy_are_errors() {
        let bytes: Vec<u8> = [1u64, 2, 3].iter().flat_map(|w| w.to_ne_bytes()).collect();
        let mut memory = Copied::new(0x1000, &bytes);
        assert_eq!(memory.read(0x1010), Ok(3));
        for wild in [0xff8, 0x1004, 0, u64::MAX, u64::MAX - 7] {
            assert_eq!(memory.read(wild), Err(Cause::OutOfStack), "{wild:x}");
        }
        assert!(!memory.is_short);
        assert_eq!(memory.read(0x1018), Err(Cause::OutOfStack));
        assert!(memory.is_short);
    }
}

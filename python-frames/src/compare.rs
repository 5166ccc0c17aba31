//! Compares words in pairs, with a single branch at the end.

use super::memory::read_word;

/// Two words that were read earlier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct Pair(pub u64, pub u64);

/// Result of all comparisons so far.
#[derive(Clone, Copy)]
pub struct Comparison(machine::Bits);

impl Comparison {
    /// Begins a comparison. Without any pair, the result is equal.
    #[inline(always)]
    pub fn new() -> Self {
        Self(machine::initial())
    }

    /// Compares the two words at an address.
    ///
    /// # Safety
    /// 16 bytes at `at` are readable.
    #[inline(always)]
    pub unsafe fn and_at(self, at: u64, expected: &Pair) -> Self {
        // SAFETY: 16 bytes are readable.
        Self(machine::compare(
            self.0,
            unsafe { machine::load(at) },
            expected,
        ))
    }

    /// Compares two words that were just read.
    #[inline(always)]
    pub fn and(self, first: u64, second: u64, expected: &Pair) -> Self {
        Self(machine::compare(
            self.0,
            machine::pack(first, second),
            expected,
        ))
    }

    /// Compares the words at two addresses.
    ///
    /// # Safety
    /// 8 bytes at each address are readable.
    #[inline(always)]
    pub unsafe fn and_both(self, first: u64, second: u64, expected: &Pair) -> Self {
        // SAFETY: both words are readable, whether they are adjacent or not.
        unsafe {
            match second.wrapping_sub(first) {
                8 => self.and_at(first, expected),
                _ => self.and(read_word(first), read_word(second), expected),
            }
        }
    }

    /// Returns true if all pairs were equal.
    #[inline(always)]
    pub fn is_equal(self) -> bool {
        machine::all_equal(self.0)
    }
}

/// SSE2: a vector in which the bits of all bytes that were equal so far are set.
#[cfg(target_arch = "x86_64")]
mod machine {
    use super::Pair;
    use core::arch::x86_64::{
        __m128i, _mm_and_si128, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set_epi64x,
        _mm_set1_epi8,
    };

    pub type Bits = __m128i;

    #[inline(always)]
    pub fn initial() -> Bits {
        // SAFETY: all x86-64 processors have SSE2.
        unsafe { _mm_set1_epi8(-1) }
    }

    /// # Safety
    /// 16 bytes at `at` are readable.
    #[inline(always)]
    pub unsafe fn load(at: u64) -> Bits {
        // SAFETY: 16 bytes are readable, and an unaligned load needs no alignment.
        unsafe { _mm_loadu_si128(at as *const __m128i) }
    }

    #[inline(always)]
    pub fn pack(first: u64, second: u64) -> Bits {
        // SAFETY: all x86-64 processors have SSE2.
        unsafe { _mm_set_epi64x(second as i64, first as i64) }
    }

    #[inline(always)]
    pub fn compare(so_far: Bits, value: Bits, expected: &Pair) -> Bits {
        // SAFETY: all x86-64 processors have SSE2; a `Pair` has the size and alignment of a vector.
        unsafe {
            let expected = *core::ptr::from_ref(expected).cast::<__m128i>();
            _mm_and_si128(so_far, _mm_cmpeq_epi8(value, expected))
        }
    }

    #[inline(always)]
    pub fn all_equal(bits: Bits) -> bool {
        // SAFETY: all x86-64 processors have SSE2.
        unsafe { _mm_movemask_epi8(bits) == 0xffff }
    }
}

/// Other processors: a word of the bits that differed so far.
#[cfg(not(target_arch = "x86_64"))]
mod machine {
    use super::{Pair, read_word};

    pub type Bits = u64;

    #[inline(always)]
    pub fn initial() -> Bits {
        0
    }

    /// # Safety
    /// 16 bytes at `at` are readable.
    #[inline(always)]
    pub unsafe fn load(at: u64) -> Pair {
        // SAFETY: 16 bytes are readable.
        unsafe { Pair(read_word(at), read_word(at + 8)) }
    }

    #[inline(always)]
    pub fn pack(first: u64, second: u64) -> Pair {
        Pair(first, second)
    }

    #[inline(always)]
    pub fn compare(so_far: Bits, value: Pair, expected: &Pair) -> Bits {
        so_far | (value.0 ^ expected.0) | (value.1 ^ expected.1)
    }

    #[inline(always)]
    pub fn all_equal(bits: Bits) -> bool {
        bits == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_compared() {
        let words = [1_u64, 2, 3, u64::MAX];
        let at = |index: usize| words.as_ptr() as u64 + 8 * index as u64;
        let expected = [Pair(1, 2), Pair(3, u64::MAX)];
        // SAFETY: the addresses lead to the array's words.
        let same = |first: &Pair, second: &Pair| unsafe {
            let same = Comparison::new().and_at(at(0), first);
            same.and_both(at(2), at(3), second).is_equal()
        };
        assert!(same(&expected[0], &expected[1]));
        for index in 0..2 {
            for bit in [1, 1 << 31, 1 << 63] {
                let mut first = expected;
                first[index].0 ^= bit;
                assert!(!same(&first[0], &first[1]));
                let mut second = expected;
                second[index].1 ^= bit;
                assert!(!same(&second[0], &second[1]));
            }
        }
        // SAFETY: the addresses lead to the array's words.
        let not_adjacent = unsafe { Comparison::new().and_both(at(3), at(0), &Pair(u64::MAX, 1)) };
        assert!(not_adjacent.is_equal() && !not_adjacent.and(1, 2, &Pair(1, 3)).is_equal());
    }
}

//! Words that are compared two at a time, with one check at the end.

use super::memory::word;

/// Two words as they were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct Pair(pub u64, pub u64);

/// Whether all words that were compared so far are what they were.
#[derive(Clone, Copy)]
pub struct Same(machine::Bits);

impl Same {
    /// Nothing was compared yet.
    #[inline(always)]
    pub fn so_far() -> Self {
        Self(machine::none())
    }

    /// Compares the two words at an address.
    ///
    /// # Safety
    /// They can be read.
    #[inline(always)]
    pub unsafe fn and_at(self, at: u64, were: &Pair) -> Self {
        // SAFETY: the caller's.
        Self(machine::and(self.0, unsafe { machine::at(at) }, were))
    }

    /// Compares two words that were read.
    #[inline(always)]
    pub fn and(self, first: u64, second: u64, were: &Pair) -> Self {
        Self(machine::and(self.0, machine::of(first, second), were))
    }

    /// Compares the words at two addresses.
    ///
    /// # Safety
    /// They can be read.
    #[inline(always)]
    pub unsafe fn and_both(self, first: u64, second: u64, were: &Pair) -> Self {
        // SAFETY: the caller's.
        unsafe {
            match second.wrapping_sub(first) {
                8 => self.and_at(first, were),
                _ => self.and(word(first), word(second), were),
            }
        }
    }

    /// The judgement.
    #[inline(always)]
    pub fn holds(self) -> bool {
        machine::hold(self.0)
    }
}

/// All bits set where all is the same.
#[cfg(target_arch = "x86_64")]
mod machine {
    use super::Pair;
    use core::arch::x86_64::{
        __m128i, _mm_and_si128, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set_epi64x,
        _mm_set1_epi8,
    };

    pub type Bits = __m128i;

    #[inline(always)]
    pub fn none() -> Bits {
        // SAFETY: every processor of this kind has the instruction.
        unsafe { _mm_set1_epi8(-1) }
    }

    /// # Safety
    /// Two words can be read there.
    #[inline(always)]
    pub unsafe fn at(at: u64) -> Bits {
        // SAFETY: the caller's; no alignment is required.
        unsafe { _mm_loadu_si128(at as *const __m128i) }
    }

    #[inline(always)]
    pub fn of(first: u64, second: u64) -> Bits {
        // SAFETY: every processor of this kind has the instruction.
        unsafe { _mm_set_epi64x(second as i64, first as i64) }
    }

    #[inline(always)]
    pub fn and(so_far: Bits, is: Bits, were: &Pair) -> Bits {
        // SAFETY: as above; a pair is as large as that, and as aligned.
        unsafe {
            let were = *core::ptr::from_ref(were).cast::<__m128i>();
            _mm_and_si128(so_far, _mm_cmpeq_epi8(is, were))
        }
    }

    #[inline(always)]
    pub fn hold(bits: Bits) -> bool {
        // SAFETY: as above.
        unsafe { _mm_movemask_epi8(bits) == 0xffff }
    }
}

/// The bits that differ.
#[cfg(not(target_arch = "x86_64"))]
mod machine {
    use super::{Pair, word};

    pub type Bits = u64;

    #[inline(always)]
    pub fn none() -> Bits {
        0
    }

    /// # Safety
    /// Two words can be read there.
    #[inline(always)]
    pub unsafe fn at(at: u64) -> (u64, u64) {
        // SAFETY: the caller's.
        unsafe { (word(at), word(at + 8)) }
    }

    #[inline(always)]
    pub fn of(first: u64, second: u64) -> (u64, u64) {
        (first, second)
    }

    #[inline(always)]
    pub fn and(so_far: Bits, is: (u64, u64), were: &Pair) -> Bits {
        so_far | (is.0 ^ were.0) | (is.1 ^ were.1)
    }

    #[inline(always)]
    pub fn hold(bits: Bits) -> bool {
        bits == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_counts() {
        let words = [1_u64, 2, 3, u64::MAX];
        let at = |index: usize| words.as_ptr() as u64 + 8 * index as u64;
        let were = [Pair(1, 2), Pair(3, u64::MAX)];
        // SAFETY: of the array above.
        let same = |first: &Pair, second: &Pair| unsafe {
            let same = Same::so_far().and_at(at(0), first);
            same.and_both(at(2), at(3), second).holds()
        };
        assert!(same(&were[0], &were[1]));
        for index in 0..2 {
            for bit in [1, 1 << 31, 1 << 63] {
                let mut first = were;
                first[index].0 ^= bit;
                assert!(!same(&first[0], &first[1]));
                let mut second = were;
                second[index].1 ^= bit;
                assert!(!same(&second[0], &second[1]));
            }
        }
        // SAFETY: of the array above.
        let apart = unsafe { Same::so_far().and_both(at(3), at(0), &Pair(u64::MAX, 1)) };
        assert!(apart.holds() && !apart.and(1, 2, &Pair(1, 3)).holds());
    }
}

//! Bit set of fixed size.

/// Bit set, initially empty.
#[derive(Clone, Debug, Default)]
pub struct Bits(Vec<u64>);

impl Bits {
    /// Creates `count` zero bits.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self(vec![0; count.div_ceil(64)])
    }

    /// Returns the bit at `index`; false beyond the end.
    #[inline]
    #[must_use]
    pub fn get(&self, index: usize) -> bool {
        self.0
            .get(index / 64)
            .is_some_and(|word| (word >> (index % 64)) & 1 != 0)
    }

    /// Sets a bit and returns its old value. Beyond the end, sets nothing and returns true.
    #[inline]
    pub fn set(&mut self, index: usize) -> bool {
        let Some(word) = self.0.get_mut(index / 64) else {
            return true;
        };
        let bit = 1 << (index % 64);
        let old = *word & bit != 0;
        *word |= bit;
        old
    }

    /// Extends the set with zeros to `count` bits.
    pub fn grow(&mut self, count: usize) {
        self.0.resize(count.div_ceil(64).max(self.0.len()), 0);
    }

    /// Returns the indices of the bits in `start..end` that are set.
    pub fn ones(&self, start: usize, end: usize) -> impl Iterator<Item = usize> {
        let end = end.min(self.0.len() * 64);
        (start / 64..end.div_ceil(64)).flat_map(move |index| {
            let mut word = self.0[index];
            if index == start / 64 {
                word &= u64::MAX << (start % 64);
            }
            std::iter::from_fn(move || {
                let bit = index * 64 + word.trailing_zeros() as usize;
                let is_one = word != 0 && bit < end;
                word &= word.wrapping_sub(1);
                is_one.then_some(bit)
            })
        })
    }

    /// Returns the bits, 64 in each word.
    #[must_use]
    pub fn words(&self) -> &[u64] {
        &self.0
    }

    /// Returns the bits for modification, 64 in each word.
    pub fn words_mut(&mut self) -> &mut [u64] {
        &mut self.0
    }

    /// Clears a bit.
    #[inline]
    pub fn clear(&mut self, index: usize) {
        if let Some(word) = self.0.get_mut(index / 64) {
            *word &= !(1 << (index % 64));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ones_lists_the_set_bits_of_a_range() {
        let mut bits = Bits::default();
        bits.grow(200);
        let all = [0, 5, 63, 64, 127, 128, 190];
        for bit in all {
            assert!(!bits.set(bit) && bits.set(bit));
        }
        for (start, end) in [
            (0, 200),
            (0, 63),
            (5, 64),
            (6, 63),
            (64, 65),
            (70, 70),
            (128, 999),
        ] {
            let expected = all.iter().copied().filter(|bit| (start..end).contains(bit));
            let found: Vec<usize> = bits.ones(start, end).collect();
            assert_eq!(found, expected.collect::<Vec<_>>(), "{start}..{end}");
        }
        assert_eq!(bits.ones(999, 2000).count(), 0);
    }
}

//! A fixed number of bits.

/// Bits, all zero at first.
#[derive(Clone, Debug, Default)]
pub struct Bits(Vec<u64>);

impl Bits {
    /// `count` zeros.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self(vec![0; count.div_ceil(64)])
    }

    /// The bit at `index`; false beyond the end.
    #[inline]
    #[must_use]
    pub fn get(&self, index: usize) -> bool {
        self.0
            .get(index / 64)
            .is_some_and(|word| word >> (index % 64) & 1 != 0)
    }

    /// Sets a bit; returns what it was. Beyond the end, nothing is set, and it was true.
    #[inline]
    pub fn set(&mut self, index: usize) -> bool {
        let Some(word) = self.0.get_mut(index / 64) else {
            return true;
        };
        let bit = 1 << (index % 64);
        let was = *word & bit != 0;
        *word |= bit;
        was
    }

    /// Clears a bit.
    #[inline]
    pub fn clear(&mut self, index: usize) {
        if let Some(word) = self.0.get_mut(index / 64) {
            *word &= !(1 << (index % 64));
        }
    }
}

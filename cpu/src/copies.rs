//! Size of the stack copies that the kernel makes for each sample.

/// Initial size of stack copies, in bytes.
pub(crate) const INITIAL_STACK_BYTES: u32 = 16 << 10;
/// Maximum size of a stack copy in the kernel, in bytes.
pub(crate) const MAX_STACK_BYTES: u32 = 65_528;
/// Number of short copies after which copies grow; a single one is enough if its stack was
/// truncated.
const MIN_SHORT_SAMPLES: u64 = 3;
/// Copies do not grow if at most one in this many is short.
const TOLERATED_ONE_IN: u64 = 500;

/// Statistics on stack copies of the current size.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CopyStatistics {
    samples: u64,
    /// Number of samples whose copy was too short.
    short: u64,
    /// Number of samples with a short copy whose stack was truncated.
    cut: u64,
    /// Largest stack that was needed, in bytes.
    needed: u64,
}

impl CopyStatistics {
    /// Counts a sample. `needed` is the size in bytes of the stack that was needed.
    pub(crate) fn count(&mut self, is_short: bool, is_cut: bool, needed: u64) {
        self.samples += 1;
        self.short += u64::from(is_short);
        self.cut += u64::from(is_short && is_cut);
        self.needed = self.needed.max(needed);
    }

    /// Returns a larger size in bytes if too many copies of size `before` are too short.
    pub(crate) fn larger(&self, before: u32) -> Option<u32> {
        let is_bad = (self.short >= MIN_SHORT_SAMPLES || self.cut > 0)
            && self.short * TOLERATED_ONE_IN > self.samples;
        if !is_bad || before >= MAX_STACK_BYTES {
            return None;
        }
        // The kernel accepts multiples of eight.
        let needed = u32::try_from(self.needed.next_multiple_of(8)).unwrap_or(MAX_STACK_BYTES);
        Some((before * 2).max(needed).min(MAX_STACK_BYTES))
    }
}

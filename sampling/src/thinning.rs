//! Skips samples at random at call sites whose sums are already precise enough (thinning).
//!
//! Where objects are freed immediately, a few stacks get nearly all samples, and their sums are far
//! more precise than anyone needs. There, one in 2^n samples that are due is taken, at random, and
//! stands for 2^n times as many objects. n depends only on earlier samples of the call site, never
//! on the allocation itself: the probability of a sample is known before it is drawn, so every sum
//! stays unbiased (Horvitz and Thompson 1952).
//!
//! A call site is the return address of `malloc`, the stack pointer there, and the size: all of it
//! is known before the stack is unwound.

// Decision 34: importance sampling by call site.
use unwind::Registers;

/// Maximum thinning step: one in 2^`MAX_STEP` samples that are due is taken.
pub const MAX_STEP: u32 = 3;
/// Minimum number of samples of a stack and size before its call site is thinned (a standard error
/// of 6 %).
const MIN_SAMPLES: u64 = 256;
/// Number of consecutive samples of a call site that must allow a larger step before its step
/// grows. A site may have several stacks. A sample of a stack that allows no step restarts the
/// count, so a stack with at least one in this many of the site's samples is rarely thinned.
const SAMPLES_PER_STEP: u16 = 1024;
/// Maximum live bytes of a stack, in intervals, for step 1; half of it for step 2, a quarter for
/// step 3. So the variance that thinning adds to the live bytes of a growing stack is at most that
/// of 24 * 7 + 24 * 3 + 48 * 1 = 288 intervals without thinning.
const MAX_HELD_INTERVALS: u64 = 96;
/// Entries in a thread's table of call sites.
const SITES: usize = 512;

#[derive(Clone, Copy, Debug)]
struct Site {
    tag: u32,
    /// Number of consecutive samples so far that allow a larger step.
    run: u16,
    /// One in 2^`step` samples that are due is taken.
    step: u8,
}

/// Call sites of one thread, direct-mapped. All zeros is a valid table in which nothing is known.
#[derive(Debug)]
pub struct Sites([Site; SITES]);

/// Index and tag of a call site in [`Sites`].
#[derive(Clone, Copy, Debug)]
pub struct Key {
    index: usize,
    tag: u32,
}

impl Key {
    /// Returns the call site of a request.
    #[inline]
    pub fn of(registers: &Registers, bytes: usize) -> Self {
        let mixed = registers.ip ^ registers.sp.rotate_left(32) ^ (bytes as u64).rotate_left(17);
        let hash = mixed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        Self {
            index: (hash >> 55) as usize % SITES,
            tag: (hash >> 16) as u32,
        }
    }
}

/// Sums of the earlier samples of a stack and size.
#[derive(Clone, Copy, Debug)]
pub struct StackSums {
    /// Number of samples so far.
    pub samples: u64,
    /// Bytes that are live now.
    pub live_bytes: u64,
}

/// Sample that was taken.
#[derive(Clone, Copy, Debug)]
pub struct TakenSample {
    /// Size of the object.
    pub bytes: u64,
    /// Mean bytes between samples.
    pub interval: u64,
    /// Maximum step that the session allows.
    pub max_step: u32,
}

impl Sites {
    /// Forgets all call sites.
    pub fn forget(&mut self) {
        self.0 = [Site {
            tag: 0,
            run: 0,
            step: 0,
        }; SITES];
    }

    /// Returns the step of a call site: one in 2^step samples that are due is taken.
    #[inline]
    pub fn step(&self, key: Key) -> u32 {
        let site = &self.0[key.index];
        if site.tag == key.tag {
            u32::from(site.step)
        } else {
            0
        }
    }

    /// Adjusts the step of a call site after a sample was taken there.
    #[inline]
    pub fn update(&mut self, key: Key, known: StackSums, taken: TakenSample) {
        let mut allowed = 0;
        if known.samples >= MIN_SAMPLES {
            // No single sample may stand for more bytes than the stack may hold.
            let stack_bytes = known.live_bytes.max(taken.bytes.saturating_mul(4));
            allowed = allowed_step(stack_bytes, taken.interval).min(taken.max_step) as u8;
        }
        let site = &mut self.0[key.index];
        if site.tag != key.tag {
            *site = Site {
                tag: key.tag,
                run: 0,
                step: 0,
            };
        }
        if allowed <= site.step {
            site.step = allowed;
            site.run = 0;
        } else if site.run < SAMPLES_PER_STEP {
            site.run += 1;
        } else {
            site.step += 1;
            site.run = 0;
        }
    }
}

/// Returns the largest step for a stack that holds this many bytes.
#[inline]
fn allowed_step(stack_bytes: u64, interval: u64) -> u32 {
    let limit = interval.saturating_mul(2 * MAX_HELD_INTERVALS);
    (1..=MAX_STEP)
        .rev()
        .find(|step| stack_bytes < limit >> step)
        .unwrap_or(0)
}

#[cfg(test)]
mod tests;

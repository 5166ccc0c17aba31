//! Importance sampling by call site: which of the samples that are due are taken.
//!
//! Where objects are freed at once, a few stacks get nearly all samples, and their sums are known
//! far more precisely than anyone needs. There, one due sample in 2^n is taken, at random, and
//! stands for 2^n times as many objects. The n depends on what earlier samples of the same call
//! site showed, never on the allocation itself, so every sum stays unbiased: the probability with
//! which an object is sampled is known before it is drawn (Horvitz and Thompson 1952).
//!
//! A call site is where `malloc` was called from, at which depth of the stack, and for what size:
//! all of it known before the stack is unwound.

// Decision 34: importance sampling by call site.
use unwind::Registers;

/// Largest binary logarithm of the number of due samples of which one is taken.
pub const MOST: u32 = 3;
/// Samples of a stack and size before its call site is thinned: a standard error of 6 %.
const KNOWN_WELL: u64 = 256;
/// Samples taken at a call site, all of stacks that can do with half of them, before only half of
/// them are taken. A stack that has one in this many of the site's samples is rarely thinned.
const RUN: u16 = 1024;
/// Live bytes of a stack up to which only half of its samples are taken, in intervals. Halved for
/// each further step, so that the variance of what is held there in the end, however it came to be,
/// is that of 300 intervals more at most.
const HELD: u64 = 96;
/// Call sites that a thread remembers.
const SITES: usize = 512;

#[derive(Clone, Copy, Debug)]
struct Site {
    tag: u32,
    /// Samples in a row that allow a further step.
    run: u16,
    /// One due sample in 2^this is taken.
    step: u8,
}

/// A thread's call sites. Zeroed memory is a valid one, which knows none.
#[derive(Debug)]
pub struct Sites([Site; SITES]);

/// A call site in [`Sites`].
#[derive(Clone, Copy, Debug)]
pub struct Key {
    index: usize,
    tag: u32,
}

impl Key {
    /// The call site of a request.
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

impl Sites {
    /// Forgets them all.
    pub fn forget(&mut self) {
        self.0 = [Site {
            tag: 0,
            run: 0,
            step: 0,
        }; SITES];
    }

    /// The binary logarithm of the number of due samples of which one is taken there.
    #[inline]
    pub fn step(&self, key: Key) -> u32 {
        let site = &self.0[key.index];
        if site.tag == key.tag {
            u32::from(site.step)
        } else {
            0
        }
    }

    /// Learns from a sample that was taken there, of an object of `bytes`, in a session of this
    /// interval and with this largest step. Of its stack and size this many samples are known by
    /// now, and this many bytes are live.
    #[inline]
    pub fn learn(
        &mut self,
        key: Key,
        (samples, live_bytes): (u64, u64),
        (bytes, interval, most): (u64, u64, u32),
    ) {
        let mut allowed = 0;
        if samples >= KNOWN_WELL {
            // One object alone may not stand for more than the stack may hold.
            let held = live_bytes.max(bytes.saturating_mul(4));
            allowed = allowed_step(held, interval).min(most) as u8;
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
            (site.step, site.run) = (allowed, 0);
        } else if site.run < RUN {
            site.run += 1;
        } else {
            (site.step, site.run) = (site.step + 1, 0);
        }
    }
}

/// The largest step for a stack that holds this many bytes.
#[inline]
fn allowed_step(held: u64, interval: u64) -> u32 {
    let limit = interval.saturating_mul(2 * HELD);
    (1..=MOST)
        .rev()
        .find(|step| held < limit >> step)
        .unwrap_or(0)
}

#[cfg(test)]
mod tests;

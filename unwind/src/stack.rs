//! The readable part of the running thread's stack.
//!
//! The bounds of a stack cannot be asked for inside `malloc` (the libc call takes
//! locks and allocates), and a program may run on stacks that no library knows
//! (alternate signal stacks, coroutines). So memory is found readable page by page,
//! with a system call that copies from it and reports instead of faulting, and
//! remembered while the thread stays there: one such call a page and thread.

use crate::Cause;

const PAGE: u64 = 4096;
/// Most bytes by which one read may extend the known part: frames with arrays of
/// megabytes exist, wild pointers are further away.
const REACH: u64 = 16 << 20;
/// Largest downward gap that still counts as the same stack.
const GAP: u64 = 256 << 10;

/// What a function may use below its stack pointer (x86-64 psABI 3.2.2).
const RED_ZONE: u64 = 128;

/// A copy of what is known to be readable, small enough for two registers.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    low: u64,
    bytes: u64,
}

impl Known {
    /// The word at `address` if that is known to be readable; finds nothing out.
    #[inline(always)]
    #[must_use]
    pub fn peek(self, address: u64) -> Option<u64> {
        let inside = address.wrapping_sub(self.low) < self.bytes;
        // SAFETY: as in `Stack::read`.
        (inside && address & 7 == 0).then(|| unsafe { (address as *const u64).read_volatile() })
    }
}

/// What is known to be readable, as a half-open range around the stack pointer.
#[derive(Clone, Copy, Debug)]
pub struct Stack {
    low: u64,
    high: u64,
    ceiling: u64,
    /// How often what was known no longer counted.
    moves: u64,
}

impl Stack {
    /// Nothing known yet.
    pub const EMPTY: Self = Self {
        low: 0,
        high: 0,
        ceiling: 0,
        moves: 0,
    };

    /// A stack at `sp`; no word at or above `ceiling` belongs to it (0: not known).
    #[must_use]
    pub fn at(sp: u64, ceiling: u64) -> Self {
        Self {
            low: sp & !(PAGE - 1),
            high: sp & !(PAGE - 1),
            ceiling,
            moves: 0,
        }
    }

    /// Makes `sp` the lowest word in use. Keeps what is known if `sp` is still there.
    #[inline]
    pub fn enter(&mut self, sp: u64, ceiling: u64) {
        if sp >= self.low && sp < self.high {
            return;
        }
        self.enter_elsewhere(sp, ceiling);
    }

    #[cold]
    fn enter_elsewhere(&mut self, sp: u64, ceiling: u64) {
        let page = sp & !(PAGE - 1);
        let deeper = sp < self.low && self.low - sp <= GAP;
        if deeper && (page..self.low).step_by(PAGE as usize).all(is_readable) {
            self.low = page;
        } else {
            self.restart(sp, if ceiling > sp { ceiling } else { 0 });
        }
    }

    /// Follows a switch of stacks (a signal frame): what was known no longer counts. The red
    /// zone below `sp` belongs to the stack: a function that is interrupted when it is about
    /// to return has its registers there.
    ///
    /// # Errors
    /// [`Cause::OutOfStack`] if nothing is readable there.
    pub fn move_to(&mut self, sp: u64) -> Result<(), Cause> {
        let red = sp.saturating_sub(RED_ZONE);
        if red >= self.low && sp < self.high {
            return Ok(());
        }
        self.restart(if is_readable(red) { red } else { sp }, 0);
        self.extend(sp)
    }

    fn restart(&mut self, sp: u64, ceiling: u64) {
        *self = Self {
            moves: self.moves + 1,
            ..Self::at(sp, ceiling)
        };
    }

    /// How often the stack was another one: while this stays, every word that was read
    /// may be read again.
    #[inline]
    #[must_use]
    pub fn moves(&self) -> u64 {
        self.moves
    }

    /// What is known now. Holds until the stack is changed.
    #[inline(always)]
    #[must_use]
    pub fn known(&self) -> Known {
        Known {
            low: self.low,
            bytes: self.high - self.low,
        }
    }

    /// Reads the word at `address`.
    ///
    /// # Errors
    /// [`Cause::OutOfStack`] if it is not on the readable stack, or not aligned.
    #[inline]
    pub fn read(&mut self, address: u64) -> Result<u64, Cause> {
        if address < self.low || address >= self.high {
            self.extend(address)?;
        }
        if address & 7 != 0 {
            return Err(Cause::OutOfStack);
        }
        // SAFETY: the page was found readable while this thread was on this stack, and the
        // words between its stack pointer and its end stay mapped while it runs there.
        Ok(unsafe { (address as *const u64).read_volatile() })
    }

    #[cold]
    fn extend(&mut self, address: u64) -> Result<(), Cause> {
        let beyond = self.ceiling != 0 && address >= self.ceiling;
        if address < self.low || beyond || address - self.high.min(address) > REACH {
            return Err(Cause::OutOfStack);
        }
        while self.high <= address {
            if !is_readable(self.high) {
                return Err(Cause::OutOfStack);
            }
            self.high = self.high.checked_add(PAGE).ok_or(Cause::OutOfStack)?;
        }
        Ok(())
    }
}

/// Whether the page at `address` can be read: `rt_sigprocmask` copies the new mask before
/// it refuses `how`, so it answers EFAULT for an unreadable one and EINVAL otherwise, and
/// changes nothing. Sandboxes allow it; one that does not (EPERM, ENOSYS) leaves no page
/// known to be readable. errno is not touched.
fn is_readable(address: u64) -> bool {
    const EINVAL: i64 = -22;
    // A null mask is no mask to the kernel; nothing is mapped below the first page anyway.
    if address < PAGE {
        return false;
    }
    // SAFETY: with an invalid `how` the call has no effect but to read 8 bytes.
    unsafe { rt_sigprocmask_invalid(address) == EINVAL }
}

#[cfg(target_arch = "x86_64")]
unsafe fn rt_sigprocmask_invalid(set: u64) -> i64 {
    let result: i64;
    // SAFETY: system call 14 with these arguments only reads 8 bytes at `set`.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") 14i64 => result,
            in("rdi") -1i64, in("rsi") set, in("rdx") 0u64, in("r10") 8u64,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

#[cfg(target_arch = "aarch64")]
unsafe fn rt_sigprocmask_invalid(set: u64) -> i64 {
    let result: i64;
    // SAFETY: system call 135 with these arguments only reads 8 bytes at `set`.
    unsafe {
        core::arch::asm!(
            "svc 0",
            in("x8") 135i64,
            inlateout("x0") -1i64 => result,
            in("x1") set, in("x2") 0u64, in("x3") 8u64,
            options(nostack),
        );
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    #[test]
    fn readable_and_unreadable_pages_are_told_apart() {
        let word = 5u64;
        assert!(is_readable(&raw const word as u64));
        assert!(!is_readable(0));
        assert!(!is_readable(0x10));
        assert!(!is_readable(u64::MAX - 4095));
    }

    #[test]
    fn words_are_read_across_pages_and_misalignment_refused() {
        let words = vec![7u64; 4096];
        let base = words.as_ptr() as u64;
        let mut stack = Stack::at(base, 0);
        assert_eq!(stack.read(base), Ok(7));
        assert_eq!(stack.read(base + 8 * 4000), Ok(7));
        assert_eq!(stack.read(base + 4), Err(Cause::OutOfStack));
    }

    #[test]
    fn words_below_an_interrupted_stack_pointer_are_read_across_a_page() {
        let words = vec![7u64; 4096];
        let page = (words.as_ptr() as u64 + 2 * PAGE) & !(PAGE - 1);
        let mut stack = Stack::EMPTY;
        assert_eq!(stack.move_to(page), Ok(()));
        assert_eq!(stack.read(page - 16), Ok(7));
        assert_eq!(stack.read(page), Ok(7));
        assert_eq!(
            stack.move_to(8),
            Err(Cause::OutOfStack),
            "nothing is mapped there"
        );
    }

    #[test]
    fn nothing_below_the_stack_or_above_its_ceiling_is_read() {
        let words = vec![7u64; 4096];
        let base = words.as_ptr() as u64;
        let mut stack = Stack::at(base + 8192, base + 16384);
        assert_eq!(stack.read(base), Err(Cause::OutOfStack));
        assert_eq!(stack.read(base + 16384), Err(Cause::OutOfStack));
        assert_eq!(stack.read(base + 8192), Ok(7));
        assert_eq!(stack.read(!7), Err(Cause::OutOfStack));
    }
}

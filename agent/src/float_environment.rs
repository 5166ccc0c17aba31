//! Keeps the sampler's arithmetic out of the program's floating-point environment.
//!
//! A program may test exceptions (`fetestexcept`), have them trapped (`feenableexcept`) or choose a
//! rounding mode, around a computation that allocates. glibc's `malloc` computes with integers
//! only.

use core::arch::asm;

/// Runs `work` in the default environment: no exceptions are trapped, and results are rounded to
/// the nearest value. Restores the program's environment afterwards, including the exception flags.
///
/// Costs a write of the control register only if `work` raises an exception whose flag the program
/// has not set, or if the program has changed the environment.
#[inline(always)]
pub fn with_default<R>(work: impl FnOnce() -> R) -> R {
    let before = Environment::current();
    before.make_default();
    let result = work();
    before.restore();
    result
}

/// Floating-point environment of the calling thread.
#[derive(Clone, Copy)]
#[cfg(target_arch = "x86_64")]
struct Environment {
    /// MXCSR. The x87 unit has another one, which no code here uses.
    state: u32,
}

#[cfg(target_arch = "x86_64")]
impl Environment {
    /// Exception flags in MXCSR.
    const FLAGS: u32 = 0x3f;
    /// Default state: all exceptions are masked.
    const DEFAULT: u32 = 0x1f80;

    #[inline(always)]
    fn current() -> Self {
        let mut state = 0_u32;
        // SAFETY: writes four bytes of our own. The memory clobber keeps the compiler from moving
        // later work before it.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut state, options(nostack, preserves_flags)) };
        Self { state }
    }

    /// Switches from this environment to the default one. Keeps the exception flags.
    #[inline(always)]
    fn make_default(self) {
        if self.state & !Self::FLAGS != Self::DEFAULT {
            Self::set(Self::DEFAULT | (self.state & Self::FLAGS));
        }
    }

    #[inline(always)]
    fn restore(self) {
        if Self::current().state != self.state {
            Self::set(self.state);
        }
    }

    /// Sets the register: to the default with any exception flags, or to a value read before.
    #[inline(always)]
    fn set(state: u32) {
        // SAFETY: either state is valid. The compiler expects the default one, and the program's
        // own is set only after the work.
        unsafe {
            asm!("ldmxcsr [{}]", in(reg) &raw const state, options(nostack, preserves_flags))
        };
    }
}

/// Floating-point environment of the calling thread.
#[derive(Clone, Copy)]
#[cfg(target_arch = "aarch64")]
struct Environment {
    /// FPCR: traps and rounding mode.
    control: u64,
    /// FPSR: exception flags.
    raised: u64,
}

#[cfg(target_arch = "aarch64")]
impl Environment {
    #[inline(always)]
    fn current() -> Self {
        let (control, raised): (u64, u64);
        // SAFETY: reads two registers. The memory clobber keeps the compiler from moving later work
        // before it.
        unsafe {
            asm!("mrs {}, fpcr", "mrs {}, fpsr", out(reg) control, out(reg) raised, options(nostack))
        };
        Self { control, raised }
    }

    /// Switches from this environment to the default one. Keeps the exception flags.
    #[inline(always)]
    fn make_default(self) {
        if self.control != 0 {
            // SAFETY: the default state, which the compiler expects.
            unsafe { asm!("msr fpcr, xzr", options(nostack)) };
        }
    }

    #[inline(always)]
    fn restore(self) {
        let now = Self::current();
        if now.raised != self.raised {
            // SAFETY: a value that was read before.
            unsafe { asm!("msr fpsr, {}", in(reg) self.raised, options(nostack)) };
        }
        if self.control != 0 {
            // SAFETY: a value that was read before, set when the work is done.
            unsafe { asm!("msr fpcr, {}", in(reg) self.control, options(nostack)) };
        }
    }
}

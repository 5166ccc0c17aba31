//! Registers of an interrupted thread, and their numbers in the kernel and in DWARF.

use unwind::Registers;

/// Registers of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveRegisters {
    /// Registers by DWARF number.
    by_number: [u64; COUNT],
    /// Address of the next instruction.
    pc: u64,
    /// True if only the stack pointer and the program counter are known.
    is_sparse: bool,
}

impl LiveRegisters {
    /// Returns registers that are all known, given by DWARF number.
    #[must_use]
    pub fn of_all(registers: &[u64], pc: u64) -> Self {
        let mut live = Self {
            pc,
            ..Self::default()
        };
        let count = COUNT.min(registers.len());
        live.by_number[..count].copy_from_slice(&registers[..count]);
        live
    }

    /// Returns the registers of a sleeping thread, of which the kernel shows only these two.
    #[must_use]
    pub fn of_sleeper(sp: u64, pc: u64) -> Self {
        let mut live = Self {
            pc,
            is_sparse: true,
            ..Self::default()
        };
        live.by_number[SP] = sp;
        live
    }

    /// Returns the registers by DWARF number; empty if they are not all known.
    #[must_use]
    pub fn by_number_if_known(&self) -> &[u64] {
        if self.is_sparse { &[] } else { &self.by_number }
    }

    /// Returns true if the frame pointer is not known.
    #[must_use]
    pub fn lacks_fp(&self) -> bool {
        self.is_sparse
    }

    /// Returns the address of the next instruction.
    #[must_use]
    pub fn pc(&self) -> u64 {
        self.pc
    }

    /// Returns the registers that unwinding follows. Unwinding looks up `ip - 1`, as for a return
    /// address, so the exact pc is increased by one.
    #[must_use]
    pub fn unwind_registers(&self) -> Registers {
        Registers {
            ip: self.pc.wrapping_add(1),
            sp: self.by_number[SP],
            fp: self.by_number[FP],
        }
    }

    /// Converts the values of perf's registers for [`MASK`].
    pub(crate) fn of_perf(values: &[u64]) -> Option<Self> {
        let mut live = Self::default();
        let bits = (0..u64::BITS).filter(|bit| (MASK >> bit) & 1 != 0);
        for (bit, &value) in bits.zip(values) {
            match number(bit) {
                Some(number) => live.by_number[number] = value,
                None => live.pc = value,
            }
        }
        (values.len() == MASK.count_ones() as usize).then_some(live)
    }
}

#[cfg(target_arch = "x86_64")]
mod machine {
    /// Number of registers by DWARF number (x86-64 psABI, figure 3.36), without the return address.
    pub const COUNT: usize = 16;
    pub const SP: usize = 7;
    pub const FP: usize = 6;
    /// Mask of `PERF_REG_X86_*`: ax, bx, cx, dx, si, di, bp, sp, ip, and r8 to r15.
    pub const MASK: u64 = (0xff << 16) | 0x1ff;

    /// Returns the DWARF number of the kernel's register, or `None` for the program counter.
    pub fn number(bit: u32) -> Option<usize> {
        const ORDER: [usize; 8] = [0, 3, 2, 1, 4, 5, 6, 7];
        match bit {
            0..8 => Some(ORDER[bit as usize]),
            16..24 => Some(bit as usize - 8),
            _ => None,
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod machine {
    /// Number of registers by DWARF number: x0 to x30, and sp.
    pub const COUNT: usize = 32;
    pub const SP: usize = 31;
    pub const FP: usize = 29;
    /// Mask of `PERF_REG_ARM64_*`: x0 to x30, sp, pc.
    pub const MASK: u64 = (1 << 33) - 1;

    /// Returns the DWARF number of the kernel's register, or `None` for the program counter.
    pub fn number(bit: u32) -> Option<usize> {
        (bit < 32).then_some(bit as usize)
    }
}

pub use machine::COUNT;
pub(crate) use machine::MASK;
use machine::{FP, SP, number};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perf_registers_are_converted_to_dwarf_numbers() {
        let bits: Vec<u64> = (0..64).filter(|bit| (MASK >> bit) & 1 != 0).collect();
        let live = LiveRegisters::of_perf(&bits).unwrap();
        #[cfg(target_arch = "x86_64")]
        {
            // ax, dx, cx, bx, si, di, bp, sp, r8 to r15.
            let expected = [0, 3, 2, 1, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23];
            assert_eq!(live.by_number[..16], expected);
            assert_eq!(live.pc, 8);
        }
        #[cfg(target_arch = "aarch64")]
        assert_eq!((live.by_number[31], live.pc), (31, 32));
        assert_eq!(LiveRegisters::of_perf(&bits[1..]), None);
    }
}

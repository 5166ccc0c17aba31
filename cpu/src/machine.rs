//! Machine (instruction set) that a process's program was built for. Stacks are unwound by the
//! rules of the machine that we run on, so only programs for it can be sampled.

use std::fmt;

/// Size in bytes of an ELF header up to and including `e_machine` (gABI, chapter 4).
const HEAD_BYTES: u64 = 20;
/// `ELFCLASS64`, `ELFDATA2MSB`.
const CLASS_64: u8 = 2;
const BIG_ENDIAN: u8 = 2;

/// `e_machine` of programs that we can unwind: `EM_X86_64`, `EM_AARCH64`.
#[cfg(target_arch = "x86_64")]
const OWN_MACHINE: u16 = 62;
#[cfg(target_arch = "aarch64")]
const OWN_MACHINE: u16 = 183;

/// Machine that is not the one that we run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Machine {
    /// True if its registers have 32 bits.
    is_32_bit: bool,
    /// ELF machine number, if known.
    number: Option<u16>,
}

impl Machine {
    /// Machine that is known only to have 32-bit registers.
    pub(crate) const UNKNOWN_32_BIT: Self = Self {
        is_32_bit: true,
        number: None,
    };

    /// Returns the machine of a process's program, or `None` if it is this program's own or cannot
    /// be determined.
    #[must_use]
    pub fn foreign_to_us(pid: i32) -> Option<Self> {
        let tid = proc::living_thread(pid);
        let head = proc::read(&format!("/proc/{tid}/exe"), HEAD_BYTES).ok()?;
        Self::parse(&head)
    }

    fn parse(head: &[u8]) -> Option<Self> {
        let head: &[u8; HEAD_BYTES as usize] = head.try_into().ok()?;
        let &[0x7f, b'E', b'L', b'F', class, data, ..] = head else {
            return None;
        };
        let e_machine = [head[18], head[19]];
        let number = match data {
            BIG_ENDIAN => u16::from_be_bytes(e_machine),
            _ => u16::from_le_bytes(e_machine),
        };
        let is_32_bit = class != CLASS_64;
        (is_32_bit || number != OWN_MACHINE).then_some(Self {
            is_32_bit,
            number: Some(number),
        })
    }
}

/// Returns the usual name of a machine.
fn name(number: u16) -> String {
    let name = match number {
        3 => "i386",
        8 => "MIPS",
        20 => "PowerPC",
        21 => "64-bit PowerPC",
        22 => "S/390",
        40 => "Arm",
        62 => "x86-64",
        183 => "aarch64",
        243 => "RISC-V",
        258 => "LoongArch",
        n => return format!("machine {n}"),
    };
    name.to_owned()
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = if self.is_32_bit { "32-bit " } else { "" };
        write!(f, "it runs a {bits}program")?;
        if let Some(number) = self.number {
            write!(f, " for {}", name(number))?;
        }
        write!(
            f,
            ", and only 64-bit programs for {} can be sampled here",
            name(OWN_MACHINE)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(class: u8, data: u8, number: [u8; 2]) -> Vec<u8> {
        let mut head = b"\x7fELF".to_vec();
        head.extend([class, data, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0]);
        head.extend(number);
        head
    }

    #[test]
    fn other_machines_are_recognised() {
        assert_eq!(Machine::parse(&head(2, 1, OWN_MACHINE.to_le_bytes())), None);
        let display = |head: &[u8]| Machine::parse(head).expect("another one").to_string();
        let narrow = display(&head(1, 1, [3, 0]));
        assert!(narrow.contains("a 32-bit program for i386,"), "{narrow}");
        let x32 = display(&head(1, 1, [62, 0]));
        assert!(x32.contains("a 32-bit program for x86-64,"), "{x32}");
        let big = display(&head(2, 2, [0, 22]));
        assert!(big.contains("a program for S/390,"), "{big}");
        let unlisted = display(&head(2, 1, [0x34, 0x12]));
        assert!(unlisted.contains("for machine 4660,"), "{unlisted}");
        for not_a_program in [&b"#!/bin/sh"[..], b"", &head(1, 1, [3, 0])[..19]] {
            assert_eq!(Machine::parse(not_a_program), None);
        }
        let our_pid = std::process::id().cast_signed();
        assert_eq!(Machine::foreign_to_us(our_pid), None);
    }
}

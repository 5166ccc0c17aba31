//! Unwinds from an innermost function without unwind tables: hand-written assembly.
//!
//! If such a function has nothing on the stack, its return address is at the stack pointer (x86-64)
//! or in the link register (aarch64). Any word may look like a return address. It is trusted if it
//! points into code, if the instruction before it is a call, and if that call can lead to the
//! thread's pc. That is the case if
//! - the call's target is before the pc, with no function in between that has tables; or
//! - the target is a linker stub or slot that leads there; or
//! - the target was in a register, and the caller has tables.

use unwind::Registers;
use unwind::rule::{Step, Word};
use unwind::stack::Memory;

use crate::registers::LiveRegisters;
use crate::space::{Library, Space};

/// Maximum distance in bytes of a pc from the start of its function.
const MAX_FUNCTION_BYTES: u64 = 1 << 20;
/// Maximum number of stubs in a chain.
const MAX_STUBS: usize = 3;

/// Target of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Address of code.
    At(u64),
    /// Address of a slot: a word that holds the target.
    #[cfg_attr(
        target_arch = "aarch64",
        expect(dead_code, reason = "its calls name registers")
    )]
    Slot(u64),
    /// Target in a register, or in memory addressed by a register.
    Unknown,
}

/// Steps from a thread whose innermost function has no tables. Returns `None` if no caller is
/// found.
pub fn step(
    space: &mut Space,
    library: &mut Library,
    live: &LiveRegisters,
    at: Registers,
    memory: &mut impl Memory,
) -> Option<Step> {
    let pc = live.pc();
    space.find(pc)?;
    let (ip, sp) = machine::caller(live, at, memory)?;
    let caller_has_tables = space.function(ip, library)?;
    let is_caller = |call| match call {
        Call::At(target) => leads_to(space, target, pc),
        Call::Slot(slot) => space
            .word(slot)
            .is_some_and(|target| leads_to(space, target, pc)),
        Call::Unknown => caller_has_tables,
    };
    machine::calls(space, ip).any(is_caller).then(|| {
        let registers = Registers { ip, sp, fp: at.fp };
        let word = Word::default();
        Step::Caller {
            registers,
            ra: word,
            fp: word,
        }
    })
}

/// Returns true if code at `target` may lead to `pc`, directly or through stubs.
fn leads_to(space: &Space, mut target: u64, pc: u64) -> bool {
    for _ in 0..MAX_STUBS {
        if target <= pc && pc - target < MAX_FUNCTION_BYTES && space.are_in_one_range(target, pc) {
            return !space.has_function(target, pc);
        }
        match machine::stub(space, target) {
            Some(next) => target = next,
            None => return false,
        }
    }
    false
}

#[cfg(target_arch = "x86_64")]
mod machine {
    use super::{Call, LiveRegisters, Memory, Registers, Space};

    /// Size of the longest call instruction in bytes.
    const MAX_CALL_BYTES: usize = 7;

    /// Returns the return address and the caller's stack pointer.
    pub fn caller(
        _: &LiveRegisters,
        at: Registers,
        memory: &mut impl Memory,
    ) -> Option<(u64, u64)> {
        Some((memory.read(at.sp).ok()?, at.sp.checked_add(8)?))
    }

    /// Returns the calls that may end at a return address. The start of the instruction
    /// before it is unknown, so every length is tried, and several may give a call.
    pub fn calls(space: &Space, ip: u64) -> impl Iterator<Item = Call> {
        let mut bytes = [0; MAX_CALL_BYTES];
        let start = ip.wrapping_sub(MAX_CALL_BYTES as u64);
        // Fewer bytes of code may precede the address.
        let missing = (0..MAX_CALL_BYTES).find(|missing| {
            let part = &mut bytes[*missing..];
            space.read(start.wrapping_add(*missing as u64), part)
        });
        let from = missing.unwrap_or(MAX_CALL_BYTES);
        (from..MAX_CALL_BYTES).filter_map(move |at| call(&bytes[at..], ip))
    }

    fn distance(bytes: &[u8]) -> Option<i64> {
        let bytes: &[u8; 4] = bytes.try_into().ok()?;
        Some(i64::from(i32::from_le_bytes(*bytes)))
    }

    /// Decodes a call that consists of exactly these bytes and ends at `ip`: `e8`, or `ff` with 2
    /// in the middle of the ModRM byte (Intel's manual, volume 2, CALL).
    pub fn call(bytes: &[u8], ip: u64) -> Option<Call> {
        let bytes = match bytes {
            [0xe8, rest @ ..] => return Some(Call::At(ip.wrapping_add_signed(distance(rest)?))),
            [0x40..=0x4f, rest @ ..] => rest,
            all => all,
        };
        let [0xff, modrm, rest @ ..] = bytes else {
            return None;
        };
        let mode = modrm >> 6;
        let register = modrm & 7;
        if (modrm >> 3) & 7 != 2 {
            return None;
        }
        if (mode, register) == (0, 5) {
            return Some(Call::Slot(ip.wrapping_add_signed(distance(rest)?)));
        }
        let (sib, rest) = match (mode, register, rest) {
            (0..3, 4, [sib, rest @ ..]) => (Some(sib), rest),
            (0..3, 4, []) => return None,
            _ => (None, rest),
        };
        let base_is_missing = mode == 0 && sib.is_some_and(|sib| sib & 7 == 5);
        let displacement_bytes = match mode {
            1 => 1,
            2 => 4,
            0 if base_is_missing => 4,
            _ => 0,
        };
        (rest.len() == displacement_bytes).then_some(Call::Unknown)
    }

    /// Returns the target of a stub: `jmp rel32`, or `jmp *slot`, after an optional `endbr64`.
    pub fn stub(space: &Space, at: u64) -> Option<u64> {
        let mut bytes = [0; 11];
        if !space.read(at, &mut bytes) {
            return None;
        }
        let skipped = match bytes {
            [0xf3, 0x0f, 0x1e, 0xfa, 0xf2, ..] => 5,
            [0xf3, 0x0f, 0x1e, 0xfa, ..] => 4,
            [0xf2, ..] => 1,
            _ => 0,
        };
        let end = |len: usize| at.wrapping_add((skipped + len) as u64);
        match &bytes[skipped..] {
            [0xe9, rest @ ..] => Some(end(5).wrapping_add_signed(distance(&rest[..4])?)),
            [0xff, 0x25, rest @ ..] => {
                space.word(end(6).wrapping_add_signed(distance(rest.get(..4)?)?))
            }
            _ => None,
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod machine {
    use super::{Call, LiveRegisters, Memory, Registers, Space};
    use unwind::arch::{Machine, Native};

    /// DWARF number of the link register.
    const LR: usize = 30;

    /// Returns the return address and the caller's stack pointer.
    pub fn caller(live: &LiveRegisters, at: Registers, _: &mut impl Memory) -> Option<(u64, u64)> {
        let link = *live.by_number_if_known().get(LR)?;
        Some((Native::return_address(link), at.sp))
    }

    /// Reads the instruction at an address.
    fn instruction(space: &Space, at: u64) -> Option<u32> {
        let mut bytes = [0; 4];
        space
            .read(at, &mut bytes)
            .then(|| u32::from_le_bytes(bytes))
    }

    /// Returns the call that ends at a return address: `bl`, or `blr` of any kind.
    pub fn calls(space: &Space, ip: u64) -> impl Iterator<Item = Call> {
        let at = ip.wrapping_sub(4);
        let call = instruction(space, at).and_then(|word| call(word, at));
        call.into_iter()
    }

    /// Decodes the instruction `word` at address `at` (Arm's manual, BL and BLR).
    pub fn call(word: u32, at: u64) -> Option<Call> {
        match word {
            _ if word >> 26 == 0b10_0101 => Some(Call::At(branch(word, at))),
            _ if word & 0xfeff_f000 == 0xd63f_0000 => Some(Call::Unknown),
            _ => None,
        }
    }

    /// Returns the target of a `b` or `bl` at address `at`.
    fn branch(word: u32, at: u64) -> u64 {
        at.wrapping_add_signed(i64::from((word << 6).cast_signed() >> 6) * 4)
    }

    /// Returns the target of a stub: `b`, or `adrp x16` and `ldr x17` of a slot, after an optional
    /// `bti`.
    pub fn stub(space: &Space, at: u64) -> Option<u64> {
        const BTI_C: u32 = 0xd503_245f;
        let at = match instruction(space, at)? {
            BTI_C => at.wrapping_add(4),
            _ => at,
        };
        let first = instruction(space, at)?;
        if first >> 26 == 0b00_0101 {
            return Some(branch(first, at));
        }
        let second = instruction(space, at.wrapping_add(4))?;
        if first & 0x9f00_001f != 0x9000_0010 || second & 0xffc0_03ff != 0xf940_0211 {
            return None;
        }
        // The immediate of `adrp` is split: its two low bits are bits 29 and 30.
        let pages = i64::from((((first >> 5) & 0x7_ffff) << 2) | ((first >> 29) & 3));
        let sign_extended = (pages << 43) >> 43;
        let page = (at & !4095).wrapping_add_signed(sign_extended << 12);
        space.word(page.wrapping_add(u64::from((second >> 10) & 0xfff) * 8))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn calls_are_distinguished_from_other_bytes() {
        use machine::call;
        let slot = |distance: i64| Some(Call::Slot(0x1000u64.wrapping_add_signed(distance)));
        for (bytes, expected) in [
            (&[0xe8, 0x10, 0, 0, 0][..], Some(Call::At(0x1010))),
            (&[0xe8, 0xf0, 0xff, 0xff, 0xff], Some(Call::At(0xff0))),
            (&[0xff, 0x15, 0x20, 0, 0, 0], slot(0x20)),
            (&[0xff, 0xd0], Some(Call::Unknown)),
            (&[0x41, 0xff, 0xd3], Some(Call::Unknown)),
            (&[0xff, 0x10], Some(Call::Unknown)),
            (&[0xff, 0x53, 0x18], Some(Call::Unknown)),
            (&[0xff, 0x54, 0x24, 8], Some(Call::Unknown)),
            (&[0xff, 0x14, 0xc5, 0, 0, 0, 0], Some(Call::Unknown)),
            (&[0x42, 0xff, 0x14, 0xe0], Some(Call::Unknown)),
            (&[0xff, 0x90, 0, 1, 0, 0], Some(Call::Unknown)),
            (
                &[0x41, 0xff, 0x94, 0x24, 0, 1, 0, 0][1..],
                Some(Call::Unknown),
            ),
            // A jump, an increment, and parts of instructions are not calls.
            (&[0xff, 0xe0], None),
            (&[0xff, 0x00], None),
            (&[0xff, 0x53], None),
            (&[0xff, 0x14], None),
            (&[0xe8, 0, 0, 0], None),
            (&[0xff], None),
            (&[], None),
        ] {
            assert_eq!(call(bytes, 0x1000), expected, "{bytes:x?}");
        }
    }

    #[cfg(target_arch = "aarch64")]
    #[test]
    fn calls_are_distinguished_from_other_instructions() {
        use machine::call;
        assert_eq!(call(0x9400_0004, 0x1000), Some(Call::At(0x1010)));
        assert_eq!(call(0x97ff_ffff, 0x1000), Some(Call::At(0xffc)));
        assert_eq!(call(0xd63f_0220, 0x1000), Some(Call::Unknown));
        // `blraa x17, sp`
        assert_eq!(call(0xd73f_0a3f, 0x1000), Some(Call::Unknown));
        assert_eq!(call(0x1400_0004, 0x1000), None);
        assert_eq!(call(0xd65f_03c0, 0x1000), None);
    }
}

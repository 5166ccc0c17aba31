//! Frame pointers: followed where code has no tables, and looked for where a sleeper's is needed
//! and not known.

use unwind::Registers;
use unwind::compile::function;
use unwind::rule::{Step, Word};
use unwind::stack::Memory;

use crate::space::Space;

/// How far above the stack pointer a frame may end.
const REACH: u64 = 64 << 10;

/// Code without tables may keep frame pointers: compilers at run time do, and Go's. `None`: what
/// is there is no frame.
pub fn step(space: &mut Space, at: Registers, memory: &mut impl Memory) -> Option<Step> {
    // Nothing to go on from where no code is.
    space.find(at.ip.wrapping_sub(1))?;
    if at.fp < at.sp || !at.fp.is_multiple_of(8) {
        return None;
    }
    let fp = memory.read(at.fp).ok()?;
    let ip = memory.read(at.fp.checked_add(8)?).ok()?;
    if ip == 0 && fp == 0 {
        let ra = Word::default();
        return Some(Step::End { ra });
    }
    space.find(ip.wrapping_sub(1))?;
    let sp = at.fp.checked_add(16)?;
    let word = Word::default();
    let registers = Registers { ip, sp, fp };
    Some(Step::Caller {
        registers,
        ra: word,
        fp: word,
    })
}

/// The frame pointer of a frame that has one, found by what such frames look like: the caller's
/// frame pointer, which is further out, and behind it a return address before which this very
/// function is called. `None`: it is called through a table of addresses, or has none.
pub fn find(space: &mut Space, at: Registers, memory: &mut impl Memory) -> Option<u64> {
    let start = function(&space.module(at.ip)?, at.ip)?;
    let first = at.sp.checked_add(7)? & !7;
    let slots = (first..first.checked_add(REACH)?).step_by(8);
    for fp in slots {
        let saved = memory.read(fp).ok()?;
        let is_outer = saved == 0 || saved > fp && saved.is_multiple_of(8);
        if !is_outer {
            continue;
        }
        let ip = memory.read(fp.checked_add(8)?).ok()?;
        if space.find(ip.wrapping_sub(1)).is_some() && target(&space.before(ip), ip) == Some(start)
        {
            return Some(fp);
        }
    }
    None
}

/// What a call calls that ends before `ip`: `call rel32`.
#[cfg(target_arch = "x86_64")]
pub(crate) fn target(before: &[u8; 5], ip: u64) -> Option<u64> {
    let &[0xe8, distance @ ..] = before else {
        return None;
    };
    Some(ip.wrapping_add_signed(i64::from(i32::from_le_bytes(distance))))
}

/// The same: `bl`.
#[cfg(target_arch = "aarch64")]
pub(crate) fn target(before: &[u8; 5], ip: u64) -> Option<u64> {
    let &[_, a, b, c, d] = before;
    let word = u32::from_le_bytes([a, b, c, d]);
    let distance = i64::from((word << 6).cast_signed() >> 6) * 4;
    (word >> 26 == 0b10_0101).then(|| ip.wrapping_sub(4).wrapping_add_signed(distance))
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn a_calls_target_is_read() {
        assert_eq!(target(&[0xe8, 0x10, 0, 0, 0], 0x1000), Some(0x1010));
        assert_eq!(target(&[0xe8, 0xf0, 0xff, 0xff, 0xff], 0x1000), Some(0xff0));
        assert_eq!(target(&[0, 0, 0, 0xff, 0xd0], 0x1000), None);
    }
}

//! The system call that creates a thread. C libraries have no unwind tables from this call on: what
//! is true for the caller is wrong for the new thread, which also returns from it.

use unwind::Registers;
use unwind::rule::{Step, Word};
use unwind::stack::Memory;

use crate::registers::Live;
use crate::space::{Caller, Space};

/// Bytes of a function that makes it, at most.
const LONGEST: u64 = 256;
/// `syscall`
const CALL: [u8; 2] = [0x0f, 0x05];

/// The step from a thread that is in the call or right behind it. The function has nothing on the
/// stack: there is the return address, in front of which this function is called; or this is the
/// new thread, which has no caller. `None`: neither.
pub fn step(
    space: &mut Space,
    live: &Live,
    at: Registers,
    memory: &mut impl Memory,
) -> Option<Step> {
    let pc = live.pc();
    if !cfg!(target_arch = "x86_64") || !space.before(pc).ends_with(&CALL) {
        return None;
    }
    let word = Word::default();
    let ip = memory.read(at.sp).unwrap_or(0);
    if let Some(Caller::Of(start)) = space.caller(ip)
        && pc.wrapping_sub(start) < LONGEST
    {
        let sp = at.sp.checked_add(8)?;
        let registers = Registers { ip, sp, fp: at.fp };
        return Some(Step::Caller {
            registers,
            ra: word,
            fp: word,
        });
    }
    // What the call returns (rax): 0 in the new thread.
    (live.known().first() == Some(&0)).then_some(Step::End { ra: word })
}

//! Steps from the system call that creates a thread. C libraries have no unwind tables from this
//! call on: what is true for the caller is wrong for the new thread, which returns from it too.

use unwind::Registers;
use unwind::rule::{Step, Word};
use unwind::stack::Memory;

use crate::registers::Live;
use crate::space::{Caller, Space};

/// Maximum size in bytes of the function that makes the call.
const MAX_FUNCTION_BYTES: u64 = 256;
/// Instruction `syscall`.
const CALL: [u8; 2] = [0x0f, 0x05];

/// Steps from a thread that is in the call or directly after it. The function has nothing on the
/// stack but the return address, unless this is the new thread, which has no caller. Returns `None`
/// if it is neither.
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
        && pc.wrapping_sub(start) < MAX_FUNCTION_BYTES
    {
        let sp = at.sp.checked_add(8)?;
        let registers = Registers { ip, sp, fp: at.fp };
        return Some(Step::Caller {
            registers,
            ra: word,
            fp: word,
        });
    }
    // The call's result (rax) is 0 in the new thread.
    (live.known().first() == Some(&0)).then_some(Step::End { ra: word })
}

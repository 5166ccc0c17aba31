//! Unwinds from the system call that creates a thread. C libraries have no unwind tables after this
//! call, because both threads return from it: a rule that is right for the caller would be wrong
//! for the new thread.

use unwind::Registers;
use unwind::rule::{Step, Word};
use unwind::stack::Memory;

use crate::registers::LiveRegisters;
use crate::space::{CallSite, Space};

/// Maximum size in bytes of the function that contains the system call.
const MAX_FUNCTION_BYTES: u64 = 256;
/// Encoding of the instruction `syscall`.
const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// Steps from a thread that is in the system call or directly after it. In the calling thread, the
/// function has only its return address on the stack; the new thread has no caller. Returns `None`
/// if the thread seems to be neither.
pub fn step(
    space: &mut Space,
    live: &LiveRegisters,
    at: Registers,
    memory: &mut impl Memory,
) -> Option<Step> {
    let pc = live.pc();
    if !cfg!(target_arch = "x86_64") || !space.bytes_before(pc).ends_with(&SYSCALL) {
        return None;
    }
    let word = Word::default();
    let ip = memory.read(at.sp).unwrap_or(0);
    if let Some(CallSite::Known(start)) = space.call_site(ip)
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
    (live.by_number_if_known().first() == Some(&0)).then_some(Step::End { ra: word })
}

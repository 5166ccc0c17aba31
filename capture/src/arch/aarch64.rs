//! aarch64: `struct user_pt_regs`, the signal frame of `rt_sigreturn`, `svc #0; ret`.
//!
//! At a stop inside a system call, the kernel has already moved the program counter back to the
//! `svc` and restored the first argument, so the registers can be restored as they are.

use super::{Rank, put};
use crate::code::SyscallCode;
use crate::request;

/// `svc #0; ret`.
pub const CALL: &[&[u8]] = &[b"\x01\x00\x00\xd4\xc0\x03\x5f\xd6"];
/// `mov x8, #139; svc #0`, which the vDSO contains.
pub const RETURN: &[&[u8]] = &[b"\x68\x11\x80\xd2\x01\x00\x00\xd4"];
/// Instruction that stops a traced thread with `SIGTRAP`: `brk #0`.
pub const TRAP_CODE: &[u8] = b"\x00\x00\x20\xd4";
/// Alignment of instructions in bytes.
pub const ALIGNMENT: usize = 4;
/// Offset of a system call's first argument (`x0`) in the result of [`frame`].
pub const FIRST_ARGUMENT: u64 = REGISTERS as u64;

const X8: usize = 8;
const LINK: usize = 30;
const SP: usize = 31;
const PC: usize = 32;
const PSTATE: usize = 33;
/// Bits of the processor state: single step, and the type of the last branch.
const STEP_AND_BRANCH: u64 = (1 << 21) | (0b11 << 10);

/// Offset of the context in `struct rt_sigframe`, after `siginfo`. The context ends with records of
/// variable size.
const CONTEXT: usize = 128;
const ALTERNATE_FLAGS: usize = CONTEXT + 24;
const MASK: usize = CONTEXT + 40;
const REGISTERS: usize = CONTEXT + 176 + 8;
const RECORDS: usize = CONTEXT + 176 + 288;
const VECTOR_MAGIC: u64 = 0x4650_8001;
const VECTOR_SIZE: usize = 528;

/// Register set: number of the system call in which a thread is, or -1.
const NT_ARM_SYSTEM_CALL: i32 = 0x404;
const NT_ARM_SVE: i32 = 0x405;
const NT_ARM_ZA: i32 = 0x40c;
const NT_ARM_GCS: i32 = 0x410;

/// General registers, in the layout of `NT_PRSTATUS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct General(pub [u64; 34]);

impl General {
    /// Returns registers that are all zero.
    pub fn empty() -> Self {
        Self([0; 34])
    }

    /// Returns the stack pointer.
    pub fn sp(&self) -> u64 {
        self.0[SP]
    }

    /// Returns the program counter.
    pub fn pc(&self) -> u64 {
        self.0[PC]
    }

    /// Returns the registers by DWARF number: x0 to x30, sp.
    pub fn by_number(&self) -> [u64; 32] {
        std::array::from_fn(|number| self.0[number])
    }

    /// Sets the program counter.
    pub fn set_pc(&mut self, pc: u64) {
        self.0[PC] = pc;
    }

    /// Returns a system call's result.
    pub fn result(&self) -> i64 {
        self.0[0].cast_signed()
    }

    /// Returns how well this state can be restored. The registers do not show whether the thread is
    /// inside a system call. If x8 holds the number of a sleep, the thread may be inside that
    /// sleep, which would then start over.
    pub fn rank(&self) -> Rank {
        let sleeps = [
            libc::SYS_nanosleep,
            libc::SYS_clock_nanosleep,
            libc::SYS_futex,
        ];
        if sleeps.contains(&self.0[X8].cast_signed()) {
            Rank::Continues
        } else {
            Rank::Restarts
        }
    }

    /// Returns the registers for making a system call, with the stack at `frame`. If the thread is
    /// released there, it returns into that frame.
    #[must_use]
    pub fn calling(
        &self,
        code: &SyscallCode,
        number: libc::c_long,
        args: [u64; 6],
        frame: u64,
    ) -> Self {
        let mut regs = *self;
        regs.0[..6].copy_from_slice(&args);
        regs.0[X8] = number.cast_unsigned();
        regs.0[LINK] = code.sigreturn;
        regs.0[SP] = frame;
        regs.0[PC] = code.call;
        regs.0[PSTATE] &= !STEP_AND_BRANCH;
        regs
    }

    /// Returns the registers for starting a function with one argument, which returns to `back`.
    #[must_use]
    pub fn entering(&self, function: u64, argument: u64, stack: u64, back: u64) -> Self {
        let mut regs = *self;
        regs.0[..LINK].fill(0);
        regs.0[0] = argument;
        regs.0[LINK] = back;
        regs.0[SP] = stack;
        regs.0[PC] = function;
        regs.0[PSTATE] = 0;
        regs
    }

    /// Returns the registers with which an interrupted system call restarts if no handler runs. On
    /// this architecture, the kernel has already set them so.
    #[must_use]
    pub fn restarted(&self) -> Self {
        *self
    }
}

/// Returns the thread pointer.
pub fn thread_pointer(tid: i32, _regs: &General) -> std::io::Result<u64> {
    let bytes = request::register_set(tid, request::NT_ARM_TLS)?;
    let word = bytes.first_chunk().copied().unwrap_or_default();
    Ok(u64::from_le_bytes(word))
}

/// Returns true if a thread was stopped in a system call. Returns false if the kernel does not
/// report that.
pub fn is_in_call(tid: i32, _regs: &General) -> bool {
    let bytes = request::register_set(tid, NT_ARM_SYSTEM_CALL).unwrap_or_default();
    let number = bytes.first_chunk().copied().map(i32::from_le_bytes);
    number.is_some_and(|number| number != -1)
}

/// Returns true if a callee preserves the word of [`vector`] with this index. These are the lower
/// halves of v8 to v15 (AAPCS64, 6.1.2).
pub fn is_preserved(index: usize) -> bool {
    matches!(index, 16..32) && index % 2 == 0
}

/// Returns the vector and floating-point registers.
pub fn vector(tid: i32) -> std::io::Result<Vec<u8>> {
    request::register_set(tid, request::NT_PRFPREG)
}

/// Returns the reason why a frame cannot restore this thread's state: scalable vectors and
/// matrices, whose records are not supported here, or a guarded control stack, which rejects the
/// return frames.
pub fn obstacle(tid: i32) -> Option<&'static str> {
    let field = |kind, offset: usize, bytes: usize| -> u64 {
        let set = request::register_set(tid, kind).unwrap_or_default();
        let mut word = [0; 8];
        if let Some(field) = set.get(offset..offset + bytes) {
            word[..bytes].copy_from_slice(field);
        }
        u64::from_le_bytes(word)
    };
    // `struct user_sve_header`: size, max_size, vl, max_vl, flags; bit 0: SVE registers.
    if field(NT_ARM_SVE, 12, 2) & 1 == 1 {
        return Some("its threads use SVE registers");
    }
    // `struct user_za_header`: 16 bytes, more if the matrix is in use.
    if field(NT_ARM_ZA, 0, 4) > 16 {
        return Some("its threads use SME registers");
    }
    (field(NT_ARM_GCS, 0, 8) & 1 == 1).then_some("its threads have a guarded control stack")
}

/// Returns a signal frame that restores these registers and this mask of blocked signals. An empty
/// `vector` clears the vector registers. (The frame does not depend on its address here.)
pub fn frame(
    _address: u64,
    regs: &General,
    vector: &[u8],
    mask: u64,
    _code: &SyscallCode,
) -> Vec<u8> {
    // The list of records ends with one that is all zero.
    let mut bytes = vec![0; (RECORDS + VECTOR_SIZE + 16).next_multiple_of(64)];
    // An invalid mode, with which the kernel leaves the alternate stack as it is.
    put(&mut bytes, ALTERNATE_FLAGS, 7);
    put(&mut bytes, MASK, mask);
    for (index, register) in regs.0.into_iter().enumerate() {
        put(&mut bytes, REGISTERS + 8 * index, register);
    }
    put(
        &mut bytes,
        RECORDS,
        VECTOR_MAGIC | ((VECTOR_SIZE as u64) << 32),
    );
    // `struct user_fpsimd_state` has 32 vectors, then fpsr and fpcr. In the record, fpsr and fpcr
    // come first.
    if let (Some(vectors), Some(control)) = (vector.get(..512), vector.get(512..520)) {
        bytes[RECORDS + 8..RECORDS + 16].copy_from_slice(control);
        bytes[RECORDS + 16..RECORDS + 16 + 512].copy_from_slice(vectors);
    }
    bytes
}

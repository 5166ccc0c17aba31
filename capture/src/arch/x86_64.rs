//! x86-64: `struct user_regs_struct`, the signal frame of `rt_sigreturn`, `syscall; ret`.

use std::arch::x86_64::__cpuid_count;

use super::{Rank, put, restart};
use crate::code::SyscallCode;
use crate::request;

/// `syscall; ret`.
pub const CALL: &[&[u8]] = &[b"\x0f\x05\xc3"];
/// `mov $15, %rax; syscall`, in both encodings: the C library's signal trampoline.
pub const RETURN: &[&[u8]] = &[b"\x48\xc7\xc0\x0f\0\0\0\x0f\x05", b"\xb8\x0f\0\0\0\x0f\x05"];
/// Instruction that stops a traced thread with `SIGTRAP`: `int3`.
pub const TRAP_CODE: &[u8] = b"\xcc";
/// Alignment of instructions in bytes.
pub const ALIGNMENT: usize = 1;
/// Offset of a system call's first argument (`rdi`) in the result of [`frame`].
pub const FIRST_ARGUMENT: u64 = (CONTEXT + 40 + 8 * 8) as u64;

// Indices into `struct user_regs_struct`, in the order of the signal frame.
const ORDER_OF_FRAME: [usize; 18] = [
    9, 8, 7, 6, 3, 2, 1, 0, // r8 to r15
    14, 13, 4, 5, 12, 10, 11, 19, 16, 18, // rdi rsi rbp rbx rdx rax rcx rsp rip eflags
];
const ARGUMENTS: [usize; 6] = [14, 13, 12, 7, 9, 8];
const RAX: usize = 10;
const ORIG_RAX: usize = 15;
const RIP: usize = 16;
const CS: usize = 17;
const EFLAGS: usize = 18;
const RSP: usize = 19;
const SS: usize = 20;
const FS_BASE: usize = 21;

/// Trap flag: single step.
const TRAP: u64 = 1 << 8;
/// Offset of the context in `struct rt_sigframe`, after the return address.
const CONTEXT: usize = 8;
/// Size of the frame in bytes without the vector state.
const FRAME: usize = 440;
/// Flags of `struct ucontext`: extended state, and both bits for `ss`.
const CONTEXT_FLAGS: u64 = 0b111;
// Offsets of the alternate stack's flags, the segment registers, the pointer to the vector state,
// and the signal mask.
const ALTERNATE_FLAGS: usize = CONTEXT + 24;
const SEGMENTS: usize = CONTEXT + 40 + 18 * 8;
const VECTOR_POINTER: usize = SEGMENTS + 8 + 4 * 8;
const MASK: usize = CONTEXT + 40 + 256;

/// General registers, in the layout of `NT_PRSTATUS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct General(pub [u64; 27]);

impl General {
    /// Returns registers that are all zero.
    pub fn empty() -> Self {
        Self([0; 27])
    }

    /// Returns the stack pointer.
    pub fn sp(&self) -> u64 {
        self.0[RSP]
    }

    /// Returns the program counter.
    pub fn pc(&self) -> u64 {
        self.0[RIP]
    }

    /// Returns the registers by DWARF number (x86-64 psABI, figure 3.36).
    pub fn by_number(&self) -> [u64; 16] {
        // rax rdx rcx rbx rsi rdi rbp rsp, r8 to r15
        [10, 12, 11, 5, 13, 14, 4, 19, 9, 8, 7, 6, 3, 2, 1, 0].map(|index| self.0[index])
    }

    /// Sets the program counter.
    pub fn set_pc(&mut self, pc: u64) {
        self.0[RIP] = pc;
    }

    /// Returns a system call's result.
    pub fn result(&self) -> i64 {
        self.0[RAX].cast_signed()
    }

    /// Returns how well this state can be restored.
    pub fn rank(&self) -> Rank {
        match self.restart_number() {
            None => Rank::Running,
            Some(restart::BLOCK) => Rank::Continues,
            Some(_) => Rank::Restarts,
        }
    }

    /// Returns the error number that will make the kernel restart the system call in which the
    /// thread was stopped; `None` if there is no call to restart.
    fn restart_number(&self) -> Option<i64> {
        let is_in_call = self.0[ORIG_RAX].cast_signed() >= 0;
        let result = self.result();
        (is_in_call && restart::is_restart_error(result)).then_some(result)
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
        for (index, arg) in ARGUMENTS.into_iter().zip(args) {
            regs.0[index] = arg;
        }
        regs.0[RAX] = number.cast_unsigned();
        // Shows that the thread is in no system call, so that the kernel restarts none.
        regs.0[ORIG_RAX] = u64::MAX;
        regs.0[RIP] = code.call;
        regs.0[RSP] = frame;
        regs.0[EFLAGS] &= !TRAP;
        regs
    }

    /// Returns the registers for starting a function with one argument, which returns to `back`.
    /// The word below `stack` must be `back` too.
    #[must_use]
    pub fn entering(&self, function: u64, argument: u64, stack: u64, _back: u64) -> Self {
        /// Interrupts enabled, and the bit that is always set.
        const FLAGS: u64 = 0x202;
        let mut regs = *self;
        regs.0[..=RAX].fill(0);
        regs.0[ARGUMENTS[0]] = argument;
        regs.0[ORIG_RAX] = u64::MAX;
        regs.0[RIP] = function;
        regs.0[RSP] = stack - 8;
        regs.0[EFLAGS] = FLAGS;
        regs
    }

    /// Returns the registers with which an interrupted system call restarts if no handler runs. The
    /// kernel sets them so at the end of a stop, but not in `rt_sigreturn`. A sleep ends with
    /// `EINTR`, since its restart block is lost by then.
    #[must_use]
    pub fn restarted(&self) -> Self {
        let mut regs = *self;
        match self.restart_number() {
            None => {}
            Some(restart::BLOCK) => regs.0[RAX] = i64::from(-libc::EINTR).cast_unsigned(),
            Some(_) => {
                regs.0[RAX] = regs.0[ORIG_RAX];
                regs.0[RIP] = regs.0[RIP].wrapping_sub(2);
            }
        }
        regs.0[ORIG_RAX] = u64::MAX;
        regs
    }
}

/// Returns the thread pointer.
pub fn thread_pointer(_tid: i32, regs: &General) -> std::io::Result<u64> {
    Ok(regs.0[FS_BASE])
}

/// Returns true if a thread was stopped in a system call.
pub fn is_in_call(_tid: i32, regs: &General) -> bool {
    regs.0[ORIG_RAX].cast_signed() >= 0
}

/// Returns true if a callee preserves the word of [`vector`] with this index. It preserves none
/// (System V ABI, 3.2.1).
pub fn is_preserved(_index: usize) -> bool {
    false
}

/// Returns the vector and floating-point registers.
pub fn vector(tid: i32) -> std::io::Result<Vec<u8>> {
    request::register_set(tid, request::NT_X86_XSTATE)
        .or_else(|_| request::register_set(tid, request::NT_PRFPREG))
}

/// Returns the reason why a frame cannot restore this thread's state.
pub fn obstacle(_tid: i32) -> Option<&'static str> {
    // Shadow stacks are detected from `/proc` (see `crate::choice`).
    None
}

/// Returns a signal frame for this address (a multiple of 64) that restores these registers and
/// this mask of blocked signals. An empty `vector` clears the vector registers.
pub fn frame(
    address: u64,
    regs: &General,
    vector: &[u8],
    mask: u64,
    code: &SyscallCode,
) -> Vec<u8> {
    let mut bytes = vec![0; FRAME.next_multiple_of(64)];
    put(&mut bytes, 0, code.sigreturn);
    put(&mut bytes, CONTEXT, CONTEXT_FLAGS);
    // An invalid mode, with which the kernel leaves the alternate stack as it is.
    put(&mut bytes, ALTERNATE_FLAGS, 7);
    for (index, register) in ORDER_OF_FRAME.into_iter().enumerate() {
        put(&mut bytes, CONTEXT + 40 + 8 * index, regs.0[register]);
    }
    put(
        &mut bytes,
        SEGMENTS,
        (regs.0[CS] & 0xffff) | (regs.0[SS] << 48),
    );
    put(&mut bytes, MASK, mask);
    if !vector.is_empty() {
        let pointer = address + bytes.len() as u64;
        put(&mut bytes, VECTOR_POINTER, pointer);
        bytes.extend(vector_area(vector));
        bytes.resize(bytes.len().next_multiple_of(64), 0);
    }
    bytes
}

/// Returns the vector state in the format of a signal frame: with its size and features in the
/// software-defined bytes (`struct _fpx_sw_bytes`), and a second magic number at its end.
fn vector_area(registers: &[u8]) -> Vec<u8> {
    const SOFTWARE: usize = 464;
    const FEATURES: usize = 512;
    const LEGACY_AND_HEADER: usize = 576;
    const X87_AND_SSE: u64 = 0b11;
    const PROTECTION_KEYS: u64 = 1 << 9;
    const FP_XSTATE_MAGIC1: u32 = 0x4650_5853;
    const FP_XSTATE_MAGIC2: u32 = 0x4650_5845;
    let mut area = registers.to_vec();
    if area.len() < LEGACY_AND_HEADER {
        return area;
    }
    let word = |offset: usize| {
        let bytes = registers[offset..offset + 8].try_into();
        u64::from_le_bytes(bytes.unwrap_or_default())
    };
    let features = word(FEATURES) | X87_AND_SSE | (word(SOFTWARE) & PROTECTION_KEYS);
    let components = (2..63).filter(|bit| (features >> bit) & 1 == 1);
    let end = components
        .map(end_of_component)
        .fold(LEGACY_AND_HEADER, usize::max);
    let size = end.min(area.len());
    area.truncate(size);
    area[SOFTWARE..512].fill(0);
    put(
        &mut area,
        SOFTWARE,
        u64::from(FP_XSTATE_MAGIC1) | (((size + 4) as u64) << 32),
    );
    put(&mut area, SOFTWARE + 8, features);
    put(&mut area, SOFTWARE + 16, size as u64);
    put(&mut area, FEATURES, features);
    area.extend(FP_XSTATE_MAGIC2.to_le_bytes());
    area
}

/// Returns the end offset of a component of the extended state.
fn end_of_component(bit: u32) -> usize {
    #[allow(unused_unsafe, reason = "a safe function since Rust 1.93")]
    // SAFETY: every x86-64 processor has this instruction, and returns zeros for an unknown leaf.
    let leaf = unsafe { __cpuid_count(0xd, bit) };
    let offset = leaf.ebx as usize;
    let size = leaf.eax as usize;
    offset + size
}

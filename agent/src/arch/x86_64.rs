//! x86-64, System V ABI.

mod entry;
mod start;
mod system_call;

pub(crate) use entry::*;
pub(crate) use start::*;
pub(crate) use system_call::*;

use super::Local;
use core::arch::{asm, global_asm};
use unwind::Registers;

global_asm!(
    ".pushsection .tbss.mem_agent_local,\"awT\",@nobits",
    ".p2align 4",
    ".hidden mem_agent_local",
    ".globl mem_agent_local",
    ".type mem_agent_local,@object",
    ".size mem_agent_local,56",
    "mem_agent_local:",
    ".zero 56",
    ".popsection",
);

/// The calling thread's words.
#[inline(always)]
pub fn local() -> *mut Local {
    let at: *mut Local;
    // SAFETY: reads the thread pointer and a constant offset from it; the symbol above is
    // 56 zeroed bytes in this module's initial-exec block.
    unsafe {
        asm!(
            "mov {at}, qword ptr fs:[0]",
            "add {at}, qword ptr [rip + mem_agent_local@GOTTPOFF]",
            at = out(reg) at,
            options(pure, readonly, nostack),
        );
    }
    at
}

/// Whether the calling thread has met `epoch` and `bytes` more may pass unsampled; then they
/// are counted.
#[inline(always)]
pub fn counts_down(epoch: u32, bytes: usize) -> bool {
    // SAFETY: the symbol above is in this module's initial-exec block, and the thread's own.
    unsafe {
        asm!(
            "mov {at}, qword ptr [rip + mem_agent_local@GOTTPOFF]",
            "cmp dword ptr fs:[{at} + 8], {epoch:e}",
            "jne {due}",
            "sub qword ptr fs:[{at}], {bytes}",
            "js {due}",
            at = out(reg) _,
            epoch = in(reg) epoch,
            bytes = in(reg) bytes,
            due = label { return false },
            options(nostack),
        );
    }
    true
}

/// The thread pointer: glibc puts the control block above the stacks that it makes.
#[inline(always)]
pub fn thread_pointer() -> u64 {
    let at: u64;
    // SAFETY: the word at fs:0 is the thread pointer itself, by the ABI of thread-local
    // storage.
    unsafe {
        asm!("mov {at}, qword ptr fs:[0]", at = out(reg) at, options(pure, readonly, nostack))
    };
    at
}

/// Registers that DWARF numbers, without the return address (x86-64 psABI, figure 3.36).
const NUMBERED: usize = 16;

/// A function that a signal interrupted.
pub struct Interrupted {
    /// Where it was; the instruction's address plus one, as if it were a return address.
    pub registers: Registers,
    /// All registers by their DWARF numbers.
    pub live: [u64; NUMBERED],
}

/// The registers that the kernel has saved for a signal's handler.
pub fn interrupted(context: &libc::ucontext_t) -> Interrupted {
    /// The numbers of the kernel's registers, in the order of DWARF's.
    const ORDER: [libc::c_int; NUMBERED] = [
        libc::REG_RAX,
        libc::REG_RDX,
        libc::REG_RCX,
        libc::REG_RBX,
        libc::REG_RSI,
        libc::REG_RDI,
        libc::REG_RBP,
        libc::REG_RSP,
        libc::REG_R8,
        libc::REG_R9,
        libc::REG_R10,
        libc::REG_R11,
        libc::REG_R12,
        libc::REG_R13,
        libc::REG_R14,
        libc::REG_R15,
    ];
    let of = |register: libc::c_int| context.uc_mcontext.gregs[register as usize] as u64;
    Interrupted {
        registers: Registers {
            ip: of(libc::REG_RIP).wrapping_add(1),
            sp: of(libc::REG_RSP),
            fp: of(libc::REG_RBP),
        },
        live: ORDER.map(of),
    }
}

/// Whether the calling thread has a thread pointer, and so memory of its own: one that the program
/// has made without the C library may have none. A system call. Changes `errno`.
pub fn has_locals() -> bool {
    /// `ARCH_GET_FS` of asm/prctl.h.
    const GET: usize = 0x1003;
    let mut at = 0u64;
    let result: i64;
    // SAFETY: arch_prctl(2) by hand, for the C library's function stores `errno` in that memory; it
    // writes one word, and changes the two registers besides the result's.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") libc::SYS_arch_prctl => result,
            in("rdi") GET,
            in("rsi") &raw mut at,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result == 0 && at != 0
}

/// Asks for the cache line at an address, which will be written or read soon. Whatever the address, this
/// has no other effect.
#[inline(always)]
pub fn prefetch<T>(at: *const T) {
    // SAFETY: every x86-64 processor has the instruction, which never faults.
    unsafe { core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(at.cast()) }
}

/// A cycle counter of constant rate.
#[inline(always)]
pub fn cycles() -> u64 {
    // SAFETY: every x86-64 processor has the instruction.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Whether the runtime of one of the compilers' sanitizers is in the process, and has its
/// allocator: what the loader found for the names that each of them has.
pub fn has_sanitizer() -> bool {
    let found: usize;
    // SAFETY: reads words of our own offset table, null where a weak name is nowhere.
    unsafe {
        asm!(
            ".weak __asan_init",
            ".weak __hwasan_init",
            ".weak __lsan_init",
            ".weak __memprof_init",
            ".weak __msan_init",
            ".weak __nsan_init",
            ".weak __tsan_init",
            "mov {found}, qword ptr [rip + __asan_init@GOTPCREL]",
            "or {found}, qword ptr [rip + __hwasan_init@GOTPCREL]",
            "or {found}, qword ptr [rip + __lsan_init@GOTPCREL]",
            "or {found}, qword ptr [rip + __memprof_init@GOTPCREL]",
            "or {found}, qword ptr [rip + __msan_init@GOTPCREL]",
            "or {found}, qword ptr [rip + __nsan_init@GOTPCREL]",
            "or {found}, qword ptr [rip + __tsan_init@GOTPCREL]",
            found = out(reg) found,
            options(nostack),
        );
    }
    found != 0
}

/// Address of a function that glibc has and other C libraries lack, then null.
macro_rules! glibc_function {
    ($name:literal) => {{
        let found: usize;
        // SAFETY: reads a word of our own offset table, null where a weak name is nowhere.
        unsafe {
            core::arch::asm!(
                concat!(".weak ", $name),
                concat!("mov {found}, qword ptr [rip + ", $name, "@GOTPCREL]"),
                found = out(reg) found,
                options(nostack),
            );
        }
        found
    }};
}
pub(crate) use glibc_function;

const _: () = assert!(
    core::mem::size_of::<Registers>() == 24,
    "as the assembly lays them"
);

/// Calls the resolver of an indirect function (`STT_GNU_IFUNC`); returns the function's address.
///
/// # Safety
/// `resolver` is one, of a library that has been relocated.
pub unsafe fn ifunc_target(resolver: u64) -> *mut core::ffi::c_void {
    // SAFETY: the caller's; on this processor a resolver takes no arguments.
    unsafe {
        let resolver: unsafe extern "C" fn() -> *mut core::ffi::c_void =
            core::mem::transmute(resolver as usize);
        resolver()
    }
}

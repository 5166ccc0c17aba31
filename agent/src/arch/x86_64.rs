//! Assembly for x86-64 with the System V ABI.

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

/// Returns the address of the calling thread's state.
#[inline(always)]
pub fn local() -> *mut Local {
    let at: *mut Local;
    // SAFETY: reads the thread pointer and adds a constant offset. The symbol above is 56 zeroed
    // bytes in this module's initial-exec TLS block.
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

/// Returns true if the C library has set up the calling thread's thread-local storage. A thread
/// that the program made by `clone` may have a block of its own, without room for ours.
#[inline]
pub fn has_thread_block() -> bool {
    let modules: usize;
    // SAFETY: the second word of each thread's block is the C library's table of modules
    // (`tcbhead_t`), whose layout is part of the platform's ABI.
    unsafe {
        asm!("mov {}, qword ptr fs:[8]", out(reg) modules, options(pure, readonly, nostack));
    }
    modules != 0
}

/// Counts `bytes` down if the calling thread has entered `epoch`. Returns false if it has not, or
/// if the countdown expires: a sample may be due.
#[inline(always)]
pub fn counts_down(epoch: u32, bytes: usize) -> bool {
    // SAFETY: the symbol above is in this module's initial-exec TLS block, and the words are the
    // thread's.
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

/// Returns the thread pointer. glibc puts the thread's control block above the stack that it makes.
#[inline(always)]
pub fn thread_pointer() -> u64 {
    let pointer: u64;
    // SAFETY: the word at fs:0 is the thread pointer itself, by the ABI of thread-local storage.
    unsafe {
        asm!("mov {pointer}, qword ptr fs:[0]", pointer = out(reg) pointer, options(pure, readonly, nostack))
    };
    pointer
}

/// Number of registers with DWARF numbers, without the return address (x86-64 psABI, figure 3.36).
const NUMBERED: usize = 16;

/// Function that a signal interrupted.
pub struct Interrupted {
    /// Registers of the function. `ip` is the instruction's address plus one, as if it were a
    /// return address.
    pub registers: Registers,
    /// All registers by their DWARF numbers.
    pub live: [u64; NUMBERED],
}

/// Returns the registers that the kernel has saved for a signal handler.
pub fn interrupted(context: &libc::ucontext_t) -> Interrupted {
    /// The kernel's register numbers, in the order of DWARF's.
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
    let register_value =
        |register: libc::c_int| context.uc_mcontext.gregs[register as usize] as u64;
    Interrupted {
        registers: Registers {
            ip: register_value(libc::REG_RIP).wrapping_add(1),
            sp: register_value(libc::REG_RSP),
            fp: register_value(libc::REG_RBP),
        },
        live: ORDER.map(register_value),
    }
}

/// Returns true if the calling thread has a thread pointer, and so thread-local storage. A thread
/// that the program created without the C library may have none. Makes a system call. Changes
/// `errno`.
pub fn has_thread_pointer() -> bool {
    /// `ARCH_GET_FS` of asm/prctl.h.
    const ARCH_GET_FS: usize = 0x1003;
    let mut pointer = 0u64;
    let result: i64;
    // SAFETY: arch_prctl(2) without the C library's function, which would store `errno` in
    // thread-local storage. It writes one word of ours, and changes two registers besides the
    // result's.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") libc::SYS_arch_prctl => result,
            in("rdi") ARCH_GET_FS,
            in("rsi") &raw mut pointer,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result == 0 && pointer != 0
}

/// Prefetches the cache line at an address. Has no other effect, whatever the address.
#[inline(always)]
pub fn prefetch<T>(at: *const T) {
    // SAFETY: all x86-64 processors have the instruction, which never faults.
    unsafe { core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(at.cast()) }
}

/// Reads the cycle counter, which has a constant rate.
#[inline(always)]
pub fn cycles() -> u64 {
    // SAFETY: all x86-64 processors have the instruction.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Returns true if a compiler's sanitizer, with its own allocator, is in the process: each has an
/// initialisation function with a known name, which the loader has looked up.
pub fn has_sanitizer() -> bool {
    let any: usize;
    // SAFETY: reads words of our own GOT, which are null if a weak symbol is not defined.
    unsafe {
        asm!(
            ".weak __asan_init",
            ".weak __hwasan_init",
            ".weak __lsan_init",
            ".weak __memprof_init",
            ".weak __msan_init",
            ".weak __nsan_init",
            ".weak __tsan_init",
            "mov {any}, qword ptr [rip + __asan_init@GOTPCREL]",
            "or {any}, qword ptr [rip + __hwasan_init@GOTPCREL]",
            "or {any}, qword ptr [rip + __lsan_init@GOTPCREL]",
            "or {any}, qword ptr [rip + __memprof_init@GOTPCREL]",
            "or {any}, qword ptr [rip + __msan_init@GOTPCREL]",
            "or {any}, qword ptr [rip + __nsan_init@GOTPCREL]",
            "or {any}, qword ptr [rip + __tsan_init@GOTPCREL]",
            any = out(reg) any,
            options(nostack),
        );
    }
    any != 0
}

/// Returns the address of a function that only glibc has; 0 with other C libraries.
macro_rules! glibc_function {
    ($name:literal) => {{
        let found: usize;
        // SAFETY: reads a word of our own GOT, which is null if a weak symbol is not defined.
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
    "layout that the assembly writes"
);

/// Calls the resolver of an indirect function (`STT_GNU_IFUNC`). Returns the function's address.
///
/// # Safety
/// `resolver` is the resolver of an indirect function, in a library that has been relocated.
pub unsafe fn ifunc_target(resolver: u64) -> *mut core::ffi::c_void {
    // SAFETY: a resolver, which takes no arguments on this processor.
    unsafe {
        let resolver: unsafe extern "C" fn() -> *mut core::ffi::c_void =
            core::mem::transmute(resolver as usize);
        resolver()
    }
}

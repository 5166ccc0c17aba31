//! Assembly for aarch64 with AAPCS64.

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
    ".type mem_agent_local,%object",
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
            "mrs {at}, tpidr_el0",
            "adrp {offset}, :gottprel:mem_agent_local",
            "ldr {offset}, [{offset}, #:gottprel_lo12:mem_agent_local]",
            "add {at}, {at}, {offset}",
            at = out(reg) at,
            offset = out(reg) _,
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
    // SAFETY: the first word of each thread's block is the C library's table of modules
    // (`tcbhead_t`), whose layout is part of the platform's ABI.
    unsafe {
        asm!(
            "mrs {modules}, tpidr_el0",
            "ldr {modules}, [{modules}]",
            modules = out(reg) modules,
            options(pure, readonly, nostack),
        );
    }
    modules != 0
}

/// Counts `bytes` down if the calling thread has entered `epoch`. Returns false if it has not, or
/// if the countdown expires: a sample may be due.
#[inline(always)]
pub fn counts_down(epoch: u32, bytes: usize) -> bool {
    let local = local();
    // SAFETY: the symbol above is in this module's initial-exec TLS block, and the words are the
    // thread's.
    unsafe {
        if (*local).epoch != epoch {
            return false;
        }
        (*local).left = (*local).left.wrapping_sub(bytes as i64);
        (*local).left >= 0
    }
}

/// Returns the thread pointer. glibc puts the thread's control block above the stack that it makes.
#[inline(always)]
pub fn thread_pointer() -> u64 {
    let pointer: u64;
    // SAFETY: programs may read this register, which is the thread pointer.
    unsafe {
        asm!("mrs {pointer}, tpidr_el0", pointer = out(reg) pointer, options(pure, readonly, nostack))
    };
    pointer
}

/// Number of registers with DWARF numbers: x0 to x30, and sp.
const NUMBERED: usize = 32;

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
    let saved = &context.uc_mcontext;
    let mut live = [0; NUMBERED];
    live[..31].copy_from_slice(&saved.regs);
    live[31] = saved.sp;
    Interrupted {
        registers: Registers {
            ip: saved.pc.wrapping_add(1),
            sp: saved.sp,
            fp: saved.regs[29],
        },
        live,
    }
}

/// Returns true if the calling thread has a thread pointer, and so thread-local storage. A thread
/// that the program created without the C library may have none.
pub fn has_thread_pointer() -> bool {
    thread_pointer() != 0
}

/// Prefetches the cache line at an address. Has no other effect, whatever the address.
#[inline(always)]
pub fn prefetch<T>(at: *const T) {
    // SAFETY: a hint, which never faults.
    unsafe { asm!("prfm pldl1keep, [{at}]", at = in(reg) at, options(readonly, nostack)) }
}

/// Reads the virtual counter, which has a constant rate.
#[inline(always)]
pub fn cycles() -> u64 {
    let count: u64;
    // SAFETY: Linux lets programs read this register.
    unsafe { asm!("mrs {count}, cntvct_el0", count = out(reg) count, options(nomem, nostack)) };
    count
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
            "adrp {any}, :got:__asan_init",
            "ldr {any}, [{any}, #:got_lo12:__asan_init]",
            "adrp {other}, :got:__hwasan_init",
            "ldr {other}, [{other}, #:got_lo12:__hwasan_init]",
            "orr {any}, {any}, {other}",
            "adrp {other}, :got:__lsan_init",
            "ldr {other}, [{other}, #:got_lo12:__lsan_init]",
            "orr {any}, {any}, {other}",
            "adrp {other}, :got:__memprof_init",
            "ldr {other}, [{other}, #:got_lo12:__memprof_init]",
            "orr {any}, {any}, {other}",
            "adrp {other}, :got:__msan_init",
            "ldr {other}, [{other}, #:got_lo12:__msan_init]",
            "orr {any}, {any}, {other}",
            "adrp {other}, :got:__nsan_init",
            "ldr {other}, [{other}, #:got_lo12:__nsan_init]",
            "orr {any}, {any}, {other}",
            "adrp {other}, :got:__tsan_init",
            "ldr {other}, [{other}, #:got_lo12:__tsan_init]",
            "orr {any}, {any}, {other}",
            any = out(reg) any,
            other = out(reg) _,
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
                concat!("adrp {found}, :got:", $name),
                concat!("ldr {found}, [{found}, #:got_lo12:", $name, "]"),
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

/// Processor features, as resolvers of indirect functions receive them (`sys/ifunc.h`).
#[repr(C)]
struct IfuncArgument {
    bytes: u64,
    hwcap: u64,
    hwcap2: u64,
}

/// Calls the resolver of an indirect function (`STT_GNU_IFUNC`). Returns the function's address.
///
/// # Safety
/// `resolver` is the resolver of an indirect function, in a library that has been relocated.
pub unsafe fn ifunc_target(resolver: u64) -> *mut core::ffi::c_void {
    /// Bit of the first argument that announces the second one (`_IFUNC_ARG_HWCAP`).
    const HAS_ARGUMENT: u64 = 1 << 62;
    // SAFETY: `getauxval` takes any number. A resolver takes both arguments.
    unsafe {
        let argument = IfuncArgument {
            bytes: core::mem::size_of::<IfuncArgument>() as u64,
            hwcap: libc::getauxval(libc::AT_HWCAP),
            hwcap2: libc::getauxval(libc::AT_HWCAP2),
        };
        let resolver: unsafe extern "C" fn(u64, *const IfuncArgument) -> *mut core::ffi::c_void =
            core::mem::transmute(resolver as usize);
        resolver(argument.hwcap | HAS_ARGUMENT, &argument)
    }
}

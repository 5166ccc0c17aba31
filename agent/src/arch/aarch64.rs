//! aarch64, AAPCS64.

use super::Local;
use core::arch::{asm, global_asm};
use unwind::Registers;

global_asm!(
    ".pushsection .tbss.mem_agent_local,\"awT\",@nobits",
    ".p2align 4",
    ".hidden mem_agent_local",
    ".globl mem_agent_local",
    ".type mem_agent_local,%object",
    ".size mem_agent_local,32",
    "mem_agent_local:",
    ".zero 32",
    ".popsection",
);

/// The calling thread's words.
#[inline(always)]
pub fn local() -> *mut Local {
    let at: *mut Local;
    // SAFETY: reads the thread pointer and a constant offset from it; the symbol above is
    // 32 zeroed bytes in this module's initial-exec block.
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

/// Whether the calling thread has met `epoch` and `bytes` more may pass unsampled; then they
/// are counted.
#[inline(always)]
pub fn counts_down(epoch: u8, bytes: usize) -> bool {
    let local = local();
    // SAFETY: the symbol above is in this module's initial-exec block, and the thread's own.
    unsafe {
        if (*local).epoch != epoch {
            return false;
        }
        (*local).left = (*local).left.wrapping_sub(bytes as i64);
        (*local).left >= 0
    }
}

/// The thread pointer: glibc puts the control block above the stacks that it makes.
#[inline(always)]
pub fn thread_pointer() -> u64 {
    let at: u64;
    // SAFETY: the register is the thread pointer, which programs may read.
    unsafe { asm!("mrs {at}, tpidr_el0", at = out(reg) at, options(pure, readonly, nostack)) };
    at
}

/// Registers that DWARF numbers: x0 to x30, and sp.
const NUMBERED: usize = 32;

/// A function that a signal interrupted.
pub struct Interrupted {
    /// Where it was; the instruction's address plus one, as if it were a return address.
    pub registers: Registers,
    /// All registers by their DWARF numbers.
    pub live: [u64; NUMBERED],
}

/// The registers that the kernel has saved for a signal's handler.
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

/// Whether the calling thread has a thread pointer, and so memory of its own: one that the program
/// has made without the C library may have none.
pub fn has_locals() -> bool {
    thread_pointer() != 0
}

/// Defines the signal handler `$name` (as of `SA_SIGINFO`): calls `$enter(info, context)`, and, if
/// that returns the end of a stack, `$work(info, context)` on it.
macro_rules! on_own_stack {
    ($(#[$doc:meta])* $name:ident, $enter:path, $work:path) => {
        $(#[$doc])*
        #[unsafe(naked)]
        unsafe extern "C" fn $name(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
            naked_asm!(
                ".cfi_startproc",
                "stp x29, x30, [sp, #-32]!",
                ".cfi_def_cfa_offset 32",
                ".cfi_offset x29, -32",
                ".cfi_offset x30, -24",
                "mov x29, sp",
                ".cfi_def_cfa_register x29",
                "stp x1, x2, [sp, #16]",
                "mov x0, x1",
                "mov x1, x2",
                "bl {enter}",
                "mov x9, x0",
                "ldp x0, x1, [sp, #16]",
                "cbz x9, 2f",
                "mov sp, x9",
                "bl {work}",
                "2:",
                "mov sp, x29",
                "ldp x29, x30, [sp], #32",
                ".cfi_def_cfa sp, 0",
                ".cfi_restore x29",
                ".cfi_restore x30",
                "ret",
                ".cfi_endproc",
                enter = sym $enter,
                work = sym $work,
            )
        }
    };
}
pub(crate) use on_own_stack;

/// Defines what a thread runs first, `$name`: calls `$arrive(argument, &mut [routine, argument])`,
/// and goes on with that routine by a jump, so that no frame of ours is below the thread's.
macro_rules! starting_thread {
    ($(#[$doc:meta])* $name:ident, $arrive:path) => {
        $(#[$doc])*
        #[unsafe(naked)]
        unsafe extern "C" fn $name(argument: *mut c_void) -> *mut c_void {
            naked_asm!(
                ".cfi_startproc",
                "stp x29, x30, [sp, #-32]!",
                ".cfi_def_cfa_offset 32",
                ".cfi_offset x29, -32",
                ".cfi_offset x30, -24",
                "mov x29, sp",
                "add x1, sp, #16",
                "bl {arrive}",
                "ldp x16, x0, [sp, #16]",
                "ldp x29, x30, [sp], #32",
                ".cfi_def_cfa_offset 0",
                ".cfi_restore x29",
                ".cfi_restore x30",
                "br x16",
                ".cfi_endproc",
                arrive = sym $arrive,
            )
        }
    };
}
pub(crate) use starting_thread;

/// A counter of constant rate.
#[inline(always)]
pub fn cycles() -> u64 {
    let at: u64;
    // SAFETY: readable from user space on Linux.
    unsafe { asm!("mrs {at}, cntvct_el0", at = out(reg) at, options(nomem, nostack)) };
    at
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
            "adrp {found}, :got:__asan_init",
            "ldr {found}, [{found}, #:got_lo12:__asan_init]",
            "adrp {other}, :got:__hwasan_init",
            "ldr {other}, [{other}, #:got_lo12:__hwasan_init]",
            "orr {found}, {found}, {other}",
            "adrp {other}, :got:__lsan_init",
            "ldr {other}, [{other}, #:got_lo12:__lsan_init]",
            "orr {found}, {found}, {other}",
            "adrp {other}, :got:__memprof_init",
            "ldr {other}, [{other}, #:got_lo12:__memprof_init]",
            "orr {found}, {found}, {other}",
            "adrp {other}, :got:__msan_init",
            "ldr {other}, [{other}, #:got_lo12:__msan_init]",
            "orr {found}, {found}, {other}",
            "adrp {other}, :got:__nsan_init",
            "ldr {other}, [{other}, #:got_lo12:__nsan_init]",
            "orr {found}, {found}, {other}",
            "adrp {other}, :got:__tsan_init",
            "ldr {other}, [{other}, #:got_lo12:__tsan_init]",
            "orr {found}, {found}, {other}",
            found = out(reg) found,
            other = out(reg) _,
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

/// Defines the entry point `$name` of one size: the allocator's `malloc` while sampling is
/// off or the gap to the next sample is longer, else `$due`.
macro_rules! counting_entry {
    ($(#[$doc:meta])* $name:ident, else $due:path) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(size: usize) -> *mut c_void {
            // SAFETY: `malloc` takes any size, on either path.
            unsafe { if skips_sampling(size) { NEXT.malloc(size) } else { $due(size, 0, 0) } }
        }
    };
}
pub(crate) use counting_entry;

/// Defines the entry point `$name` of one address: the allocator's `free`, or `$low` where
/// `range::may_contain` says so.
macro_rules! freeing_entry {
    ($(#[$doc:meta])* $name:ident, else $low:path) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(p: *mut c_void) {
            // SAFETY: `p` is null or an object that the caller gives up. One of the range lies
            // below its end, where `$low` tells it from others; all above are the allocator's.
            unsafe { if range::may_contain(p) { $low(p) } else { NEXT.free(p) } }
        }
    };
}
pub(crate) use freeing_entry;

/// Defines a function that hands its arguments, up to three, and its caller's registers to
/// `$target(a, b, c, &Registers)`. Reached by a jump from an entry point, so "caller" is
/// who called `malloc`.
macro_rules! with_registers {
    ($name:ident, $target:path) => {
        with_registers!($name, $target, *mut c_void);
    };
    ($name:ident, $target:path, $out:ty) => {
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(a: usize, b: usize, c: usize) -> $out {
            naked_asm!(
                ".cfi_startproc",
                "stp x29, x30, [sp, #-48]!",
                ".cfi_def_cfa_offset 48",
                ".cfi_offset x29, -48",
                ".cfi_offset x30, -40",
                "str x30, [sp, #16]",
                "add x9, sp, #48",
                "str x9, [sp, #24]",
                "str x29, [sp, #32]",
                "mov x29, sp",
                "add x3, sp, #16",
                "bl {target}",
                "ldp x29, x30, [sp], #48",
                ".cfi_def_cfa_offset 0",
                "ret",
                ".cfi_endproc",
                target = sym $target,
            )
        }
    };
}
pub(crate) use with_registers;

/// As [`with_registers`], for functions that may not return null: then their first two
/// arguments go on to `$failed` by a jump, so that what that throws meets no frame of ours.
macro_rules! with_registers_or_fail {
    ($name:ident, $target:path, $failed:path) => {
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(a: usize, b: usize, c: usize) -> *mut c_void {
            naked_asm!(
                ".cfi_startproc",
                "stp x29, x30, [sp, #-64]!",
                ".cfi_def_cfa_offset 64",
                ".cfi_offset x29, -64",
                ".cfi_offset x30, -56",
                "str x30, [sp, #16]",
                "add x9, sp, #64",
                "str x9, [sp, #24]",
                "str x29, [sp, #32]",
                "stp x0, x1, [sp, #40]",
                "mov x29, sp",
                "add x3, sp, #16",
                "bl {target}",
                "mov x9, x0",
                "ldp x0, x1, [sp, #40]",
                "ldp x29, x30, [sp], #64",
                ".cfi_def_cfa_offset 0",
                "cbz x9, 2f",
                "mov x0, x9",
                "ret",
                "2:",
                "b {failed}",
                ".cfi_endproc",
                target = sym $target,
                failed = sym $failed,
            )
        }
    };
}
pub(crate) use with_registers_or_fail;

/// Defines a function that jumps to where the word `$to` points, arguments untouched;
/// returns null if it points nowhere.
macro_rules! jump_through {
    ($name:ident, $to:path) => {
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(a: usize, b: usize) -> *mut c_void {
            naked_asm!(
                ".cfi_startproc",
                "adrp x16, {to}",
                "ldr x16, [x16, :lo12:{to}]",
                "cbz x16, 2f",
                "br x16",
                "2:",
                "mov x0, xzr",
                "ret",
                ".cfi_endproc",
                to = sym $to,
            )
        }
    };
}
pub(crate) use jump_through;

/// Defines the entry point `$name`: takes from its second argument, or from its third where
/// its first is 0, the bits that `$kept` lacks, and jumps to where `$next` points. The
/// function there must not see a frame of ours: its return address tells it who calls.
///
/// Jumps out of this library go through x16: where branch targets are checked (BTI),
/// functions may be jumped to through no other register.
macro_rules! jump_without {
    ($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*), second, $kept:path, $next:path) => {
        jump_without!(@ [$(#[$doc])*] $name($($arg: $type),*), $kept, $next, "and w1, w1, w9");
    };
    ($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*), third, $kept:path, $next:path) => {
        jump_without!(@ [$(#[$doc])*] $name($($arg: $type),*), $kept, $next,
            "cbnz x0, 2f", "and w2, w2, w9", "2:");
    };
    (@ [$(#[$doc:meta])*] $name:ident($($arg:ident: $type:ty),*), $kept:path, $next:path,
        $($line:literal),*) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> *mut c_void {
            naked_asm!(
                ".cfi_startproc",
                "adrp x9, {kept}",
                "ldr w9, [x9, :lo12:{kept}]",
                $($line,)*
                "adrp x16, {next}",
                "ldr x16, [x16, :lo12:{next}]",
                "br x16",
                ".cfi_endproc",
                kept = sym $kept,
                next = sym $next,
            )
        }
    };
}
pub(crate) use jump_without;

/// Defines a function that asks `$find` for an address, given its own arguments, and jumps
/// there with them, up to three; returns null if there is none.
macro_rules! find_and_jump {
    ($name:ident, $find:path) => {
        #[unsafe(naked)]
        unsafe extern "C" fn $name() -> *mut c_void {
            naked_asm!(
                ".cfi_startproc",
                "stp x29, x30, [sp, #-48]!",
                ".cfi_def_cfa_offset 48",
                ".cfi_offset x29, -48",
                ".cfi_offset x30, -40",
                "mov x29, sp",
                "stp x0, x1, [sp, #16]",
                "str x2, [sp, #32]",
                "bl {find}",
                "mov x16, x0",
                "ldp x0, x1, [sp, #16]",
                "ldr x2, [sp, #32]",
                "ldp x29, x30, [sp], #48",
                ".cfi_def_cfa_offset 0",
                "cbz x16, 2f",
                "br x16",
                "2:",
                "mov x0, xzr",
                "ret",
                ".cfi_endproc",
                find = sym $find,
            )
        }
    };
}
pub(crate) use find_and_jump;

/// Defines the entry point `$name`: returns what `$answer` does, given its arguments, or if
/// that is null jumps to where `$next` points, as [`jump_without`] does.
macro_rules! answer_or_jump {
    ($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*), $answer:path, $next:path) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> *mut c_void {
            naked_asm!(
                ".cfi_startproc",
                "stp x29, x30, [sp, #-48]!",
                ".cfi_def_cfa_offset 48",
                ".cfi_offset x29, -48",
                ".cfi_offset x30, -40",
                "mov x29, sp",
                "stp x0, x1, [sp, #16]",
                "str x2, [sp, #32]",
                "bl {answer}",
                "mov x9, x0",
                "ldp x0, x1, [sp, #16]",
                "ldr x2, [sp, #32]",
                "ldp x29, x30, [sp], #48",
                ".cfi_def_cfa_offset 0",
                "cbnz x9, 2f",
                "adrp x16, {next}",
                "ldr x16, [x16, :lo12:{next}]",
                "br x16",
                "2:",
                "mov x0, x9",
                "ret",
                ".cfi_endproc",
                answer = sym $answer,
                next = sym $next,
            )
        }
    };
}
pub(crate) use answer_or_jump;

/// Defines `prctl`: the system call, after `$note` where its first argument is
/// `$set_seccomp`; what it returns goes to `$fail` where it is an error.
macro_rules! noting_prctl {
    ($(#[$doc:meta])* $name:ident, $set_seccomp:path, $set_tsc:path, $note:path, $fail:path) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
            naked_asm!(
                ".cfi_startproc",
                "cmp w0, {set_seccomp}",
                "b.eq 3f",
                "cmp w0, {set_tsc}",
                "b.eq 3f",
                "2:",
                "mov x8, {number}",
                "svc 0",
                "cmn x0, 4095",
                "b.hs 4f",
                "ret",
                "4:",
                "b {fail}",
                "3:",
                "stp x29, x30, [sp, #-64]!",
                ".cfi_def_cfa_offset 64",
                ".cfi_offset x29, -64",
                ".cfi_offset x30, -56",
                "stp x0, x1, [sp, #16]",
                "stp x2, x3, [sp, #32]",
                "str x4, [sp, #48]",
                "bl {note}",
                "ldp x0, x1, [sp, #16]",
                "ldp x2, x3, [sp, #32]",
                "ldr x4, [sp, #48]",
                "ldp x29, x30, [sp], #64",
                ".cfi_def_cfa_offset 0",
                ".cfi_restore x29",
                ".cfi_restore x30",
                "b 2b",
                ".cfi_endproc",
                number = const libc::SYS_prctl,
                set_seccomp = const $set_seccomp,
                set_tsc = const $set_tsc,
                note = sym $note,
                fail = sym $fail,
            )
        }
    };
}
pub(crate) use noting_prctl;

/// Defines `syscall`, as [`noting_prctl`] does `prctl`: six arguments behind the number.
macro_rules! noting_syscall {
    ($(#[$doc:meta])* $name:ident, $set_seccomp:path, $set_tsc:path, $note:path, $fail:path) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(
            number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize,
        ) -> c_long {
            naked_asm!(
                ".cfi_startproc",
                "cmp x0, {seccomp}",
                "b.eq 3f",
                "cmp x0, {prctl}",
                "b.eq 5f",
                "2:",
                "mov x8, x0",
                "mov x0, x1",
                "mov x1, x2",
                "mov x2, x3",
                "mov x3, x4",
                "mov x4, x5",
                "mov x5, x6",
                "svc 0",
                "cmn x0, 4095",
                "b.hs 4f",
                "ret",
                "4:",
                "b {fail}",
                "5:",
                "cmp w1, {set_seccomp}",
                "b.eq 3f",
                "cmp w1, {set_tsc}",
                "b.ne 2b",
                "3:",
                "stp x29, x30, [sp, #-80]!",
                ".cfi_def_cfa_offset 80",
                ".cfi_offset x29, -80",
                ".cfi_offset x30, -72",
                "stp x0, x1, [sp, #16]",
                "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]",
                "str x6, [sp, #64]",
                "bl {note}",
                "ldp x0, x1, [sp, #16]",
                "ldp x2, x3, [sp, #32]",
                "ldp x4, x5, [sp, #48]",
                "ldr x6, [sp, #64]",
                "ldp x29, x30, [sp], #80",
                ".cfi_def_cfa_offset 0",
                ".cfi_restore x29",
                ".cfi_restore x30",
                "b 2b",
                ".cfi_endproc",
                seccomp = const libc::SYS_seccomp,
                prctl = const libc::SYS_prctl,
                set_seccomp = const $set_seccomp,
                set_tsc = const $set_tsc,
                note = sym $note,
                fail = sym $fail,
            )
        }
    };
}
pub(crate) use noting_syscall;

const _: () = assert!(
    core::mem::size_of::<Registers>() == 24,
    "as the assembly lays them"
);

//! x86-64, System V ABI.

use super::Local;
use core::arch::{asm, global_asm};
use unwind::Registers;

global_asm!(
    ".pushsection .tbss.mem_agent_local,\"awT\",@nobits",
    ".p2align 4",
    ".hidden mem_agent_local",
    ".globl mem_agent_local",
    ".type mem_agent_local,@object",
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
pub fn counts_down(epoch: u8, bytes: usize) -> bool {
    // SAFETY: the symbol above is in this module's initial-exec block, and the thread's own.
    unsafe {
        asm!(
            "mov {at}, qword ptr [rip + mem_agent_local@GOTTPOFF]",
            "cmp byte ptr fs:[{at} + 8], {epoch}",
            "jne {due}",
            "sub qword ptr fs:[{at}], {bytes}",
            "js {due}",
            at = out(reg) _,
            epoch = in(reg_byte) epoch,
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

/// Defines the signal handler `$name` (as of `SA_SIGINFO`): calls `$enter(info, context)`, and, if
/// that returns the end of a stack, `$work(info, context)` on it.
macro_rules! on_own_stack {
    ($(#[$doc:meta])* $name:ident, $enter:path, $work:path) => {
        $(#[$doc])*
        #[unsafe(naked)]
        unsafe extern "C" fn $name(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
            naked_asm!(
                ".cfi_startproc",
                "push rbp",
                ".cfi_def_cfa_offset 16",
                ".cfi_offset rbp, -16",
                "mov rbp, rsp",
                ".cfi_def_cfa_register rbp",
                "push rsi",
                "push rdx",
                "mov rdi, rsi",
                "mov rsi, rdx",
                "call {enter}",
                "pop rsi",
                "pop rdi",
                "test rax, rax",
                "je 2f",
                "mov rsp, rax",
                "call {work}",
                "2:",
                "mov rsp, rbp",
                "pop rbp",
                ".cfi_def_cfa rsp, 8",
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
                "sub rsp, 24",
                ".cfi_adjust_cfa_offset 24",
                "mov rsi, rsp",
                "call {arrive}",
                "mov rax, qword ptr [rsp]",
                "mov rdi, qword ptr [rsp + 8]",
                "add rsp, 24",
                ".cfi_adjust_cfa_offset -24",
                "jmp rax",
                ".cfi_endproc",
                arrive = sym $arrive,
            )
        }
    };
}
pub(crate) use starting_thread;

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

/// Defines the entry point `$name` of one size: a jump to the allocator's `malloc` while
/// sampling is off or the countdown has not expired, else one to `$due`. The same as
/// `skips_sampling`, in the fewest instructions: three, or nine while sampling is on. Names that it
/// uses are those of `entry`.
macro_rules! counting_entry {
    ($(#[$doc:meta])* $name:ident, else $due:path) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(size: usize) -> *mut c_void {
            naked_asm!(
                ".cfi_startproc",
                "cmp byte ptr [rip + {control}], 0",
                "jne 2f",
                "3:",
                "jmp qword ptr [rip + {next} + {malloc}]",
                "2:",
                "movzx eax, byte ptr [rip + {control}]",
                "mov rcx, qword ptr [rip + mem_agent_local@GOTTPOFF]",
                "cmp byte ptr fs:[rcx + 8], al",
                "jne {due}",
                "sub qword ptr fs:[rcx], rdi",
                "jns 3b",
                "jmp {due}",
                ".cfi_endproc",
                control = sym session::CONTROL,
                next = sym NEXT,
                malloc = const core::mem::offset_of!(Next, malloc),
                due = sym $due,
            )
        }
    };
}
pub(crate) use counting_entry;

/// Defines the entry point `$name` of one address: a jump to the allocator's `free`, or to
/// `$low` where `range::may_contain` says so. Three instructions.
macro_rules! freeing_entry {
    ($(#[$doc:meta])* $name:ident, else $low:path) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(p: *mut c_void) {
            naked_asm!(
                ".cfi_startproc",
                "cmp rdi, qword ptr [rip + {end}]",
                "jb {low}",
                "jmp qword ptr [rip + {next} + {free}]",
                ".cfi_endproc",
                end = sym range::END,
                next = sym NEXT,
                free = const core::mem::offset_of!(Next, free),
                low = sym $low,
            )
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
                "sub rsp, 40",
                ".cfi_adjust_cfa_offset 40",
                "mov rax, qword ptr [rsp + 40]",
                "mov qword ptr [rsp], rax",
                "lea rax, [rsp + 48]",
                "mov qword ptr [rsp + 8], rax",
                "mov qword ptr [rsp + 16], rbp",
                "mov rcx, rsp",
                "call {target}",
                "add rsp, 40",
                ".cfi_adjust_cfa_offset -40",
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
                "sub rsp, 40",
                ".cfi_adjust_cfa_offset 40",
                "mov rax, qword ptr [rsp + 40]",
                "mov qword ptr [rsp], rax",
                "lea rax, [rsp + 48]",
                "mov qword ptr [rsp + 8], rax",
                "mov qword ptr [rsp + 16], rbp",
                "mov qword ptr [rsp + 24], rdi",
                "mov qword ptr [rsp + 32], rsi",
                "mov rcx, rsp",
                "call {target}",
                "mov rdi, qword ptr [rsp + 24]",
                "mov rsi, qword ptr [rsp + 32]",
                "add rsp, 40",
                ".cfi_adjust_cfa_offset -40",
                "test rax, rax",
                "je {failed}",
                "ret",
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
                "mov rax, qword ptr [rip + {to}]",
                "test rax, rax",
                "je 2f",
                "jmp rax",
                "2:",
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
macro_rules! jump_without {
    ($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*), second, $kept:path, $next:path) => {
        jump_without!(@ [$(#[$doc])*] $name($($arg: $type),*), $kept, $next,
            "and esi, dword ptr [rip + {kept}]");
    };
    ($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*), third, $kept:path, $next:path) => {
        jump_without!(@ [$(#[$doc])*] $name($($arg: $type),*), $kept, $next,
            "test rdi, rdi", "jne 2f", "and edx, dword ptr [rip + {kept}]", "2:");
    };
    (@ [$(#[$doc:meta])*] $name:ident($($arg:ident: $type:ty),*), $kept:path, $next:path,
        $($line:literal),*) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> *mut c_void {
            naked_asm!(
                ".cfi_startproc",
                $($line,)*
                "jmp qword ptr [rip + {next}]",
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
                "push rdi",
                ".cfi_adjust_cfa_offset 8",
                "push rsi",
                ".cfi_adjust_cfa_offset 8",
                "push rdx",
                ".cfi_adjust_cfa_offset 8",
                "call {find}",
                "pop rdx",
                ".cfi_adjust_cfa_offset -8",
                "pop rsi",
                ".cfi_adjust_cfa_offset -8",
                "pop rdi",
                ".cfi_adjust_cfa_offset -8",
                "test rax, rax",
                "je 2f",
                "jmp rax",
                "2:",
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
                "push rdi",
                ".cfi_adjust_cfa_offset 8",
                "push rsi",
                ".cfi_adjust_cfa_offset 8",
                "push rdx",
                ".cfi_adjust_cfa_offset 8",
                "call {answer}",
                "pop rdx",
                ".cfi_adjust_cfa_offset -8",
                "pop rsi",
                ".cfi_adjust_cfa_offset -8",
                "pop rdi",
                ".cfi_adjust_cfa_offset -8",
                "test rax, rax",
                "jne 2f",
                "jmp qword ptr [rip + {next}]",
                "2:",
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
                "mov eax, {number}",
                "cmp edi, {set_seccomp}",
                "je 3f",
                "cmp edi, {set_tsc}",
                "je 3f",
                "2:",
                "mov r10, rcx",
                "syscall",
                "cmp rax, -4095",
                "jae 4f",
                "ret",
                "4:",
                "mov rdi, rax",
                "jmp {fail}",
                "3:",
                // Five arguments are kept; the number is loaded anew.
                "push rdi",
                ".cfi_adjust_cfa_offset 8",
                "push rsi",
                ".cfi_adjust_cfa_offset 8",
                "push rdx",
                ".cfi_adjust_cfa_offset 8",
                "push rcx",
                ".cfi_adjust_cfa_offset 8",
                "push r8",
                ".cfi_adjust_cfa_offset 8",
                "call {note}",
                "pop r8",
                ".cfi_adjust_cfa_offset -8",
                "pop rcx",
                ".cfi_adjust_cfa_offset -8",
                "pop rdx",
                ".cfi_adjust_cfa_offset -8",
                "pop rsi",
                ".cfi_adjust_cfa_offset -8",
                "pop rdi",
                ".cfi_adjust_cfa_offset -8",
                "mov eax, {number}",
                "jmp 2b",
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

/// Defines `syscall`, as [`noting_prctl`] does `prctl`: six arguments behind the number, the
/// last one on the stack.
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
                "cmp rdi, {seccomp}",
                "je 3f",
                "cmp rdi, {prctl}",
                "je 5f",
                "2:",
                "mov rax, rdi",
                "mov rdi, rsi",
                "mov rsi, rdx",
                "mov rdx, rcx",
                "mov r10, r8",
                "mov r8, r9",
                "mov r9, qword ptr [rsp + 8]",
                "syscall",
                "cmp rax, -4095",
                "jae 4f",
                "ret",
                "4:",
                "mov rdi, rax",
                "jmp {fail}",
                "5:",
                "cmp esi, {set_seccomp}",
                "je 3f",
                "cmp esi, {set_tsc}",
                "jne 2b",
                "3:",
                "push rdi",
                ".cfi_adjust_cfa_offset 8",
                "push rsi",
                ".cfi_adjust_cfa_offset 8",
                "push rdx",
                ".cfi_adjust_cfa_offset 8",
                "push rcx",
                ".cfi_adjust_cfa_offset 8",
                "push r8",
                ".cfi_adjust_cfa_offset 8",
                "push r9",
                ".cfi_adjust_cfa_offset 8",
                "sub rsp, 8",
                ".cfi_adjust_cfa_offset 8",
                "call {note}",
                "add rsp, 8",
                ".cfi_adjust_cfa_offset -8",
                "pop r9",
                ".cfi_adjust_cfa_offset -8",
                "pop r8",
                ".cfi_adjust_cfa_offset -8",
                "pop rcx",
                ".cfi_adjust_cfa_offset -8",
                "pop rdx",
                ".cfi_adjust_cfa_offset -8",
                "pop rsi",
                ".cfi_adjust_cfa_offset -8",
                "pop rdi",
                ".cfi_adjust_cfa_offset -8",
                "jmp 2b",
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

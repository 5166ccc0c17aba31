//! Macros for entry points: where a call is forwarded, and with which arguments.

/// Defines an entry point that takes a size: jumps to the allocator's `malloc` if sampling is off
/// or the countdown has not expired, and to `$due` otherwise. Equivalent to `skips_sampling`, in
/// the fewest instructions: five, or thirteen while sampling is on. Uses names that `entry`
/// imports.
///
/// The allocator gets an aligned stack (see [`with_registers`]).
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
                // Not sampled. The stack is aligned if 8 bytes are on it after the call.
                "3:",
                "test spl, 8",
                "je 4f",
                "jmp qword ptr [rip + {next} + {malloc}]",
                // Sampling is on: compares the thread's epoch, and counts the size down.
                "2:",
                "mov eax, dword ptr [rip + {control}]",
                "mov rcx, qword ptr [rip + mem_agent_local@GOTTPOFF]",
                "cmp dword ptr fs:[rcx + 8], eax",
                "jne {due}",
                "test rdi, rdi",
                "js {due}",
                "sub qword ptr fs:[rcx], rdi",
                "jns 3b",
                "jmp {due}",
                // Calls the allocator with an aligned stack.
                "4:",
                "push rbp",
                ".cfi_adjust_cfa_offset 8",
                ".cfi_offset rbp, -16",
                "mov rbp, rsp",
                ".cfi_def_cfa_register rbp",
                "and rsp, -16",
                "call qword ptr [rip + {next} + {malloc}]",
                "leave",
                ".cfi_def_cfa rsp, 8",
                ".cfi_restore rbp",
                "ret",
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

/// Defines an entry point that takes an address: jumps to `$low` if `range::may_contain` would
/// return true, and to the allocator's `free` otherwise. Five instructions. The allocator gets an
/// aligned stack.
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
                "test spl, 8",
                "je 2f",
                "jmp qword ptr [rip + {next} + {free}]",
                "2:",
                "push rbp",
                ".cfi_adjust_cfa_offset 8",
                ".cfi_offset rbp, -16",
                "mov rbp, rsp",
                ".cfi_def_cfa_register rbp",
                "and rsp, -16",
                "call qword ptr [rip + {next} + {free}]",
                "leave",
                ".cfi_def_cfa rsp, 8",
                ".cfi_restore rbp",
                "ret",
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

/// Defines a function that calls `$target(a, b, c, &Registers)` with its own arguments (at most
/// three) and the registers of its caller. Entry points jump here, so this caller is that of
/// `malloc` itself.
///
/// Aligns the stack first if the caller has not: assembly, and code for smaller alignments
/// (`-mpreferred-stack-boundary=3`), works with glibc's allocator.
macro_rules! with_registers {
    ($name:ident, $target:path) => {
        with_registers!($name, $target, *mut c_void);
    };
    ($name:ident, $target:path, $out:ty) => {
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(a: usize, b: usize, c: usize) -> $out {
            naked_asm!(
                ".cfi_startproc",
                "lea rax, [rsp + 8]",
                "test al, 8",
                "jne 2f",
                "sub rsp, 40",
                ".cfi_adjust_cfa_offset 40",
                "mov qword ptr [rsp + 8], rax",
                "mov rax, qword ptr [rsp + 40]",
                "mov qword ptr [rsp], rax",
                "mov qword ptr [rsp + 16], rbp",
                "mov rcx, rsp",
                "call {target}",
                "add rsp, 40",
                ".cfi_adjust_cfa_offset -40",
                "ret",
                "2:",
                "push rbp",
                ".cfi_adjust_cfa_offset 8",
                ".cfi_offset rbp, -16",
                "mov rbp, rsp",
                ".cfi_def_cfa_register rbp",
                "sub rsp, 32",
                "and rsp, -16",
                "mov qword ptr [rsp + 8], rax",
                "mov rax, qword ptr [rbp + 8]",
                "mov qword ptr [rsp], rax",
                "mov rax, qword ptr [rbp]",
                "mov qword ptr [rsp + 16], rax",
                "mov rcx, rsp",
                "call {target}",
                "leave",
                ".cfi_def_cfa rsp, 8",
                ".cfi_restore rbp",
                "ret",
                ".cfi_endproc",
                target = sym $target,
            )
        }
    };
}
pub(crate) use with_registers;

/// Like [`with_registers`], for functions that must not return null. If `$target` does, jumps to
/// `$failed` with the first two arguments, so that an exception thrown there meets no frame of
/// ours.
macro_rules! with_registers_or_fail {
    ($name:ident, $target:path, $failed:path) => {
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(a: usize, b: usize, c: usize) -> *mut c_void {
            naked_asm!(
                ".cfi_startproc",
                "lea rax, [rsp + 8]",
                "push rbp",
                ".cfi_adjust_cfa_offset 8",
                ".cfi_offset rbp, -16",
                "mov rbp, rsp",
                ".cfi_def_cfa_register rbp",
                "sub rsp, 48",
                "and rsp, -16",
                "mov qword ptr [rsp + 8], rax",
                "mov rax, qword ptr [rbp + 8]",
                "mov qword ptr [rsp], rax",
                "mov rax, qword ptr [rbp]",
                "mov qword ptr [rsp + 16], rax",
                "mov qword ptr [rsp + 24], rdi",
                "mov qword ptr [rsp + 32], rsi",
                "mov rcx, rsp",
                "call {target}",
                "mov rdi, qword ptr [rsp + 24]",
                "mov rsi, qword ptr [rsp + 32]",
                "leave",
                ".cfi_def_cfa rsp, 8",
                ".cfi_restore rbp",
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

/// Defines a function that calls `$target` with its own arguments (in registers) and an aligned
/// stack. Jumps there if the stack is aligned already.
macro_rules! on_aligned_stack {
    ($(#[$doc:meta])* $visible:vis fn $name:ident($($arg:ident: $type:ty),*) $(-> $out:ty)?, $target:path) => {
        $(#[$doc])*
        #[unsafe(naked)]
        $visible unsafe extern "C" fn $name($($arg: $type),*) $(-> $out)? {
            ::core::arch::naked_asm!(
                ".cfi_startproc",
                "test spl, 8",
                "jne {target}",
                "push rbp",
                ".cfi_adjust_cfa_offset 8",
                ".cfi_offset rbp, -16",
                "mov rbp, rsp",
                ".cfi_def_cfa_register rbp",
                "and rsp, -16",
                "call {target}",
                "leave",
                ".cfi_def_cfa rsp, 8",
                ".cfi_restore rbp",
                "ret",
                ".cfi_endproc",
                target = sym $target,
            )
        }
    };
}
pub(crate) use on_aligned_stack;

/// Defines a function that jumps to the address in the word `$to`, with unchanged arguments.
/// Returns null if the address is null.
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

/// Defines an entry point that masks its second argument (`second`), or its third if its first is 0
/// (`third`), with `$kept`, and jumps to the address in `$next`. The function there identifies its
/// caller by the return address, so it must not see a frame of ours.
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

/// Defines a function that calls `$find` with its own arguments (at most three), and jumps to the
/// address that it returns, with the same arguments. Returns null if there is none.
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

/// Defines an entry point that calls `$answer` with its arguments, and returns the first word of
/// the result. If that is null, jumps to the address in the second word, like [`jump_without`].
macro_rules! answer_or_jump {
    ($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*), $answer:path) => {
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
                "mov r11, rdx",
                "pop rdx",
                ".cfi_adjust_cfa_offset -8",
                "pop rsi",
                ".cfi_adjust_cfa_offset -8",
                "pop rdi",
                ".cfi_adjust_cfa_offset -8",
                "test rax, rax",
                "jne 2f",
                "jmp r11",
                "2:",
                "ret",
                ".cfi_endproc",
                answer = sym $answer,
            )
        }
    };
}
pub(crate) use answer_or_jump;

/// Defines the hidden function `$symbol`: jumps to the address that is `$offset` bytes from the
/// start of `$table`. It is in the section of the fork handlers, which use some of these jumps.
macro_rules! hidden_jump {
    ($symbol:literal, $table:path, $offset:expr) => {
        core::arch::global_asm!(
            ".pushsection mem_agent_fork,\"ax\",@progbits",
            concat!(".hidden ", $symbol),
            concat!(".globl ", $symbol),
            concat!(".type ", $symbol, ",@function"),
            concat!($symbol, ":"),
            ".cfi_startproc",
            "jmp qword ptr [rip + {table} + {offset}]",
            ".cfi_endproc",
            concat!(".size ", $symbol, ", . - ", $symbol),
            ".popsection",
            table = sym $table,
            offset = const $offset,
        );
    };
}
pub(crate) use hidden_jump;

/// Defines an entry point that jumps to the address in the first word of `$target`, with unchanged
/// arguments, or to `$first` if it is null. Passes the address of `$target` in r11.
macro_rules! jump_by_target {
    ($name:ident, $target:path, else $first:path) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                "lea r11, [rip + {target}]",
                "cmp qword ptr [r11], 0",
                "je {first}",
                "jmp qword ptr [r11]",
                ".cfi_endproc",
                target = sym $target,
                first = sym $first,
            )
        }
    };
}
pub(crate) use jump_by_target;

/// Defines the function that entry points of [`jump_by_target`] jump to before their targets are
/// known: calls `$resolve`, which stores the targets, and jumps there with unchanged arguments.
macro_rules! resolve_and_jump {
    ($name:ident, $resolve:path) => {
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                "push rax",
                ".cfi_adjust_cfa_offset 8",
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
                "push r10",
                ".cfi_adjust_cfa_offset 8",
                "push r11",
                ".cfi_adjust_cfa_offset 8",
                "sub rsp, 128",
                ".cfi_adjust_cfa_offset 128",
                "movups xmmword ptr [rsp], xmm0",
                "movups xmmword ptr [rsp + 16], xmm1",
                "movups xmmword ptr [rsp + 32], xmm2",
                "movups xmmword ptr [rsp + 48], xmm3",
                "movups xmmword ptr [rsp + 64], xmm4",
                "movups xmmword ptr [rsp + 80], xmm5",
                "movups xmmword ptr [rsp + 96], xmm6",
                "movups xmmword ptr [rsp + 112], xmm7",
                "call {resolve}",
                "movups xmm0, xmmword ptr [rsp]",
                "movups xmm1, xmmword ptr [rsp + 16]",
                "movups xmm2, xmmword ptr [rsp + 32]",
                "movups xmm3, xmmword ptr [rsp + 48]",
                "movups xmm4, xmmword ptr [rsp + 64]",
                "movups xmm5, xmmword ptr [rsp + 80]",
                "movups xmm6, xmmword ptr [rsp + 96]",
                "movups xmm7, xmmword ptr [rsp + 112]",
                "add rsp, 128",
                ".cfi_adjust_cfa_offset -128",
                "pop r11",
                ".cfi_adjust_cfa_offset -8",
                "pop r10",
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
                "pop rax",
                ".cfi_adjust_cfa_offset -8",
                "jmp qword ptr [r11]",
                ".cfi_endproc",
                resolve = sym $resolve,
            )
        }
    };
}
pub(crate) use resolve_and_jump;

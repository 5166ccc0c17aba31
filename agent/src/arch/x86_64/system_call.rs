//! Macros for `prctl` and `syscall`, with which a program installs seccomp filters.

/// Defines `prctl`. If the first argument is `$set_seccomp` or `$set_tsc`, it calls `$record`
/// first. It then jumps to the function `$next` or, if that is null, makes the system call, and
/// jumps to `$fail` with an error. Also defines the hidden function `__wrap_prctl`, which only
/// makes the system call.
macro_rules! recording_prctl {
    ($(#[$doc:meta])* $name:ident, $next:path, $set_seccomp:path, $set_tsc:path, $record:path, $fail:path) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
            naked_asm!(
                ".cfi_startproc",
                "cmp edi, {set_seccomp}",
                "je 3f",
                "cmp edi, {set_tsc}",
                "je 3f",
                "2:",
                "mov r11, qword ptr [rip + {next}]",
                "test r11, r11",
                "jne 6f",
                ".hidden __wrap_prctl",
                ".globl __wrap_prctl",
                "__wrap_prctl:",
                "mov eax, {number}",
                "mov r10, rcx",
                "syscall",
                "cmp rax, -4095",
                "jae 4f",
                "ret",
                "4:",
                "mov rdi, rax",
                "jmp {fail}",
                "6:",
                // No vector registers have arguments.
                "xor eax, eax",
                "jmp r11",
                "3:",
                // Saves the five arguments.
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
                "call {record}",
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
                number = const libc::SYS_prctl,
                next = sym $next,
                set_seccomp = const $set_seccomp,
                set_tsc = const $set_tsc,
                record = sym $record,
                fail = sym $fail,
            )
        }
    };
}
pub(crate) use recording_prctl;

/// Defines `syscall`, like [`recording_prctl`]: takes six arguments after the number, the last one
/// on the stack. Defines the hidden function `__wrap_syscall`, too, which only makes the system
/// call.
macro_rules! recording_syscall {
    ($(#[$doc:meta])* $name:ident, $next:path, $set_seccomp:path, $set_tsc:path, $record:path, $fail:path) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        #[cfg_attr(not(test), unsafe(link_section = "mem_agent_fork"))]
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
                "mov r11, qword ptr [rip + {next}]",
                "test r11, r11",
                "jne 6f",
                ".hidden __wrap_syscall",
                ".globl __wrap_syscall",
                "__wrap_syscall:",
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
                "6:",
                "xor eax, eax",
                "jmp r11",
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
                "call {record}",
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
                next = sym $next,
                seccomp = const libc::SYS_seccomp,
                prctl = const libc::SYS_prctl,
                set_seccomp = const $set_seccomp,
                set_tsc = const $set_tsc,
                record = sym $record,
                fail = sym $fail,
            )
        }
    };
}
pub(crate) use recording_syscall;

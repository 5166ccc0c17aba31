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
                "cmp w0, {set_seccomp}",
                "b.eq 3f",
                "cmp w0, {set_tsc}",
                "b.eq 3f",
                "2:",
                "adrp x16, {next}",
                "ldr x16, [x16, :lo12:{next}]",
                "cbnz x16, 6f",
                ".hidden __wrap_prctl",
                ".globl __wrap_prctl",
                "__wrap_prctl:",
                "mov x8, {number}",
                "svc 0",
                "cmn x0, 4095",
                "b.hs 4f",
                "ret",
                "4:",
                "b {fail}",
                "6:",
                "br x16",
                "3:",
                "stp x29, x30, [sp, #-64]!",
                ".cfi_def_cfa_offset 64",
                ".cfi_offset x29, -64",
                ".cfi_offset x30, -56",
                "stp x0, x1, [sp, #16]",
                "stp x2, x3, [sp, #32]",
                "str x4, [sp, #48]",
                "bl {record}",
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

/// Defines `syscall`, like [`recording_prctl`]: takes six arguments after the number. Defines the
/// hidden function `__wrap_syscall`, too, which only makes the system call.
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
                "cmp x0, {seccomp}",
                "b.eq 3f",
                "cmp x0, {prctl}",
                "b.eq 5f",
                "2:",
                "adrp x16, {next}",
                "ldr x16, [x16, :lo12:{next}]",
                "cbnz x16, 6f",
                ".hidden __wrap_syscall",
                ".globl __wrap_syscall",
                "__wrap_syscall:",
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
                "6:",
                "br x16",
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
                "bl {record}",
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

//! Macros for functions with which signal handlers and threads start.

/// Defines a signal handler (`SA_SIGINFO`): calls `$enter(info, context)` and, if that returns the
/// end of a stack, `$work(info, context)` on that stack.
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

/// Defines the start routine of a thread. It calls `$arrive(argument, &mut pair)`, which fills the
/// pair with the program's routine and its argument, and jumps to that routine, so that no frame of
/// ours stays on the stack.
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

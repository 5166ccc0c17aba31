//! Macros for functions with which signal handlers and threads start.

/// Defines a signal handler (`SA_SIGINFO`): calls `$enter(info, context)` and, if that returns the
/// end of a stack, `$work(info, context)` on that stack. Leaves 64 bytes at the end unused: the C
/// library's `syscall` reads a seventh argument from its caller's stack, even if it has fewer.
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
                "lea rsp, [rax - 64]",
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

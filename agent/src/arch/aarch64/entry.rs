//! Macros for entry points: where a call is forwarded, and with which arguments.

/// Defines an entry point that takes a size: calls the allocator's `malloc` if sampling is off or
/// the countdown has not expired, and `$due` otherwise.
macro_rules! counting_entry {
    ($(#[$doc:meta])* $name:ident, else $due:path) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(size: usize) -> *mut c_void {
            // SAFETY: both paths take any size.
            unsafe { if skips_sampling(size) { NEXT.malloc(size) } else { $due(size, 0, 0) } }
        }
    };
}
pub(crate) use counting_entry;

/// Defines an entry point that takes an address: calls `$low` if `range::may_contain` returns true,
/// and the allocator's `free` otherwise.
macro_rules! freeing_entry {
    ($(#[$doc:meta])* $name:ident, else $low:path) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(p: *mut c_void) {
            // SAFETY: `p` is null or an object that the caller frees. A sampled object lies below
            // the end of the range, where `$low` tells it from others; all objects above are the
            // allocator's.
            unsafe { if range::may_contain(p) { $low(p) } else { NEXT.free(p) } }
        }
    };
}
pub(crate) use freeing_entry;

/// Defines a function that calls `$target(a, b, c, &Registers)` with its own arguments (at most
/// three) and the registers of its caller. Entry points jump here, so this caller is that of
/// `malloc` itself.
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

/// Like [`with_registers`], for functions that must not return null. If `$target` does, jumps to
/// `$failed` with the first two arguments, so that an exception thrown there meets no frame of
/// ours.
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

/// Defines a function that jumps to `$target`. Stacks are always aligned: the processor checks it.
macro_rules! on_aligned_stack {
    ($(#[$doc:meta])* $visible:vis fn $name:ident($($arg:ident: $type:ty),*) $(-> $out:ty)?, $target:path) => {
        $(#[$doc])*
        #[unsafe(naked)]
        $visible unsafe extern "C" fn $name($($arg: $type),*) $(-> $out)? {
            ::core::arch::naked_asm!("b {target}", target = sym $target)
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

/// Defines an entry point that masks its second argument (`second`), or its third if its first is 0
/// (`third`), with `$kept`, and jumps to the address in `$next`. The function there identifies its
/// caller by the return address, so it must not see a frame of ours.
///
/// Jumps out of this library use x16: if branch targets are checked (BTI), functions may be jumped
/// to through no other register.
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

/// Defines a function that calls `$find` with its own arguments (at most three), and jumps to the
/// address that it returns, with the same arguments. Returns null if there is none.
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
                "stp x29, x30, [sp, #-48]!",
                ".cfi_def_cfa_offset 48",
                ".cfi_offset x29, -48",
                ".cfi_offset x30, -40",
                "mov x29, sp",
                "stp x0, x1, [sp, #16]",
                "str x2, [sp, #32]",
                "bl {answer}",
                "mov x9, x0",
                "mov x16, x1",
                "ldp x0, x1, [sp, #16]",
                "ldr x2, [sp, #32]",
                "ldp x29, x30, [sp], #48",
                ".cfi_def_cfa_offset 0",
                "cbnz x9, 2f",
                "br x16",
                "2:",
                "mov x0, x9",
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
            ".pushsection mem_agent_fork,\"ax\",%progbits",
            concat!(".hidden ", $symbol),
            concat!(".globl ", $symbol),
            concat!(".type ", $symbol, ",%function"),
            concat!($symbol, ":"),
            ".cfi_startproc",
            "adrp x16, {table} + {offset}",
            "ldr x16, [x16, #:lo12:{table} + {offset}]",
            "br x16",
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
/// arguments, or to `$first` if it is null. Passes the address of `$target` in x16.
macro_rules! jump_by_target {
    ($name:ident, $target:path, else $first:path) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                "adrp x16, {target}",
                "add x16, x16, :lo12:{target}",
                "ldr x17, [x16]",
                "cbz x17, 2f",
                "br x17",
                "2:",
                "b {first}",
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
                "stp x29, x30, [sp, #-224]!",
                ".cfi_def_cfa_offset 224",
                ".cfi_offset x29, -224",
                ".cfi_offset x30, -216",
                "mov x29, sp",
                "stp x0, x1, [sp, #16]",
                "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]",
                "stp x6, x7, [sp, #64]",
                "stp x8, x16, [sp, #80]",
                "stp q0, q1, [sp, #96]",
                "stp q2, q3, [sp, #128]",
                "stp q4, q5, [sp, #160]",
                "stp q6, q7, [sp, #192]",
                "bl {resolve}",
                "ldp x0, x1, [sp, #16]",
                "ldp x2, x3, [sp, #32]",
                "ldp x4, x5, [sp, #48]",
                "ldp x6, x7, [sp, #64]",
                "ldp x8, x16, [sp, #80]",
                "ldp q0, q1, [sp, #96]",
                "ldp q2, q3, [sp, #128]",
                "ldp q4, q5, [sp, #160]",
                "ldp q6, q7, [sp, #192]",
                "ldp x29, x30, [sp], #224",
                ".cfi_def_cfa_offset 0",
                "ldr x17, [x16]",
                "br x17",
                ".cfi_endproc",
                resolve = sym $resolve,
            )
        }
    };
}
pub(crate) use resolve_and_jump;

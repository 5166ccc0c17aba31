//! Functions that the program calls: where calls are forwarded, and with which arguments.

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
            // below its end, where `$low` distinguishes it from others; all above are the
            // allocator's.
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

/// As [`with_registers`], for functions that may not return null: then their first two arguments
/// are passed to `$failed` by a jump, so that an exception thrown there meets no frame of ours.
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

/// Defines the entry point `$name`: takes from its second argument, or from its third where its
/// first is 0, the bits that `$kept` lacks, and jumps to where `$next` points. The function there
/// must not see a frame of ours: it identifies the caller by its return address.
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

/// Defines the function `$symbol`, hidden: a jump to where entry `$index` of `TABLE` points.
#[cfg(not(test))]
macro_rules! jump_through_table {
    ($symbol:literal, $index:literal) => {
        core::arch::global_asm!(
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
            table = sym TABLE,
            offset = const $index * STRIDE,
        );
    };
}
#[cfg(not(test))]
pub(crate) use jump_through_table;

/// Defines the entry point `$name`: a jump to where `$target`, whose first word is an address, points,
/// with all arguments as they are; to `$first` while that is null. The address of `$target` is in x16.
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

/// Defines a function to which entry points of [`jump_by_target`] lead before their targets are known:
/// it has `$settle` store them, and jumps again, with all arguments as they are.
macro_rules! settle_and_jump {
    ($name:ident, $settle:path) => {
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
                "bl {settle}",
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
                settle = sym $settle,
            )
        }
    };
}
pub(crate) use settle_and_jump;

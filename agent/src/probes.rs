//! Static tracepoints (USDT) at which a tracer outside sees sampled objects come and go:
//! `otel_memory:alloc(object, bytes, weighted bytes)` and `otel_memory:free(object)`, those that
//! OpenTelemetry's eBPF profiler attaches to.
//!
//! Each tracepoint is a `nop` with the arguments in the registers of the calling convention, and a
//! note that says where it is. As functions they would take five times as long while no tracer is
//! attached: two taken branches each, in samples that have many already.

use core::arch::asm;
use core::ffi::c_void;

/// A `nop`, and the `.note.stapsdt` that says where it is, with the arguments in these registers.
/// The byte in `.stapsdt.base` shows a reader of a prelinked file how far the note's addresses
/// have moved.
macro_rules! probe {
    ($name:literal, $arguments:literal, $($register:tt = $value:expr),+) => {
        // SAFETY: one instruction that does nothing; the rest is in sections of their own.
        unsafe {
            asm!(
                "2:",
                "nop",
                ".pushsection .note.stapsdt,\"\",@note",
                ".balign 4",
                ".4byte 4f - 3f, 6f - 5f, 3",
                "3:",
                ".asciz \"stapsdt\"",
                "4:",
                ".balign 4",
                "5:",
                ".8byte 2b, _.stapsdt.base, 0",
                ".asciz \"otel_memory\"",
                concat!(".asciz \"", $name, "\""),
                concat!(".asciz \"", $arguments, "\""),
                "6:",
                ".balign 4",
                ".popsection",
                ".ifndef _.stapsdt.base",
                ".pushsection .stapsdt.base,\"aGR\",@progbits,.stapsdt.base,comdat",
                ".weak _.stapsdt.base",
                ".hidden _.stapsdt.base",
                "_.stapsdt.base:",
                ".space 1",
                ".size _.stapsdt.base, 1",
                ".popsection",
                ".endif",
                $(in($register) $value,)+
                options(nostack, preserves_flags),
            )
        }
    };
}

/// A sampled object was made; no one else has its address yet. The bytes that it stands for are its
/// size times its weight.
#[inline(always)]
pub fn alloc(object: *mut u8, bytes: u64, weighted: u64) {
    #[cfg(target_arch = "x86_64")]
    probe!(
        "alloc",
        "8@%rdi 8@%rsi 8@%rdx",
        "rdi" = object,
        "rsi" = bytes,
        "rdx" = weighted
    );
    #[cfg(target_arch = "aarch64")]
    probe!(
        "alloc",
        "8@x0 8@x1 8@x2",
        "x0" = object,
        "x1" = bytes,
        "x2" = weighted
    );
}

/// A sampled object is about to be freed.
#[inline(always)]
pub fn free(object: *mut c_void) {
    #[cfg(target_arch = "x86_64")]
    probe!("free", "8@%rdi", "rdi" = object);
    #[cfg(target_arch = "aarch64")]
    probe!("free", "8@x0", "x0" = object);
}

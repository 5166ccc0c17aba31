//! USDT tracepoints at which external tracers see sampled objects being allocated and freed:
//! `otel_memory:alloc(object, bytes, weighted bytes)` and `otel_memory:free(object)`, to which
//! OpenTelemetry's eBPF profiler attaches.
//!
//! Each tracepoint is a `nop` with the arguments in registers of the calling convention, and an ELF
//! note with its address. Functions would take five times as long while no tracer is attached: two
//! taken branches each, in code that has many already.

use core::arch::asm;
use core::ffi::c_void;

/// Emits a `nop` and the `.note.stapsdt` with its address and the registers of its arguments. The
/// byte in `.stapsdt.base` shows readers of a prelinked file by how much the addresses in the note
/// have moved.
macro_rules! probe {
    ($name:literal, $arguments:literal, $($register:tt = $value:expr),+) => {
        // SAFETY: one instruction that does nothing; the rest goes to other sections.
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

/// Tracepoint for a new sampled object, whose address nobody else has yet. `weighted` is its size
/// times its weight.
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

/// Tracepoint for a sampled object that is about to be freed.
#[inline(always)]
pub fn free(object: *mut c_void) {
    #[cfg(target_arch = "x86_64")]
    probe!("free", "8@%rdi", "rdi" = object);
    #[cfg(target_arch = "aarch64")]
    probe!("free", "8@x0", "x0" = object);
}

//! Clears caller-saved registers and the unused part of the stack before a leak check.
//!
//! Registers are roots of the search, and so is the stack, including what our functions have
//! reserved but not written. A program that requests a check keeps nothing there across the call,
//! but stale copies of pointers would hide leaks. The C library's `memcpy` leaves them in vector
//! registers, on some processors in ones that hardly any other code overwrites. The loader saves
//! all vector registers on the stack when it binds a function at its first call.

/// Number of bytes of the stack that are cleared: the loader needs up to 2.7 KiB for the registers.
pub const CLEARED_BYTES: usize = 3584;

/// Defines an entry point that jumps to `$target` with its own arguments (at most two). If
/// `$may_check` returns true, it first clears the stack below its caller's frame: all frames of
/// ours then lie in the cleared part, and words that they reserve but do not write contain no stale
/// pointers. A check needs as much stack anyway, to start the controller; other calls may have
/// less.
macro_rules! on_clear_stack {
    ($(#[$doc:meta])* $name:ident, $target:path, if $may_check:path) => {
        $(#[$doc])*
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(
                ".cfi_startproc",
                "push rdi",
                ".cfi_adjust_cfa_offset 8",
                "push rsi",
                ".cfi_adjust_cfa_offset 8",
                "sub rsp, 8",
                ".cfi_adjust_cfa_offset 8",
                "call {may_check}",
                "add rsp, 8",
                ".cfi_adjust_cfa_offset -8",
                "pop rsi",
                ".cfi_adjust_cfa_offset -8",
                "pop rdi",
                ".cfi_adjust_cfa_offset -8",
                "test al, al",
                "jz 3f",
                "mov rax, -{bytes}",
                "2:",
                "mov qword ptr [rsp + rax], 0",
                "add rax, 8",
                "jnz 2b",
                "3:",
                "jmp {target}",
                ".cfi_endproc",
                may_check = sym $may_check,
                bytes = const $crate::scratch::CLEARED_BYTES,
                target = sym $target,
            );
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(
                ".cfi_startproc",
                "bti c",
                "stp x29, x30, [sp, #-32]!",
                ".cfi_adjust_cfa_offset 32",
                ".cfi_rel_offset x29, 0",
                ".cfi_rel_offset x30, 8",
                "stp x0, x1, [sp, #16]",
                "bl {may_check}",
                "mov w9, w0",
                "ldp x0, x1, [sp, #16]",
                "ldp x29, x30, [sp], #32",
                ".cfi_adjust_cfa_offset -32",
                ".cfi_restore x29",
                ".cfi_restore x30",
                "tbz w9, #0, 3f",
                "mov x9, sp",
                "sub x10, sp, #{bytes}",
                "2:",
                "stp xzr, xzr, [x10], #16",
                "cmp x10, x9",
                "b.ne 2b",
                "3:",
                "b {target}",
                ".cfi_endproc",
                may_check = sym $may_check,
                bytes = const $crate::scratch::CLEARED_BYTES,
                target = sym $target,
            );
        }
    };
}

pub(crate) use on_clear_stack;

/// Clears all caller-saved registers.
#[cfg(target_arch = "x86_64")]
pub fn clear() {
    // SAFETY: the assembly declares all registers that it changes. Instructions that not all x86-64
    // processors have are used only if the kernel has enabled them.
    unsafe {
        core::arch::asm!(
            "mov r8, rbx", // CPUID changes it
            "mov eax, 1",
            "cpuid",
            "mov rbx, r8",
            "xor eax, eax",
            "bt ecx, 27", // OSXSAVE
            "jnc 2f",
            "xor ecx, ecx",
            "xgetbv",
            "2:",
            "mov ecx, eax",
            "and ecx, 6", // SSE and AVX
            "cmp ecx, 6",
            "je 3f",
            "pxor xmm0, xmm0",
            "pxor xmm1, xmm1",
            "pxor xmm2, xmm2",
            "pxor xmm3, xmm3",
            "pxor xmm4, xmm4",
            "pxor xmm5, xmm5",
            "pxor xmm6, xmm6",
            "pxor xmm7, xmm7",
            "pxor xmm8, xmm8",
            "pxor xmm9, xmm9",
            "pxor xmm10, xmm10",
            "pxor xmm11, xmm11",
            "pxor xmm12, xmm12",
            "pxor xmm13, xmm13",
            "pxor xmm14, xmm14",
            "pxor xmm15, xmm15",
            "jmp 4f",
            "3:",
            "vzeroall",
            "and eax, 0xe0", // AVX-512
            "cmp eax, 0xe0",
            "jne 4f",
            "vpxorq zmm16, zmm16, zmm16",
            "vpxorq zmm17, zmm17, zmm17",
            "vpxorq zmm18, zmm18, zmm18",
            "vpxorq zmm19, zmm19, zmm19",
            "vpxorq zmm20, zmm20, zmm20",
            "vpxorq zmm21, zmm21, zmm21",
            "vpxorq zmm22, zmm22, zmm22",
            "vpxorq zmm23, zmm23, zmm23",
            "vpxorq zmm24, zmm24, zmm24",
            "vpxorq zmm25, zmm25, zmm25",
            "vpxorq zmm26, zmm26, zmm26",
            "vpxorq zmm27, zmm27, zmm27",
            "vpxorq zmm28, zmm28, zmm28",
            "vpxorq zmm29, zmm29, zmm29",
            "vpxorq zmm30, zmm30, zmm30",
            "vpxorq zmm31, zmm31, zmm31",
            "4:",
            "xor eax, eax",
            "xor ecx, ecx",
            "xor edx, edx",
            "xor esi, esi",
            "xor edi, edi",
            "xor r8d, r8d",
            "xor r9d, r9d",
            "xor r10d, r10d",
            "xor r11d, r11d",
            clobber_abi("C"),
            options(nostack),
        );
    }
}

/// Clears all caller-saved registers.
#[cfg(target_arch = "aarch64")]
pub fn clear() {
    // SAFETY: the assembly declares all registers that it changes. The lower halves of v8 to v15
    // are callee-saved and stay.
    unsafe {
        core::arch::asm!(
            "movi v0.2d, #0",
            "movi v1.2d, #0",
            "movi v2.2d, #0",
            "movi v3.2d, #0",
            "movi v4.2d, #0",
            "movi v5.2d, #0",
            "movi v6.2d, #0",
            "movi v7.2d, #0",
            "fmov d8, d8",
            "fmov d9, d9",
            "fmov d10, d10",
            "fmov d11, d11",
            "fmov d12, d12",
            "fmov d13, d13",
            "fmov d14, d14",
            "fmov d15, d15",
            "movi v16.2d, #0",
            "movi v17.2d, #0",
            "movi v18.2d, #0",
            "movi v19.2d, #0",
            "movi v20.2d, #0",
            "movi v21.2d, #0",
            "movi v22.2d, #0",
            "movi v23.2d, #0",
            "movi v24.2d, #0",
            "movi v25.2d, #0",
            "movi v26.2d, #0",
            "movi v27.2d, #0",
            "movi v28.2d, #0",
            "movi v29.2d, #0",
            "movi v30.2d, #0",
            "movi v31.2d, #0",
            "mov x0, #0",
            "mov x1, #0",
            "mov x2, #0",
            "mov x3, #0",
            "mov x4, #0",
            "mov x5, #0",
            "mov x6, #0",
            "mov x7, #0",
            "mov x8, #0",
            "mov x9, #0",
            "mov x10, #0",
            "mov x11, #0",
            "mov x12, #0",
            "mov x13, #0",
            "mov x14, #0",
            "mov x15, #0",
            "mov x16, #0",
            "mov x17, #0",
            clobber_abi("C"),
            options(nostack),
        );
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    extern "C" fn clear() {
        super::clear();
    }

    /// The stale pointer is one that a copy has left in a register.
    #[test]
    fn caller_saved_registers_are_cleared_and_others_are_kept() {
        let mut seen = [1_u64; 6];
        // SAFETY: calls a function by its ABI, and writes six words of ours.
        unsafe {
            core::arch::asm!(
                "mov rax, 0x1234567",
                "mov r11, rax",
                "movq xmm0, rax",
                "movq xmm7, rax",
                "movq xmm8, rax",
                "movq xmm15, rax",
                "mov r13, 0x7654321",
                "call {clear}",
                "movq [r12], xmm0",
                "movq [r12 + 8], xmm7",
                "movq [r12 + 16], xmm8",
                "movq [r12 + 24], xmm15",
                "mov [r12 + 32], r11",
                "mov [r12 + 40], r13",
                clear = sym clear,
                in("r12") &mut seen,
                out("r13") _,
                clobber_abi("C"),
            );
        }
        assert_eq!(seen, [0, 0, 0, 0, 0, 0x7654321]);
    }
}

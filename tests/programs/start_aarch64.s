// Where an aarch64 program begins, with a landing pad: the compiler's own start files may have
// none, and a program is either guarded as a whole or not at all.
    .globl _start
    .type _start, %function
_start:
    .cfi_startproc
    .cfi_undefined x30
    hint #34 // bti c
    mov x29, #0
    mov x30, #0
    mov x5, x0
    ldr x1, [sp]
    add x2, sp, #8
    mov x6, sp
    adrp x0, :got:main
    ldr x0, [x0, :got_lo12:main]
    mov x3, #0
    mov x4, #0
    bl __libc_start_main
    bl abort
    .cfi_endproc

    // "Everything in here has landing pads, and signs its return addresses."
    .section .note.gnu.property, "a"
    .p2align 3
    .word 4, 16, 5
    .asciz "GNU"
    .word 0xc0000000, 4, 3, 0

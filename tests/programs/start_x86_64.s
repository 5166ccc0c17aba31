// Where an x86-64 program begins, without an unwind table, as old C libraries have it on aarch64.
    .globl _start
    .type _start, @function
_start:
    xor %ebp, %ebp
    mov %rdx, %r9
    pop %rsi
    mov %rsp, %rdx
    and $-16, %rsp
    push %rax
    push %rsp
    xor %r8d, %r8d
    xor %ecx, %ecx
    mov main@GOTPCREL(%rip), %rdi
    call *__libc_start_main@GOTPCREL(%rip)
    hlt

    .section .note.GNU-stack, "", @progbits

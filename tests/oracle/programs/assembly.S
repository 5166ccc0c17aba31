// Frames that no compiler makes, described and not.
        .text

        .macro  begin name
        .p2align 4
        .type   \name, @function
\name:
        .cfi_startproc
        .endm

        .macro  finish name
        .cfi_endproc
        .size   \name, . - \name
        .endm

        begin   on_rsp
        subq    $8, %rsp
        .cfi_adjust_cfa_offset 8
        call    *%rdi
        addq    $8, %rsp
        .cfi_adjust_cfa_offset -8
        ret
        finish  on_rsp

        begin   on_rbp
        pushq   %rbp
        .cfi_adjust_cfa_offset 8
        .cfi_rel_offset %rbp, 0
        movq    %rsp, %rbp
        .cfi_def_cfa_register %rbp
        subq    $160, %rsp
        call    *%rdi
        leave
        .cfi_def_cfa %rsp, 8
        .cfi_restore %rbp
        ret
        finish  on_rbp

        // The CFA in a register that callees save: as the loader's lazy binding does.
        .macro  on_register name, reg
        begin   \name
        pushq   \reg
        .cfi_adjust_cfa_offset 8
        .cfi_rel_offset \reg, 0
        movq    %rsp, \reg
        .cfi_def_cfa_register \reg
        subq    $200, %rsp
        andq    $-64, %rsp
        call    *%rdi
        movq    \reg, %rsp
        .cfi_def_cfa_register %rsp
        popq    \reg
        .cfi_adjust_cfa_offset -8
        .cfi_restore \reg
        ret
        finish  \name
        .endm

        on_register on_rbx, %rbx
        on_register on_r12, %r12
        on_register on_r14, %r14
        on_register on_r15, %r15

        // rbp in another register, and used for something else.
        begin   rbp_moved
        pushq   %r13
        .cfi_adjust_cfa_offset 8
        .cfi_rel_offset %r13, 0
        movq    %rbp, %r13
        .cfi_register %rbp, %r13
        xorl    %ebp, %ebp
        call    *%rdi
        movq    %r13, %rbp
        .cfi_restore %rbp
        popq    %r13
        .cfi_adjust_cfa_offset -8
        .cfi_restore %r13
        ret
        finish  rbp_moved

        // The CFA in a word of the stack: DW_CFA_def_cfa_expression(breg7 8; deref).
        begin   by_word
        leaq    8(%rsp), %r10
        .cfi_def_cfa %r10, 0
        andq    $-64, %rsp
        subq    $64, %rsp
        movq    %r10, 8(%rsp)
        .cfi_escape 0x0f, 3, 0x77, 8, 0x06
        call    *%rdi
        movq    8(%rsp), %r10
        .cfi_def_cfa %r10, 0
        leaq    -8(%r10), %rsp
        .cfi_def_cfa %rsp, 8
        ret
        finish  by_word

        // Nothing says where its caller is: what follows the call is none of the ways in which compilers
        // end a function.
        .globl  without_cfi
        .type   without_cfi, @function
        .p2align 4
without_cfi:
        subq    $8, %rsp
        call    *%rdi
        leaq    8(%rsp), %rsp
        ret
        .size   without_cfi, . - without_cfi

        // From after the one to the other, every instruction ends in a SIGTRAP.
        .macro  trap_flag name, operation, operand
        .globl  \name
        begin   \name
        pushfq
        .cfi_adjust_cfa_offset 8
        \operation \operand, (%rsp)
        popfq
        .cfi_adjust_cfa_offset -8
        ret
        finish  \name
        .endm

        trap_flag trap_steps, orq, $0x100
        trap_flag trap_no_steps, andq, $~0x100

        .section .data.rel.ro, "aw"
        .globl  with_cfi
        .p2align 3
with_cfi:
        .quad   on_rsp, on_rbp, on_rbx, on_r12, on_r14, on_r15, rbp_moved, by_word

        .section .note.GNU-stack, "", @progbits

// What the parts of `shapes` share.
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

// In assembly; each calls what it is given. Their CFA hangs on rsp, rbp, rbx, r12, r14,
// r15, and on a word of the stack; one keeps rbp in another register.
#define WITH_CFI 8
extern void (*const with_cfi[WITH_CFI])(void (*)(void));
void trap_steps(void);
void trap_no_steps(void);
void without_cfi(void (*)(void));

// In a library of its own, called through the PLT.
long provided(long n);
void empty(void);

#ifdef __cplusplus
}
#endif

// Allocates before main, in the order in which the loader gets there: in the resolver of an indirect
// function (while it relocates the program, when thread-local variables have no values yet), in
// .preinit_array (before the C library has started), in constructors of libraries, in its own. All
// sites but the last lose what they allocate.
#include <stdlib.h>

#define SITE __attribute__((noinline, noclone, used))
void *volatile last;

static int answer(void) { return 0; }
SITE static void *site_resolver(void) {
    last = malloc(101);
    free(last);
    last = malloc(102);
    return (void *)answer;
}
int indirect(void) __attribute__((ifunc("site_resolver")));

SITE static void site_preinit(int count, char **arguments, char **environment) {
    (void)count, (void)arguments, (void)environment;
    last = calloc(3, 67);
    last = realloc(last, 5000);
}
__attribute__((section(".preinit_array"), used)) static void (*const preinit)(int, char **, char **) =
    site_preinit;

SITE __attribute__((constructor)) static void site_constructor(void) { last = aligned_alloc(64, 640); }

void *library(void);
void *registry(void);

SITE static void site_main(void) { last = malloc(400); }

int main(void) {
    site_main();
    return indirect() + (library() == NULL) + (registry() == NULL);
}

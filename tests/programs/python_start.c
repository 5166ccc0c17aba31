// Makes a program that has Python's interpreter in it an ordinary interpreter: its `main` is Python's.
#define _GNU_SOURCE
#include <dlfcn.h>

typedef int entry(int, char **, char **);
typedef int start(entry *, int, char **, void (*)(void), void (*)(void), void (*)(void), void *);

extern int Py_BytesMain(int, char **);

static int run(int count, char **arguments, char **environment)
{
    (void)environment;
    return Py_BytesMain(count, arguments);
}

int __libc_start_main(entry *replaced, int count, char **arguments, void (*init)(void),
                      void (*fini)(void), void (*loader_fini)(void), void *stack)
{
    start *next = (start *)dlsym(RTLD_NEXT, "__libc_start_main");
    (void)replaced;
    return next(run, count, arguments, init, fini, loader_fini, stack);
}

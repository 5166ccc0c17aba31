// Makes a program that has Python's interpreter in it an ordinary interpreter: its `main` is Python's,
// or, where the program has none, one that knows `-c TEXT` and files.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef int entry(int, char **, char **);
typedef int start(entry *, int, char **, void (*)(void), void (*)(void), void (*)(void), void *);

// As Python's headers have it, and room for what they call PyConfig.
typedef struct {
    int type;
    const char *function, *message;
    int code;
} PyStatus;
static long config[1024];

extern int Py_BytesMain(int, char **) __attribute__((weak));
extern void PyConfig_InitPythonConfig(void *);
extern PyStatus PyConfig_SetBytesArgv(void *, long, char **);
extern PyStatus Py_InitializeFromConfig(void *);
extern int PyRun_SimpleString(const char *);
extern int PyRun_SimpleFile(FILE *, const char *);
extern int Py_FinalizeEx(void);

static int run_simply(int count, char **arguments)
{
    PyConfig_InitPythonConfig(config);
    PyStatus status = PyConfig_SetBytesArgv(config, count, arguments);
    if (status.type == 0)
        status = Py_InitializeFromConfig(config);
    if (status.type != 0) {
        fprintf(stderr, "%s\n", status.message ? status.message : "no Python");
        return 2;
    }
    int index = 1;
    while (index + 1 < count && arguments[index][0] == '-' && strcmp(arguments[index], "-c") != 0)
        index += strcmp(arguments[index], "-X") == 0 ? 2 : 1;
    int is_text = index + 1 < count && strcmp(arguments[index], "-c") == 0, result;
    if (is_text) {
        result = PyRun_SimpleString(arguments[index + 1]);
    } else {
        FILE *file = index < count ? fopen(arguments[index], "r") : NULL;
        result = file ? PyRun_SimpleFile(file, arguments[index]) : 2;
    }
    return Py_FinalizeEx() ? 120 : result != 0;
}

static int run(int count, char **arguments, char **environment)
{
    (void)environment;
    return Py_BytesMain ? Py_BytesMain(count, arguments) : run_simply(count, arguments);
}

int __libc_start_main(entry *replaced, int count, char **arguments, void (*init)(void),
                      void (*fini)(void), void (*loader_fini)(void), void *stack)
{
    start *next = (start *)dlsym(RTLD_NEXT, "__libc_start_main");
    (void)replaced;
    return next(run, count, arguments, init, fini, loader_fini, stack);
}

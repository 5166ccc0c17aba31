// Loads Python's library by itself, as programs with plugins do, runs a script in it, and unloads it:
//
//     python_embedded LIBRARY SCRIPT
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static void *kept;

int main(int count, char **arguments)
{
    void *library = count == 3 ? dlopen(arguments[1], RTLD_NOW) : NULL;
    if (!library) {
        fprintf(stderr, "%s\n", count == 3 ? dlerror() : "python_embedded LIBRARY SCRIPT");
        return 1;
    }
    void (*begin)(void) = (void (*)(void))dlsym(library, "Py_Initialize");
    int (*run)(const char *) = (int (*)(const char *))dlsym(library, "PyRun_SimpleString");
    int (*end)(void) = (int (*)(void))dlsym(library, "Py_FinalizeEx");
    begin();
    if (run(arguments[2]) != 0 || end() != 0 || dlclose(library) != 0)
        return 1;
    // Its stack is walked where the library was.
    kept = malloc(700000);
    printf("%s\n", dlopen(arguments[1], RTLD_NOW | RTLD_NOLOAD) ? "there" : "gone");
    return kept == NULL;
}

// guards: the program's first dlerror() has no message of a look-up that was not the program's
// build: -ldl
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

int main(void) {
    const char *before = dlerror();
    free(malloc(1000));
    const char *after = dlerror();
    printf("%s, %s\n", before ? before : "none", after ? after : "none");
    return before || after;
}

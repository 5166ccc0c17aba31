// A child that may write no file, as programs make for what they do not trust, and that allocates: the
// limit is set "before" the fork or "after" it, in the child. Ends with 0 if the child did.

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static void confine(void) {
    struct rlimit none = {0, 0};
    if (setrlimit(RLIMIT_FSIZE, &none))
        _exit(2);
}

int main(int count, char **arguments) {
    int before = count > 1 && !strcmp(arguments[1], "before");
    if (before)
        confine();
    pid_t child = fork();
    if (child == 0) {
        if (!before)
            confine();
        for (int i = 0; i < 1000; i++)
            if (!malloc(1000))
                _exit(3);
        _exit(0);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child)
        return 4;
    return status != 0;
}

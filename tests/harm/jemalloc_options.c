// guards: options for a jemalloc of the program's own (Rust's crate), which the agent's would abort for
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **arguments)
{
    if (count == 1) {
        setenv("_RJEM_MALLOC_CONF", "abort_conf:true,prof:true,junk:true,background_thread:true", 1);
        execl("/proc/self/exe", arguments[0], "again", NULL);
        return 1;
    }
    char *fresh = malloc(1000000);
    for (int i = 0; i < 1000000; i++)
        if (fresh[i] != 0)
            return 2;
    free(fresh);
    puts(getenv("_RJEM_MALLOC_CONF"));
    return access("/proc/self/task", F_OK);
}

// Counts the mappings of 2 MiB or more with private memory of its own that may get huge pages, and those that
// are excluded. Argument: MiB to allocate in small objects before.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int count, char **arguments)
{
    long bytes = atol(arguments[count - 1]) << 20;
    for (; bytes > 0; bytes -= 200)
        memset(malloc(200), 1, 200);
    int eligible = 0, excluded = 0, is_ours = 0;
    char line[1024], access[8], path[1024];
    FILE *maps = fopen("/proc/self/smaps", "r");
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long start, end;
        *path = 0;
        if (sscanf(line, "%lx-%lx %7s %*s %*s %*s %1023s", &start, &end, access, path) >= 3)
            is_ours = !*path && !strcmp(access, "rw-p") && end - start >= 2 << 20;
        else if (is_ours && !strncmp(line, "VmFlags:", 8))
            strstr(line, " nh") ? excluded++ : eligible++;
    }
    printf("%d eligible, %d excluded\n", eligible, excluded);
    return 0;
}

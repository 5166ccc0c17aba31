// guards: a real-time program that locks all its memory gets no large part of the agent's locked
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static long resident_kib(void)
{
    char line[256];
    long kib = -1;
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status))
        if (sscanf(line, "VmRSS: %ld kB", &kib) == 1)
            break;
    if (status)
        fclose(status);
    return kib;
}

int main(void)
{
    static void *slots[100];
    // Where the user may lock nothing, there is nothing to be harmed.
    int is_locked = !mlockall(MCL_CURRENT | MCL_FUTURE);
    for (int i = 0; i < 100; i++)
        slots[i] = malloc(1000);
    for (int n = 0; n < 20000; n++) {
        free(slots[n % 100]);
        slots[n % 100] = malloc(100 + n % 900);
        memset(slots[n % 100], 1, 100);
        if (n % 100 == 0)
            usleep(1000);
    }
    // All that is resident is locked.
    long resident = resident_kib();
    int is_too_much = is_locked && resident > 50 * 1024;
    if (is_too_much)
        fprintf(stderr, "%ld KiB are locked\n", resident);
    puts(is_too_much ? "too much is locked" : "ok");
    return is_too_much;
}

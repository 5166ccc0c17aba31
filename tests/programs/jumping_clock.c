// Preloaded: the wall clock is a day off, forwards and backwards in turn.
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *time) {
    static int calls;
    long done = syscall(SYS_clock_gettime, clock, time);
    if (done == 0 && clock == CLOCK_REALTIME)
        time->tv_sec += __atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED) % 2 ? 86400 : -86400;
    return (int)done;
}

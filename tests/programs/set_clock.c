// Preloaded: the system clock as it is after it was set back by three days. Other clocks are untouched.
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SET_BACK_SECONDS (3 * 86400)

int clock_gettime(clockid_t clock, struct timespec *time)
{
    int failed = (int)syscall(SYS_clock_gettime, (long)clock, time);
    if (!failed && clock == CLOCK_REALTIME)
        time->tv_sec -= SET_BACK_SECONDS;
    return failed;
}

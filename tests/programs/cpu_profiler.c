// Calls gperftools' CPU profiler (gperftools/profiler.h) as its users do.
//
//   cpu_profiler FILE          profiles one of its two functions
//   cpu_profiler FILE fork     the same; a child ends while it is profiled
//   cpu_profiler switch        sends itself SIGUSR2 around some of its work, twice
//   cpu_profiler               only works
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct ProfilerState {
    int enabled;
    time_t start_time;
    char profile_name[1024];
    int samples_gathered;
};

int ProfilerStart(const char *name) __attribute__((weak));
void ProfilerStop(void) __attribute__((weak));
void ProfilerFlush(void) __attribute__((weak));
void ProfilerRegisterThread(void) __attribute__((weak));
int ProfilingIsEnabledForAllThreads(void) __attribute__((weak));
void ProfilerGetCurrentState(struct ProfilerState *state) __attribute__((weak));

static volatile unsigned sink;

static void work(double seconds) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    double end = time.tv_sec + time.tv_nsec / 1e9 + seconds;
    do {
        for (int i = 0; i < 10000; i++) sink = sink * 3 + 1;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    } while (time.tv_sec + time.tv_nsec / 1e9 < end);
}

// No tail calls: the callers have to stay on the stack.
__attribute__((noinline, noclone)) void profiled(void) { work(0.5); sink++; }
__attribute__((noinline, noclone)) void unprofiled(void) { work(0.2); sink++; }

int main(int count, char **arguments) {
    unprofiled();
    if (count > 1 && !strcmp(arguments[1], "switch")) {
        raise(SIGUSR2);
        profiled();
        raise(SIGUSR2);
        unprofiled();
        raise(SIGUSR2);
        unprofiled();
        raise(SIGUSR2);
    } else if (count > 1) {
        struct ProfilerState state;
        printf("started: %d\n", ProfilerStart(arguments[1]));
        printf("again: %d\n", ProfilerStart("/nowhere/at/all"));
        ProfilerRegisterThread();
        ProfilerGetCurrentState(&state);
        printf("enabled: %d %d named: %d since: %d\n", state.enabled,
               ProfilingIsEnabledForAllThreads(), !strcmp(state.profile_name, arguments[1]),
               state.start_time > 1e9);
        if (count > 2) {
            fflush(stdout);
            int status;
            pid_t child = fork();
            if (!child) exit(ProfilingIsEnabledForAllThreads());
            waitpid(child, &status, 0);
            printf("child: %d\n", WEXITSTATUS(status));
        }
        profiled();
        ProfilerFlush();
        ProfilerStop();
        ProfilerStop();
        ProfilerGetCurrentState(&state);
        printf("enabled: %d written: %d\n", state.enabled, access(arguments[1], R_OK) == 0);
        // No child of the program's.
        printf("children: %d\n", waitpid(-1, NULL, WNOHANG));
    } else {
        profiled();
    }
    unprofiled();
    return 0;
}

/* Interrupts the calling thread at any of its instructions, as a timer of the agent's does, as often
 * as it can: by the signal that the process handles for its timers. Called through ctypes. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static atomic_int over;
static atomic_long sent;
static pthread_t sender;
static pid_t thread;
static int number;

/* A set of signals of a thread, by its name in the kernel's words; bit N - 1 is signal N. */
static unsigned long long set(const char *file, const char *name) {
    char line[256];
    unsigned long long mask = 0;
    FILE *status = fopen(file, "r");
    while (status && fgets(line, sizeof line, status))
        if (!strncmp(line, name, strlen(name)))
            mask = strtoull(line + strlen(name), NULL, 16);
    if (status)
        fclose(status);
    return mask;
}

/* The real-time signal that is handled; 0: none. */
static int handled(void) {
    unsigned long long mask = set("/proc/self/status", "SigCgt:");
    for (int signal = SIGRTMIN; signal <= SIGRTMAX; signal++)
        if (mask >> (signal - 1) & 1)
            return signal;
    return 0;
}

static void *send(void *ignored) {
    uint64_t state = 88172645463325252u;
    char file[64];
    snprintf(file, sizeof file, "/proc/self/task/%d/status", thread);
    while (!over) {
        siginfo_t info;
        memset(&info, 0, sizeof info);
        info.si_signo = number;
        info.si_code = SI_TIMER;
        /* One at a time: those that wait are counted, and there is a limit. */
        if (!(set(file, "SigPnd:") >> (number - 1) & 1) &&
            !syscall(SYS_rt_tgsigqueueinfo, getpid(), thread, number, &info))
            sent++;
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        struct timespec pause = {0, 1000 + (long)(state % 60000)};
        nanosleep(&pause, NULL);
    }
    return ignored;
}

/* Whether there is a signal, which is sent from now on. */
int begin(void) {
    number = handled();
    thread = syscall(SYS_gettid);
    return number && !pthread_create(&sender, NULL, send, NULL);
}

/* How many were sent. */
long end(void) {
    over = 1;
    pthread_join(sender, NULL);
    return sent;
}

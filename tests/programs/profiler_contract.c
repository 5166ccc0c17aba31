// Calls all functions of gperftools' CPU profiler (gperftools/profiler.h) and prints what they do:
// the same with whatever library has them.
//
//   profiler_contract calls FILE     each function, also where it should do nothing
//   profiler_contract filter FILE    a profile of one of two threads
//   profiler_contract killed FILE    has samples written, and is killed
//   profiler_contract switch         raises SIGUSR2 twice
//   profiler_contract threads        two threads that work
//   profiler_contract sleep          a function that sleeps
//   profiler_contract idle           nothing
//   profiler_contract work           a function that works
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct ProfilerState {
    int enabled;
    time_t start_time;
    char profile_name[1024];
    int samples_gathered;
};

struct ProfilerOptions {
    int (*filter_in_thread)(void *arg);
    void *filter_in_thread_arg;
};

int ProfilerStart(const char *name) __attribute__((weak));
int ProfilerStartWithOptions(const char *name, const struct ProfilerOptions *) __attribute__((weak));
void ProfilerStop(void) __attribute__((weak));
void ProfilerFlush(void) __attribute__((weak));
void ProfilerEnable(void) __attribute__((weak));
void ProfilerDisable(void) __attribute__((weak));
void ProfilerRegisterThread(void) __attribute__((weak));
int ProfilingIsEnabledForAllThreads(void) __attribute__((weak));
void ProfilerGetCurrentState(struct ProfilerState *state) __attribute__((weak));

static double seconds(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void work(double duration) {
    volatile unsigned sink = 0;
    double end = seconds(CLOCK_THREAD_CPUTIME_ID) + duration;
    do {
        for (int i = 0; i < 10000; i++) sink = sink * 3 + 1;
    } while (seconds(CLOCK_THREAD_CPUTIME_ID) < end);
}

// No tail calls: the callers have to stay on the stack. They differ: like ones would become one.
static volatile int done;
__attribute__((noinline, noclone)) void first_work(void) { work(0.4); done++; }
__attribute__((noinline, noclone)) void second_work(void) { work(0.4); done += 2; }
__attribute__((noinline, noclone)) void slumber(void) {
    double end = seconds(CLOCK_MONOTONIC) + 0.5;
    do {
        struct timespec pause = {0, 500000000};
        nanosleep(&pause, NULL);
    } while (seconds(CLOCK_MONOTONIC) < end);
    done++;
}

static const char *file;

static long size(void) {
    struct stat status;
    return stat(file, &status) ? -1 : (long)status.st_size;
}

static int samples(void) {
    struct ProfilerState state;
    ProfilerGetCurrentState(&state);
    return state.samples_gathered;
}

static void show(const char *when) {
    struct ProfilerState state;
    memset(&state, 0x55, sizeof state);
    ProfilerGetCurrentState(&state);
    int is_recent = state.start_time && time(NULL) - state.start_time < 60;
    const char *name = strcmp(state.profile_name, file) ? state.profile_name : "FILE";
    printf("%s: enabled %d %d, name '%s', start %s, samples: %s\n", when, state.enabled,
           ProfilingIsEnabledForAllThreads(), name,
           is_recent ? "recent" : state.start_time ? "wrong" : "none",
           !state.enabled && !state.samples_gathered ? "none" : state.samples_gathered > 10 ? "many" : "few");
}

static int starts(const char *name) {
    errno = 77;
    int result = ProfilerStart(name);
    // Whatever it is if it failed.
    if (result && errno != 77) printf("errno: %d\n", errno);
    return result;
}

static void calls(void) {
    char longest[1200];
    memset(longest, 'a', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    show("before");
    ProfilerStop();
    ProfilerFlush();
    show("stopped and flushed before a start");
    printf("no directory: %d\n", starts("/no/such/directory/file"));
    printf("a directory: %d\n", starts("/"));
    printf("no name: %d\n", starts(""));
    printf("long name: %d\n", starts(longest));
    show("not started");
    FILE *old = fopen(file, "w");
    fprintf(old, "what was there before\n");
    fclose(old);
    printf("start: %d\n", starts(file));
    printf("size: %ld\n", size());
    show("started");
    printf("again: %d\n", starts("/dev/null"));
    show("as before");
    first_work();
    show("worked");
    int before = samples();
    printf("written: %d\n", size() > 0);
    errno = 77;
    ProfilerFlush();
    printf("flushed: %d, errno %d, samples kept: %d\n", size() > 0, errno, samples() >= before);
    ProfilerDisable();
    second_work();
    printf("disabled, and samples taken: %d\n", samples() > before + 10);
    ProfilerEnable();
    ProfilerRegisterThread();
    long flushed = size();
    errno = 77;
    int last = samples();
    ProfilerStop();
    printf("stopped: errno %d, more written: %d\n", errno, size() > flushed);
    fprintf(stderr, "gathered: %d\n", last);
    show("stopped");
    ProfilerStop();
    ProfilerFlush();
    struct ProfilerOptions none = {NULL, NULL};
    printf("restart with empty options: %d\n", ProfilerStartWithOptions(file, &none));
    show("restarted");
    second_work();
    show("worked");
    ProfilerStop();
    printf("restart without options: %d\n", ProfilerStartWithOptions(file, NULL));
    ProfilerStop();
    printf("without a sample: %d\n", size() > 0);
    printf("last: %d\n", starts(file));
    first_work();
}

static __thread int is_wanted;
static int argument;
static volatile int asked, wrong;

static int wants(void *given) {
    asked++;
    wrong += given != &argument;
    errno = 99;
    return is_wanted;
}

static void *wanted(void *unused) {
    ProfilerRegisterThread();
    is_wanted = 1;
    first_work();
    errno = 77;
    work(0.1);
    if (errno != 77) printf("errno: %d\n", errno);
    return unused;
}

static void *unwanted(void *unused) {
    ProfilerRegisterThread();
    second_work();
    return unused;
}

static void both(void *(*first)(void *), void *(*second)(void *)) {
    pthread_t threads[2];
    pthread_create(&threads[0], NULL, first, NULL);
    pthread_create(&threads[1], NULL, second, NULL);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
}

// Timers may miss all of what is soon over. So what needs some samples is done again, until it has
// them or has had its chance.
enum { SOME = 10, TRIES = 50 };

static void filter(void) {
    struct ProfilerOptions options = {wants, &argument};
    printf("start: %d\n", ProfilerStartWithOptions(file, &options));
    for (int i = 0; i < TRIES && (asked <= SOME || samples() <= SOME); i++)
        both(wanted, unwanted);
    printf("asked: %d, with another argument: %d\n", asked > SOME, wrong);
    printf("samples: %d\n", samples() > SOME);
    ProfilerStop();
    int before = asked;
    work(0.2);
    printf("asked afterwards: %d\n", asked - before);
    printf("without a filter: %d\n", ProfilerStart(file));
    for (int i = 0; i < TRIES && samples() <= SOME; i++)
        work(0.2);
    printf("asked afterwards: %d, samples: %d\n", asked - before, samples() > SOME);
    ProfilerStop();
    // Again, into the file that is looked at.
    is_wanted = 0;
    printf("again: %d\n", ProfilerStartWithOptions(file, &options));
    both(wanted, unwanted);
    ProfilerStop();
}

static void *first_thread(void *unused) {
    ProfilerRegisterThread();
    first_work();
    return unused;
}

static void *second_thread(void *unused) {
    ProfilerRegisterThread();
    second_work();
    return unused;
}

int main(int count, char **arguments) {
    setvbuf(stdout, NULL, _IONBF, 0);
    const char *what = count > 1 ? arguments[1] : "";
    file = count > 2 ? arguments[2] : "";
    if (!strcmp(what, "calls")) {
        calls();
    } else if (!strcmp(what, "filter")) {
        filter();
    } else if (!strcmp(what, "killed")) {
        printf("start: %d\n", ProfilerStart(file));
        first_work();
        ProfilerFlush();
        raise(SIGKILL);
    } else if (!strcmp(what, "switch")) {
        errno = 77;
        raise(SIGUSR2);
        printf("errno: %d, enabled: %d\n", errno, ProfilingIsEnabledForAllThreads());
        first_work();
        errno = 77;
        raise(SIGUSR2);
        printf("errno: %d, enabled: %d\n", errno, ProfilingIsEnabledForAllThreads());
        second_work();
    } else if (!strcmp(what, "threads")) {
        both(first_thread, second_thread);
    } else if (!strcmp(what, "sleep")) {
        slumber();
    } else if (strcmp(what, "idle")) {
        first_work();
    }
    return 0;
}

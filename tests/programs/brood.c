// A process whose children fork and allocate when they are told to.
//
//   fork N       forks a child, number 0, 1, ..., that allocates N objects of 1000 bytes and then
//                waits: "child PID"
//   more K N     child K allocates N more
//   grand K N    child K forks a child that allocates N and waits: "child PID"
//   daemon N     forks a child that forks another in a session of its own and ends; that one
//                allocates N and waits: "child PID"
//   exec N       forks a child that executes this program again, which allocates N and waits:
//                "child PID"
//   vfork        has /bin/true executed in a child that shares the memory
//   end K        child K ends by _exit
//   storm N      forks N children, each of which allocates 200 objects and waits
//   heap PREFIX  calls gperftools' HeapProfilerStart
//   cpu FILE     calls gperftools' ProfilerStartWithOptions, with a filter that wants all threads
//   work         uses some CPU time and allocates a little
//   leave        the process ends in order, its children stay: they end with its standard input
//
// "ok" follows each.
#define _GNU_SOURCE
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct ProfilerOptions { int (*filter)(void *); void *argument; };
void HeapProfilerStart(const char *prefix) __attribute__((weak));
int ProfilerStartWithOptions(const char *name, const struct ProfilerOptions *) __attribute__((weak));

enum { MOST = 64 };
static struct { int commands, answers; pid_t pid; } children[MOST];
static int count;

static void fail(const char *what) {
    perror(what);
    _exit(1);
}

__attribute__((noinline)) void site_child(long n) {
    for (long i = 0; i < n; i++) {
        char *volatile p = malloc(1000);
        if (!p) fail("malloc");
        memset(p, 1, 1000);
    }
}

// Until nobody writes to standard input any more.
static void stay(void) {
    struct pollfd input = {.fd = 0, .events = 0};
    while (poll(&input, 1, -1) < 0 || !(input.revents & (POLLHUP | POLLERR | POLLNVAL))) {}
    _exit(0);
}

struct command { char what; long n; };

static void answer(int to, pid_t pid) {
    if (write(to, &pid, sizeof pid) != sizeof pid) _exit(1);
}

// A child: commands from one pipe, answers to another.
static void obey(int from, int to) {
    struct command command;
    while (read(from, &command, sizeof command) == sizeof command) {
        pid_t pid = 0;
        if (command.what == 'e') _exit(0);
        if (command.what == 'm') site_child(command.n);
        if (command.what == 'g' && (pid = fork()) == 0) {
            site_child(command.n);
            answer(to, getpid());
            stay();
        }
        if (command.what == 'm') answer(to, pid);
    }
    stay();
}

static pid_t ask(int child, char what, long n) {
    struct command command = {what, n};
    pid_t pid;
    if (child >= count) fail("no such child");
    if (write(children[child].commands, &command, sizeof command) != sizeof command) fail("write");
    if (read(children[child].answers, &pid, sizeof pid) != sizeof pid) fail("read");
    return pid;
}

static void fork_one(long n) {
    int commands[2], answers[2];
    if (count == MOST || pipe(commands) || pipe(answers)) fail("a pipe");
    fflush(stdout);
    pid_t pid = fork();
    if (pid < 0) fail("fork");
    if (pid == 0) {
        close(commands[1]);
        close(answers[0]);
        site_child(n);
        answer(answers[1], getpid());
        obey(commands[0], answers[1]);
    }
    close(commands[0]);
    close(answers[1]);
    children[count].commands = commands[1];
    children[count].answers = answers[0];
    children[count].pid = pid;
    if (read(answers[0], &pid, sizeof pid) != sizeof pid) fail("read");
    count++;
    printf("child %d\n", (int)pid);
}

static void storm(long n) {
    fflush(stdout);
    for (long i = 0; i < n; i++) {
        pid_t pid = fork();
        if (pid < 0) fail("fork");
        if (pid == 0) {
            site_child(200);
            stay();
        }
    }
}

// Forks a child that allocates and waits, in one way or another, and says its pid.
static pid_t fork_apart(long n, int executes) {
    int answers[2];
    pid_t pid;
    if (pipe(answers)) fail("a pipe");
    fflush(stdout);
    pid_t first = fork();
    if (first < 0) fail("fork");
    if (first == 0) {
        if (executes) {
            char objects[32], to[32];
            snprintf(objects, sizeof objects, "%ld", n);
            snprintf(to, sizeof to, "%d", answers[1]);
            execl("/proc/self/exe", "brood", objects, to, (char *)NULL);
            fail("exec");
        }
        setsid();
        if (fork() != 0) _exit(0);
        site_child(n);
        answer(answers[1], getpid());
        stay();
    }
    close(answers[1]);
    if (!executes && waitpid(first, NULL, 0) < 0) fail("waitpid");
    if (read(answers[0], &pid, sizeof pid) != sizeof pid) fail("read");
    close(answers[0]);
    return pid;
}

static void vfork_one(void) {
    pid_t pid = vfork();
    if (pid < 0) fail("vfork");
    if (pid == 0) {
        execl("/bin/true", "true", (char *)NULL);
        _exit(1);
    }
    if (waitpid(pid, NULL, 0) < 0) fail("waitpid");
}

static int wants_all(void *argument) {
    return argument == NULL;
}

// Samples of CPU time, too, are taken only by what runs.
static void work(void) {
    static volatile unsigned sink;
    for (int i = 0; i < 20000000; i++) sink = sink * 3 + 1;
    site_child(10);
}

int main(int argc, char **argv) {
    char line[256], name[256];
    if (argc == 3) {
        site_child(atol(argv[1]));
        answer(atoi(argv[2]), getpid());
        stay();
    }
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        int child;
        long n;
        if (sscanf(line, "fork %ld", &n) == 1)
            fork_one(n);
        else if (sscanf(line, "more %d %ld", &child, &n) == 2)
            ask(child, 'm', n);
        else if (sscanf(line, "grand %d %ld", &child, &n) == 2)
            printf("child %d\n", (int)ask(child, 'g', n));
        else if (sscanf(line, "daemon %ld", &n) == 1)
            printf("child %d\n", (int)fork_apart(n, 0));
        else if (sscanf(line, "exec %ld", &n) == 1)
            printf("child %d\n", (int)fork_apart(n, 1));
        else if (!strcmp(line, "vfork\n"))
            vfork_one();
        else if (sscanf(line, "end %d", &child) == 1) {
            struct command command = {'e', 0};
            if (write(children[child].commands, &command, sizeof command) != sizeof command)
                fail("write");
            if (waitpid(children[child].pid, NULL, 0) < 0) fail("waitpid");
        } else if (sscanf(line, "storm %ld", &n) == 1)
            storm(n);
        else if (sscanf(line, "heap %255s", name) == 1)
            HeapProfilerStart(name);
        else if (sscanf(line, "cpu %255s", name) == 1) {
            struct ProfilerOptions options = {wants_all, NULL};
            if (!ProfilerStartWithOptions(name, &options)) fail("no profile");
        } else if (!strcmp(line, "work\n"))
            work();
        else if (!strcmp(line, "leave\n"))
            return puts("ok"), 0;
        else
            fail(line);
        puts("ok");
        fflush(stdout);
    }
    return 0;
}

// A process whose children fork and allocate when they are told to.
//
//   fork N       forks a child, number 0, 1, ..., that allocates N objects of 1000 bytes and then
//                waits: "child PID"
//   more K N     child K allocates N more
//   grand K N    child K forks a child that allocates N and waits: "child PID"
//   end K        child K ends by _exit
//   storm N      forks N children, each of which allocates 200 objects and waits
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

int main(void) {
    char line[256];
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
        else if (sscanf(line, "end %d", &child) == 1) {
            struct command command = {'e', 0};
            if (write(children[child].commands, &command, sizeof command) != sizeof command)
                fail("write");
            if (waitpid(children[child].pid, NULL, 0) < 0) fail("waitpid");
        } else if (sscanf(line, "storm %ld", &n) == 1)
            storm(n);
        else if (!strcmp(line, "leave\n"))
            return puts("ok"), 0;
        else
            fail(line);
        puts("ok");
        fflush(stdout);
    }
    return 0;
}

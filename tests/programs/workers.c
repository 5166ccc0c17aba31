// A program whose children allocate at different rates, and end in different ways:
//
//   site_parent   1000 objects of 3000 bytes, of the first process
//   site_worker   100, 200 and 300 objects of 500 bytes in each of ten rounds, of the first, second and third child
//   site_image    500 objects of 1500 bytes, of what the third child executes
//
// After their rounds, the first child waits, the second exits, and the third executes this program again.
// Talks in lines: "work" does all of this, and prints "children PID PID PID" once they are done; "ok" after each.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define SITE __attribute__((noinline, noclone))

// Not a tail call: the site has to stay on the stack.
#define DEFINE(name) \
    SITE static void *name(size_t bytes) { \
        char *volatile p = malloc(bytes); \
        if (!p) abort(); \
        memset(p, 1, bytes); \
        return p; \
    }
DEFINE(site_parent)
DEFINE(site_worker)
DEFINE(site_image)

enum { CHILDREN = 3, ROUNDS = 10, BY_ROUND = 100 };
// Not static, or the compiler leaves out what is never read.
void *kept[BY_ROUND * ROUNDS * CHILDREN];

static void child(int number, int done) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int held = 0;
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < BY_ROUND * number; i++) kept[held++] = site_worker(500);
    if (number == 3) {
        char descriptor[12];
        snprintf(descriptor, sizeof descriptor, "%d", done);
        execl("/proc/self/exe", "workers", descriptor, NULL);
        abort();
    }
    if (write(done, "x", 1) != 1) abort();
    if (number == 2) exit(0);
    for (;;) pause();
}

static void work(void) {
    int done[2];
    char bytes[CHILDREN];
    pid_t pids[CHILDREN];
    if (pipe(done)) abort();
    for (int i = 0; i < 1000; i++) kept[i] = site_parent(3000);
    for (int i = 0; i < CHILDREN; i++) {
        pids[i] = fork();
        if (pids[i] < 0) abort();
        if (pids[i] == 0) child(i + 1, done[1]);
    }
    for (int i = 0; i < CHILDREN; i++)
        if (read(done[0], bytes, 1) != 1) abort();
    // Left a zombie, its pid would stay in use.
    if (waitpid(pids[1], NULL, 0) != pids[1]) abort();
    printf("children %d %d %d\n", (int)pids[0], (int)pids[1], (int)pids[2]);
}

int main(int count, char **arguments) {
    char line[64];
    if (count > 1) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (int i = 0; i < 500; i++) kept[i] = site_image(1500);
        if (write(atoi(arguments[1]), "x", 1) != 1) return 1;
        for (;;) pause();
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        work();
        puts("ok");
    }
    return 0;
}

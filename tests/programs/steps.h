// For programs that do one thing after the other, as the lines on their input say.
#ifndef STEPS_H
#define STEPS_H

#include <errno.h>
#include <string.h>

#include "expected.h"

static inline void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    abort();
}

// Says "ready", and "ok" after each step, until the input ends. Part of `main`, whose stacks the
// tests know.
static inline __attribute__((always_inline)) int follow(void (*step)(char *)) {
    static char line[8192];
    setvbuf(stdout, NULL, _IOLBF, 4096);
    say("ready");
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        step(line);
        say("ok");
    }
    return 0;
}

#endif

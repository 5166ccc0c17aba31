// A thread that allocates when it is told to: `one` small object, or `many`, a thousand of 100 bytes, all
// kept. Answers each line.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int to[2], from[2];

__attribute__((noinline, noclone)) static void *site_many(void) {
    void *volatile object = malloc(100);
    return object;
}

static void *sleeper(void *nothing) {
    char what;
    while (read(to[0], &what, 1) == 1) {
        if (what == 'o' && malloc(1) == NULL)
            abort();
        for (int i = 0; what == 'm' && i < 1000; i++)
            if (site_many() == NULL)
                abort();
        if (write(from[1], &what, 1) != 1)
            abort();
    }
    return nothing;
}

int main(void) {
    static char line[80], buffer[1000];
    pthread_t thread;
    setvbuf(stdout, buffer, _IOLBF, sizeof buffer);
    if (pipe(to) || pipe(from) || pthread_create(&thread, NULL, sleeper, NULL))
        return 1;
    puts("ready");
    for (int count; (count = (int)read(0, line, sizeof line)) > 0;) {
        char answer;
        if (write(to[1], line, 1) != 1 || read(from[0], &answer, 1) != 1)
            return 1;
        puts("done");
    }
    return 0;
}

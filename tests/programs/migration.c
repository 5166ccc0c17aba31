// Allocates 300 MiB in half a second and keeps a good third of it. With STAYS set it goes
// on, slowly, until it is killed; with HOLD set it keeps more and more until there is that file.
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static void pause_ns(long ns) {
    struct timespec time = {0, ns};
    nanosleep(&time, NULL);
}

__attribute__((noinline, noclone)) void *site_migration(void) {
    void *p = malloc(1 << 20);
    if (!p) abort();
    __asm__ volatile("" : "+r"(p));
    return p;
}

int main(void) {
    for (int i = 0; i < 300; i++) {
        void *p = site_migration();
        if (i % 5 > 1) free(p);
        pause_ns(1500000);
    }
    printf("ready\n");
    fflush(stdout);
    const char *hold = getenv("HOLD");
    while (hold && access(hold, F_OK)) {
        site_migration();
        pause_ns(10000000);
    }
    while (getenv("STAYS")) {
        free(site_migration());
        pause_ns(1000000);
    }
    return 0;
}

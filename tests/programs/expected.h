// The totals that a dump of a test program is expected to have: for each allocation site, what was
// allocated and what of it is live.
#ifndef EXPECTED_H
#define EXPECTED_H
#include <stdio.h>
#include <stdlib.h>

#define SITE __attribute__((noinline, noclone))

struct totals {
    const char *name;
    long objects, bytes, live_objects, live_bytes;
    struct totals *next;
};

static struct totals *all_totals;

// The totals of a site, registered at start-up.
#define TOTALS(place)                                                         \
    static struct totals totals_##place = {"site_" #place, 0, 0, 0, 0, NULL}; \
    __attribute__((constructor)) static void register_##place(void) {         \
        totals_##place.next = all_totals;                                     \
        all_totals = &totals_##place;                                         \
    }

#define TOTALS_ADD(field, n) __atomic_fetch_add(&(field), (n), __ATOMIC_RELAXED)

static inline void born(struct totals *b, long n) {
    TOTALS_ADD(b->objects, 1), TOTALS_ADD(b->bytes, n);
    TOTALS_ADD(b->live_objects, 1), TOTALS_ADD(b->live_bytes, n);
}

static inline void died(struct totals *b, long n) {
    TOTALS_ADD(b->live_objects, -1), TOTALS_ADD(b->live_bytes, -n);
}

static inline void print_expected(void) {
    for (struct totals *b = all_totals; b; b = b->next)
        if (b->objects)
            printf("site %s %ld %ld %ld %ld\n", b->name, b->objects, b->bytes,
                   b->live_objects, b->live_bytes);
}

static inline void say(const char *line) {
    printf("%s\n", line);
    fflush(stdout);
}
#endif

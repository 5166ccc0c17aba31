// Resizes objects again and again, to the size that they have or to a little more. Says "ready", and at a line
// of input does so and prints what its dump should have.
#include "expected.h"

TOTALS(small)
TOTALS(large)
TOTALS(growing)

enum { OBJECTS = 100, ROUNDS = 2000 };

#define RESIZER(place)                                            \
    SITE void site_##place(void **object, long from, long to) {   \
        void *p = realloc(*object, to);                           \
        if (!p) abort();                                          \
        *object = p;                                              \
        if (from) died(&totals_##place, from);                    \
        born(&totals_##place, to);                                \
    }
RESIZER(small)
RESIZER(large)
RESIZER(growing)

int main(void) {
    static void *small[OBJECTS], *large[OBJECTS], *growing[OBJECTS];
    say("ready");
    if (getchar() == EOF) return 1;
    for (long round = 0; round < ROUNDS; round++)
        for (int at = 0; at < OBJECTS; at++) {
            site_small(&small[at], round ? 5000 : 0, 5000);
            site_large(&large[at], round ? 20000 : 0, 20000);
            site_growing(&growing[at], round ? 17000 + 16 * round - 16 : 0, 17000 + 16 * round);
        }
    print_expected();
    say("done");
    while (getchar() != EOF) {
    }
    return 0;
}

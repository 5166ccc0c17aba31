// guards: large lists that are built and freed repeatedly use the same pages each time, as with glibc
// modes: idle
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

enum { ROUNDS = 12, NODES = 3000000 };

struct node { struct node *next; int value; };

// Builds and frees a list of some 96 MB. Returns the number of page faults.
static long round_of_faults(void)
{
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    struct node *first = NULL;
    for (int i = 0; i < NODES; i++) {
        struct node *node = malloc(24);
        node->next = first;
        node->value = i;
        first = node;
    }
    while (first) {
        struct node *next = first->next;
        free(first);
        first = next;
    }
    getrusage(RUSAGE_SELF, &after);
    return after.ru_minflt - before.ru_minflt;
}

int main(void)
{
    long first = round_of_faults(), later = 0;
    for (int i = 1; i < ROUNDS; i++) later += round_of_faults();
    // The later rounds took seven times as many when each began with new pages.
    printf("%s\n", later < 4 * first ? "the same pages" : "new pages");
    fprintf(stderr, "%ld faults, then %ld\n", first, later);
    return 0;
}

// Allocates, resizes and frees when told, for who traces it: by far most of it stays or goes in
// one piece, some is resized in place, some moves.
#include <stdio.h>
#include <stdlib.h>

static void *volatile kept;

int main(void) {
    char line[64];
    setbuf(stdout, NULL);
    setbuf(stdin, NULL);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        long n = atol(line);
        for (long i = 0; i < n; i++) {
            kept = malloc(1000 + i);
            if (i % 2) free(kept);
        }
        kept = malloc(100000);
        kept = realloc(kept, 100001);  // at its address
        kept = realloc(kept, 900000);  // to another one
        free(kept);
        puts("ok");
    }
    return 0;
}

// Writes outside its objects: overwritten COUNT SIZE FROM BYTES VALUE HOW
// Each object of SIZE bytes has BYTES bytes from FROM on (below 0: before it) set to VALUE (below 0:
// to its number), then it is lost (HOW is "lose"), freed ("free"), freed twice ("twice") or resized ("resize").
// With "later", all objects are freed once all are made.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *volatile known;

__attribute__((noinline)) void *make(size_t bytes) {
    known = malloc(bytes);
    return known;
}

int main(int argc, char **argv) {
    if (argc < 7)
        return 2;
    int count = atoi(argv[1]), from = atoi(argv[3]), bytes = atoi(argv[4]), value = atoi(argv[5]);
    size_t size = strtoul(argv[2], 0, 10);
    int later = !strcmp(argv[6], "later");
    char **kept = later ? calloc(count, sizeof *kept) : 0;
    for (int i = 0; i < count; i++) {
        char *object = make(size);
        char *volatile at = object + from;
        memset(at, value < 0 ? i : value, bytes);
        memset(object, 1, size);
        if (!strcmp(argv[6], "resize")) {
            object = realloc(object, 2 * size);
            if (!object || object[size - 1] != 1)
                return 3;
        }
        known = 0;
        if (later) {
            kept[i] = object;
            continue;
        }
        if (strcmp(argv[6], "lose"))
            free(object);
        if (!strcmp(argv[6], "twice"))
            free(object);
        object = 0;
    }
    for (int i = 0; later && i < count; i++)
        free(kept[i]);
    free(kept);
    puts("done");
    return 0;
}

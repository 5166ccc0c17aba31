// heap_figures FILE: fills heaps of glibc's allocator in two arenas, frees part of them, writes 20 MiB to FILE, and
// prints its allocator's figures: bytes in use, free, with mappings of their own. Waits for the end of its input.
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OBJECTS = 4096, LARGE = 4, FILE_BYTES = 20 << 20 };

static char *objects[OBJECTS], *large[LARGE];

static char *filled(size_t bytes) {
    char *object = malloc(bytes);
    memset(object, 1, bytes);
    return object;
}

static void *work(void *argument) {
    char *own[200];
    for (int i = 0; i < 200; i++) own[i] = filled(50000);
    for (int i = 0; i < 199; i++) free(own[i]);
    *(char **)argument = own[199];
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    for (int i = 0; i < OBJECTS; i++) objects[i] = filled(10000);
    for (int i = 0; i < OBJECTS; i++)
        if (i / 8 % 2) {
            free(objects[i]);
            objects[i] = NULL;
        }
    for (int i = 0; i < LARGE; i++) large[i] = filled(3 << 20);
    pthread_t thread;
    static char *left;
    if (pthread_create(&thread, NULL, work, &left)) return 3;
    pthread_join(thread, NULL);
    int file = open(argv[1], O_CREAT | O_WRONLY, 0600);
    static char block[1 << 16];
    for (int written = 0; written < FILE_BYTES; written += sizeof block)
        if (write(file, block, sizeof block) != sizeof block) return 4;
    struct mallinfo2 info = mallinfo2();
    printf("%zu %zu %zu\n", info.uordblks, info.fordblks, info.hblkhd);
    fflush(stdout);
    char input;
    return read(0, &input, 1) != 0;
}

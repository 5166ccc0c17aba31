// guards: a program linked with mimalloc that calls it by mimalloc's names, too, and mixes both
// build: -fno-builtin -Wl,--no-as-needed -l:libmimalloc.so.2
#include "own_allocator_names.h"

void *mi_malloc(size_t), *mi_realloc(void *, size_t);
void mi_free(void *);

int main(void) { return mixed(mi_malloc, mi_free, mi_realloc); }

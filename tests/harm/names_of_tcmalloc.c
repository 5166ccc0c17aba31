// guards: a program linked with tcmalloc that calls it by tcmalloc's names, too, and mixes both
// build: -fno-builtin -Wl,--no-as-needed -l:libtcmalloc_minimal.so.4
#include "own_allocator_names.h"

void *tc_malloc(size_t), *tc_realloc(void *, size_t);
void tc_free(void *);

int main(void) { return mixed(tc_malloc, tc_free, tc_realloc); }

// guards: glibc's checker of its own allocator, preloaded before the agent: mtrace, mcheck, malloc_usable_size
// build: -fno-builtin
// preload: libc_malloc_debug.so.0 before
#include "malloc_debug.h"

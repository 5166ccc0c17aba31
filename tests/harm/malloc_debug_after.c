// guards: glibc's checker of its own allocator, preloaded after the agent: mtrace, mcheck, malloc_usable_size
// build: -fno-builtin
// preload: libc_malloc_debug.so.0 after
#include "malloc_debug.h"

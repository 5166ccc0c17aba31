// guards: glibc's checker of its own allocator with MALLOC_CHECK_, preloaded after the agent
// build: -fno-builtin
// environment: GLIBC_TUNABLES=glibc.malloc.check=3
// preload: libc_malloc_debug.so.0 after
#include "malloc_debug.h"

// Operators whose objects have a header: who frees one as another allocator's object is told.
#pragma once
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>

struct alignas(16) Header {
    std::size_t bytes, mark;
};
static std::atomic<long> made, live;

static void *make(std::size_t bytes) {
    Header *header = static_cast<Header *>(std::malloc(bytes + sizeof(Header)));
    if (!header) throw std::bad_alloc();
    *header = {bytes, 0xabcdef};
    live += bytes;
    made++;
    return header + 1;
}
static void drop(void *p) {
    if (!p) return;
    Header *header = static_cast<Header *>(p) - 1;
    if (header->mark != 0xabcdef) {
        std::puts("foreign object");
        std::fflush(stdout);
        std::abort();
    }
    header->mark = 0;
    live -= header->bytes;
    std::free(header);
}

// Gives objects to io_uring through raw system calls: each is allocated by a function of its own, and
// nothing but an entry of a ring points to it.
//
// Talks in lines: "plant" prints "planted" once one waits to be submitted, by its user_data and by its
// buffer, and the result of another waits to be read; "submit" gives two more to the kernel, waits for
// others until theirs are overwritten in the rings, and prints "submitted".
#include <linux/io_uring.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "wipe.h"

#define PLACE __attribute__((noinline, noclone))
#define ENTRIES 8

static struct ring {
    int fd, event;
    unsigned *sq_tail, *sq_mask, *array, *cq_head, *cq_tail;
    unsigned cq_entries;
    struct io_uring_sqe *entries;
} ring;

static void *made(size_t bytes) {
    void *p = malloc(bytes);
    if (!p) abort();
    memset(p, 0, bytes);
    return p;
}

PLACE void *kept_waiting(void) { return made(64); }
PLACE void *kept_buffer(void) { return made(80); }
PLACE void *kept_result(void) { return made(96); }
PLACE void *lost_under_way(void) { return made(112); }
PLACE void *lost_buffer(void) { return made(128); }

static void *mapped(size_t bytes, off_t offset) {
    int flags = MAP_SHARED | MAP_POPULATE;
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, ring.fd, offset);
    if (at == MAP_FAILED) {
        perror("mmap of a ring");
        exit(1);
    }
    return at;
}

static void make(void) {
    struct io_uring_params params;
    memset(&params, 0, sizeof params);
    ring.fd = syscall(SYS_io_uring_setup, ENTRIES, &params);
    if (ring.fd < 0) {
        perror("io_uring_setup");
        exit(1);
    }
    char *sq = mapped(params.sq_off.array + params.sq_entries * sizeof(unsigned), IORING_OFF_SQ_RING);
    char *cq = mapped(params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe),
                      IORING_OFF_CQ_RING);
    ring.entries = mapped(params.sq_entries * sizeof(struct io_uring_sqe), IORING_OFF_SQES);
    ring.sq_tail = (unsigned *)(sq + params.sq_off.tail);
    ring.sq_mask = (unsigned *)(sq + params.sq_off.ring_mask);
    ring.array = (unsigned *)(sq + params.sq_off.array);
    ring.cq_head = (unsigned *)(cq + params.cq_off.head);
    ring.cq_tail = (unsigned *)(cq + params.cq_off.tail);
    ring.cq_entries = params.cq_entries;
    ring.event = eventfd(0, 0);
}

// Adds an entry that waits to be submitted.
static void add(int operation, void *data, void *buffer) {
    unsigned at = *ring.sq_tail & *ring.sq_mask;
    struct io_uring_sqe *entry = &ring.entries[at];
    memset(entry, 0, sizeof *entry);
    entry->opcode = operation;
    entry->fd = operation == IORING_OP_NOP ? -1 : ring.event;
    entry->user_data = (uintptr_t)data;
    entry->addr = (uintptr_t)buffer;
    entry->len = buffer ? 8 : 0;
    ring.array[at] = at;
    __atomic_store_n(ring.sq_tail, *ring.sq_tail + 1, __ATOMIC_RELEASE);
}

static void submit(unsigned count, unsigned wait) {
    int flags = wait ? IORING_ENTER_GETEVENTS : 0;
    if (syscall(SYS_io_uring_enter, ring.fd, count, wait, flags, NULL, 0) != count) {
        perror("io_uring_enter");
        exit(1);
    }
}

static void read_results(void) {
    __atomic_store_n(ring.cq_head, __atomic_load_n(ring.cq_tail, __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
}

PLACE void plant(void) {
    make();
    add(IORING_OP_NOP, kept_result(), NULL);
    submit(1, 1);
    add(IORING_OP_READ, kept_waiting(), kept_buffer());
}

// An eventfd that nobody writes to: reading it takes forever.
PLACE void give(void) {
    make();
    add(IORING_OP_READ, lost_under_way(), lost_buffer());
    submit(1, 0);
    // Each result has two words: as many as there is room for leave nothing of those before.
    for (unsigned n = 0; n < 2 * ring.cq_entries; n++) {
        add(IORING_OP_NOP, NULL, NULL);
        submit(1, 1);
        read_results();
    }
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    char line[256];
    while (fgets(line, sizeof line, stdin)) {
        int plants = !strcmp(line, "plant\n");
        if (plants) plant();
        else give();
        wipe();
        puts(plants ? "planted" : "submitted");
    }
    return 0;
}

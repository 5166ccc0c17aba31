// The books of a test program: per place, what was allocated and what of it is live.
#ifndef BOOKS_H
#define BOOKS_H
#include <stdio.h>
#include <stdlib.h>

#define SITE __attribute__((noinline, noclone))

struct book {
    const char *name;
    long objects, bytes, live_objects, live_bytes;
    struct book *next;
};

static struct book *all_books;

// A place's book, registered at start-up.
#define BOOK(place)                                                         \
    static struct book book_##place = {"site_" #place, 0, 0, 0, 0, NULL};   \
    __attribute__((constructor)) static void open_book_##place(void) {      \
        book_##place.next = all_books;                                      \
        all_books = &book_##place;                                          \
    }

#define BOOK_ADD(field, n) __atomic_fetch_add(&(field), (n), __ATOMIC_RELAXED)

static inline void born(struct book *b, long n) {
    BOOK_ADD(b->objects, 1), BOOK_ADD(b->bytes, n);
    BOOK_ADD(b->live_objects, 1), BOOK_ADD(b->live_bytes, n);
}

static inline void died(struct book *b, long n) {
    BOOK_ADD(b->live_objects, -1), BOOK_ADD(b->live_bytes, -n);
}

static inline void print_books(void) {
    for (struct book *b = all_books; b; b = b->next)
        if (b->objects)
            printf("site %s %ld %ld %ld %ld\n", b->name, b->objects, b->bytes,
                   b->live_objects, b->live_bytes);
}

static inline void say(const char *line) {
    printf("%s\n", line);
    fflush(stdout);
}
#endif

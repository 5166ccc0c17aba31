// Binds late to a library that it does not name.
#include <stddef.h>

long late(long n);
extern __thread char late_words[5000];

void uses(void (*allocate)(size_t)) {
    allocate(late(3));
    late_words[7]++;
    allocate(late(7));
}

// Is busy, but allocates nothing through the C library.
#include <unistd.h>

int main(void) {
    volatile unsigned long turns = 0;
    if (write(1, "ready\n", 6) != 6) return 1;
    for (;;) turns++;
}

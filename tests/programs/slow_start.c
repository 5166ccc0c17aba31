// Waits for a line before the constructor of any library runs ("waiting"), and for another one in
// main ("ready").
#include <stdio.h>
#include <unistd.h>

static void wait_for_line(const char *word, size_t bytes) {
    char c;
    if (write(STDOUT_FILENO, word, bytes) != (ssize_t)bytes) _exit(1);
    while (read(STDIN_FILENO, &c, 1) == 1 && c != '\n') {}
}

static void begin(void) { wait_for_line("waiting\n", 8); }

__attribute__((section(".preinit_array"), used)) static void (*const first)(void) = begin;

int main(void) {
    wait_for_line("ready\n", 6);
    return 0;
}

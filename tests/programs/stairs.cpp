// Holds memory in steps, as told by lines on its input: "up N" and "side N" keep N more bytes
// at a function of their own each, "down N" gives back what "up" kept last. Answers "ok" to each.
// Nothing else of it allocates once it has said "ready".
#include <cstdio>
#include <cstdlib>
#include <cstring>

static void *kept[4096];
static int count;
static char input[256], output[256];

extern "C" __attribute__((noinline)) void *site_up(size_t bytes) {
    void *at = std::malloc(bytes);
    if (!at) std::abort();
    std::memset(at, 7, bytes);
    return at;
}

extern "C" __attribute__((noinline)) void *site_side(size_t bytes) {
    void *at = std::malloc(bytes);
    if (!at) std::abort();
    std::memset(at, 9, bytes);
    return at;
}

static void say(const char *line) {
    std::puts(line);
    std::fflush(stdout);
}

int main() {
    // Streams would allocate their buffers at the first line.
    std::setvbuf(stdin, input, _IOFBF, sizeof input);
    std::setvbuf(stdout, output, _IOFBF, sizeof output);
    say("ready");
    char line[64], word[16];
    size_t bytes;
    while (std::fgets(line, sizeof line, stdin)) {
        if (std::sscanf(line, "%15s %zu", word, &bytes) != 2) return 2;
        if (!std::strcmp(word, "up") && count < 4096)
            kept[count++] = site_up(bytes);
        else if (!std::strcmp(word, "side"))
            site_side(bytes);
        else if (!std::strcmp(word, "down") && count)
            std::free(kept[--count]);
        else
            return 2;
        say("ok");
    }
}

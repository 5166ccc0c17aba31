// Loses 20 objects of 10000 bytes and one of 777 bytes by the same function, from two lines of main.
// With "wait", waits then for a line on standard input.
#include <cstdio>
#include <cstdlib>

__attribute__((noinline)) static void *take(size_t bytes)
{
    void *object = malloc(bytes);
    *static_cast<volatile char *>(object) = 1;
    return object;
}

__attribute__((noinline)) static void lose_many()
{
    for (int i = 0; i < 20; i++) take(10000);
}

__attribute__((noinline)) static void lose_one()
{
    void *object = take(777);
    // No tail call: this function stays in the stack.
    asm volatile("" : : "r"(object));
}

// Overwrites what the calls have left on the stack.
__attribute__((noinline)) static void wipe()
{
    volatile char bytes[4096];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = 0;
}

int main(int count, char **)
{
    lose_many();
    lose_one();
    wipe();
    if (count > 1) {
        puts("ready");
        fflush(stdout);
        for (int c = getchar(); c != EOF && c != '\n';) c = getchar();
    }
    return 0;
}

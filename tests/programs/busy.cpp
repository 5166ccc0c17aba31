// A program that computes for a second of CPU time, in functions of several callers. The recursion
// has many stacks, so that a profile of it has enough of them however few samples were taken.

#include <cstdio>
#include <ctime>
#include <map>
#include <string>

static unsigned long divisors(unsigned long n) {
    unsigned long count = 0;
    for (unsigned long d = 1; d * d <= n; d++)
        count += n % d == 0;
    return count;
}

static unsigned long collatz(unsigned long n) {
    unsigned long steps = 0;
    for (; n != 1; steps++)
        n = n % 2 ? 3 * n + 1 : n / 2;
    return steps;
}

static unsigned long depth(unsigned long n) {
    return n < 2 ? 1 : depth(n - 1) + depth(n - 2);
}

static unsigned long numbers(unsigned long from) {
    unsigned long sum = 0;
    for (unsigned long n = from; n < from + 100; n++)
        sum += divisors(n) + collatz(n);
    return sum + depth(22);
}

static unsigned long words(unsigned long from) {
    std::map<std::string, unsigned long> all;
    for (unsigned long n = from; n < from + 100; n++)
        all[std::to_string(n % 37)] += collatz(n);
    return all.size();
}

int main() {
    unsigned long sum = 0;
    for (unsigned long from = 1; clock() < CLOCKS_PER_SEC; from += 100)
        sum += from / 100 % 2 ? numbers(from) : words(from);
    printf("%lu\n", sum);
}

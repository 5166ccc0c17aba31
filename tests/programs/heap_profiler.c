// Calls gperftools' heap profiler (gperftools/heap-profiler.h) as its users do.
//
//   heap_profiler PREFIX
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void HeapProfilerStart(const char *prefix);
void HeapProfilerStop(void);
void HeapProfilerDump(const char *reason);
int IsHeapProfilerRunning(void);
char *GetHeapProfile(void);

#define SITE __attribute__((noinline, noclone))

void *kept[100];

SITE static void keeps(int from, int count, size_t bytes) {
    for (int i = from; i < from + count; i++) kept[i] = malloc(bytes);
}

int main(int count, char **arguments) {
    if (count < 2) return 2;
    char *empty = GetHeapProfile();
    printf("before: %d %zu\n", IsHeapProfilerRunning(), strlen(empty));
    free(empty);
    keeps(0, 10, 1000);
    HeapProfilerDump("nothing runs");
    HeapProfilerStart(arguments[1]);
    printf("started: %d\n", IsHeapProfilerRunning());
    HeapProfilerStart(arguments[1]);
    keeps(10, 20, 2000);
    HeapProfilerDump("after twenty");
    keeps(30, 5, 3000);
    HeapProfilerDump("after five more");
    char *text = GetHeapProfile();
    puts(text);
    free(text);
    HeapProfilerStop();
    printf("stopped: %d\n", IsHeapProfilerRunning());
    HeapProfilerDump("nothing runs");
    HeapProfilerStop();
    HeapProfilerStart(arguments[1]);
    keeps(40, 7, 500);
    HeapProfilerDump("once more");
    return 0;
}

// Functions of a library's own that are called like functions of other profilers and of newer C libraries.
#include <stdio.h>

int ProfilerStart(int a, int b) { return a * 100 + b; }
double ProfilerStop(double a, double b) { return a - b; }
void ProfilerFlush(void) { puts("own flush"); }
int ProfilerRegisterThread(int a) { return a + 1; }
int HeapProfilerStart(double d) { return (int)d; }
void HeapProfilerDump(const char *s) { printf("own dump %s\n", s); }
int IsHeapProfilerRunning(void) { return 42; }
const char *GetHeapProfile(void) { return "own profile"; }
void __lsan_disable(void) { puts("own lsan"); }
int __lsan_do_recoverable_leak_check(int a) { return a + 2; }
void *mallocx(int k) { printf("own mallocx %d\n", k); return 0; }
int dallocx(double a, double b) { return (int)(a * b); }
int mallctl(int z) { return z + 1; }
int nallocx(int k) { return k + 5; }
int xallocx(int a, int b, int c, int d, int e, int f, int g, int h) { return a + b + c + d + e + f + g * h; }
int _ZN15HeapLeakChecker8IsActiveEv(int a) { return a * 3; }
void free_sized(void *p, int a, int b) { printf("own free_sized %d %d\n", a, b); }
int free_aligned_sized(int a, int b, int c, int d) { return a + b + c + d; }

int test_own_names(void)
{
    printf("%d\n", ProfilerStart(3, 4));
    printf("%g\n", ProfilerStop(7.5, 0.25));
    ProfilerFlush();
    printf("%d\n", ProfilerRegisterThread(5));
    printf("%d\n", HeapProfilerStart(7.5));
    HeapProfilerDump("x");
    printf("%d %s\n", IsHeapProfilerRunning(), GetHeapProfile());
    __lsan_disable();
    printf("%d\n", __lsan_do_recoverable_leak_check(8));
    mallocx(5);
    printf("%d %d %d\n", dallocx(2.5, 4.0), mallctl(9), nallocx(6));
    printf("%d\n", xallocx(1, 2, 3, 4, 5, 6, 7, 8));
    printf("%d\n", _ZN15HeapLeakChecker8IsActiveEv(11));
    free_sized(0, 1, 2);
    printf("%d\n", free_aligned_sized(1, 2, 3, 4));
    int (*volatile pointer)(int, int) = ProfilerStart;
    printf("%d\n", pointer(5, 6));
    return 0;
}

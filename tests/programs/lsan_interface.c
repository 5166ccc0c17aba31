// Calls LeakSanitizer's interface, as a program does that was not built with it: sanitizer/
// lsan_interface.h, with weak declarations.
//
//   lsan_interface CASE
//
// With HOOKS defined it has LeakSanitizer's hooks as well, which say what is in the variables TURNED_OFF,
// KNOWN and OPTIONS.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WEAK __attribute__((weak))
WEAK void __lsan_disable(void);
WEAK void __lsan_enable(void);
WEAK void __lsan_ignore_object(const void *p);
WEAK void __lsan_register_root_region(const void *p, size_t size);
WEAK void __lsan_unregister_root_region(const void *p, size_t size);
WEAK void __lsan_do_leak_check(void);
WEAK int __lsan_do_recoverable_leak_check(void);

#ifdef HOOKS
// For the program to export them, as it would if it were linked with a sanitizer.
#define HOOK __attribute__((used, visibility("default")))
static const char *variable(const char *name) {
    const char *value = getenv(name);
    return value ? value : "";
}
HOOK int __lsan_is_turned_off(void) { return *variable("TURNED_OFF") != 0; }
HOOK const char *__lsan_default_suppressions(void) { return variable("KNOWN"); }
HOOK const char *__lsan_default_options(void) { return variable("OPTIONS"); }
#endif

#define SITE __attribute__((noinline, noclone))

SITE static void leaks(size_t bytes) {
    char *volatile lost = malloc(bytes);
    memset(lost, 1, bytes);
    lost = NULL;
}

SITE static void forget(void) {
    volatile uintptr_t words[512];
    for (int i = 0; i < 512; i++) words[i] = 0;
    __asm__ volatile("" ::: "memory");
}

SITE static void disabled(void) {
    __lsan_disable();
    leaks(64);
    __lsan_enable();
}

SITE static void ignored(void) {
    char *volatile lost = malloc(80);
    // An address in the middle will do.
    __lsan_ignore_object(lost + 8);
    lost = NULL;
}

// A lost object that holds the only pointer to another one. Its address is disguised.
static uintptr_t disguised;

SITE static void hold(void) {
    void **volatile object = calloc(8, sizeof(void *));
    object[5] = malloc(90);
    disguised = ~(uintptr_t)&object[5];
    object = NULL;
}

SITE static void registered(void) {
    __lsan_register_root_region((void *)~disguised, 8);
}

SITE static void unregistered(void) {
    __lsan_unregister_root_region((void *)~disguised, 8);
}

static void say(const char *what) {
    forget();
    printf("%s: %d\n", what, __lsan_do_recoverable_leak_check());
    fflush(stdout);
}

int main(int count, char **arguments) {
    const char *name = count > 1 ? arguments[1] : "";
    if (!__lsan_disable || !__lsan_enable || !__lsan_ignore_object) {
        puts("absent");
        return 0;
    }
    if (!strcmp(name, "recoverable")) {
        say("at first");
        disabled();
        ignored();
        say("disabled and ignored");
        leaks(100);
        say("lost");
        say("still lost");
    } else if (!strcmp(name, "region")) {
        hold();
        registered();
        say("registered");
        unregistered();
        say("no more");
    } else if (!strcmp(name, "fatal")) {
        leaks(100);
        forget();
        __lsan_do_leak_check();
        puts("not reached");
    } else if (!strcmp(name, "exit")) {
        leaks(100);
        forget();
    } else if (!strcmp(name, "fine")) {
        __lsan_do_leak_check();
        puts("reached");
    }
    return 0;
}

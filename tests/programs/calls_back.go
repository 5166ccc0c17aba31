// C calls Go, which calls C, twice nested: from main, from a goroutine and from a thread of C. The
// innermost function allocates memory or computes.
package main

/*
#cgo LDFLAGS: -pthread
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

extern void goVisit(int);

static __attribute__((noinline)) void *c_make(size_t bytes) {
    char *made = malloc(bytes);
    return made ? memset(made, 1, bytes) : NULL;
}

static __attribute__((noinline)) uint64_t c_compute(uint64_t rounds) {
    uint64_t sum = rounds;
    for (uint64_t i = 0; i < rounds; i++)
        sum = (sum ^ i) * 0x9E3779B97F4A7C15u;
    return sum;
}

static __attribute__((noinline)) int c_each(int depth) {
    goVisit(depth);
    return depth;
}

static void *c_start(void *depth) {
    c_each((int)(intptr_t)depth);
    return NULL;
}

static int c_thread(int depth) {
    pthread_t thread;
    return pthread_create(&thread, NULL, c_start, (void *)(intptr_t)depth) ||
           pthread_join(thread, NULL);
}
*/
import "C"
import (
	"os"
	"sync"
)

//export goVisit
func goVisit(depth C.int) {
	if depth > 0 {
		again(depth - 1)
	} else if os.Args[1] == "make" {
		makeInC()
	} else {
		computeInC()
	}
}

//go:noinline
func again(depth C.int) C.int { return C.c_each(depth) }

//go:noinline
func makeInC() {
	for i := 0; i < 100; i++ {
		C.c_make(10000)
	}
}

// The result is used by nothing, but C does not know.
//
//go:noinline
func computeInC() C.uint64_t { return C.c_compute(200000000) }

// Grows the goroutine's stack. Before Go 1.21, a stack that grows during a callback moves away from
// the frame pointers that C keeps.
//
//go:noinline
func grow(index int) byte {
	var large [1 << 16]byte
	large[index] = 1
	return large[index/2]
}

//go:noinline
func work() C.int { return again(1 + C.int(grow(2))) }

func main() {
	work()
	var group sync.WaitGroup
	group.Add(1)
	go func() {
		defer group.Done()
		work()
	}()
	group.Wait()
	if C.c_thread(1) != 0 {
		os.Exit(1)
	}
}

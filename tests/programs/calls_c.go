// Calls C, which allocates memory, computes or sleeps, from main and from a goroutine.
package main

/*
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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

static __attribute__((noinline)) void c_sleep(long milliseconds) {
    struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    nanosleep(&time, NULL);
}
*/
import "C"
import (
	"fmt"
	"os"
	"sync"
)

//go:noinline
func makeInC() {
	for i := 0; i < 1000; i++ {
		C.c_make(10000)
	}
}

//go:noinline
func computeInC() uint64 { return uint64(C.c_compute(500000000)) }

//go:noinline
func sleepInC() { C.c_sleep(500) }

//go:noinline
func work() {
	switch os.Args[1] {
	case "make":
		makeInC()
	case "compute":
		fmt.Println(computeInC())
	default:
		sleepInC()
	}
}

func main() {
	work()
	var group sync.WaitGroup
	group.Add(1)
	go func() {
		defer group.Done()
		work()
	}()
	group.Wait()
}

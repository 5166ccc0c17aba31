// Memory of C's made and freed by goroutines on any thread, and child processes: a line for
// each result.
package main

/*
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static uint64_t fill(unsigned char *p, size_t n, uint32_t seed) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1103515245u + 12345u;
        p[i] = seed >> 24;
        sum = sum * 31 + p[i];
    }
    return sum;
}
*/
import "C"

import (
	"fmt"
	"os/exec"
	"runtime"
	"sync"
	"unsafe"
)

func work(seed int) uint64 {
	var sum uint64
	var kept []unsafe.Pointer
	for i := 0; i < 3000; i++ {
		n := C.size_t(16 + (seed+i*37)%3000)
		p := C.malloc(n)
		sum = sum*17 + uint64(C.fill((*C.uchar)(p), n, C.uint32_t(seed+i)))
		p = C.realloc(p, n*2)
		kept = append(kept, p)
		if i%3 == 0 {
			C.free(kept[0])
			kept = kept[1:]
		}
		if i%100 == 0 {
			runtime.Gosched()
		}
	}
	for _, p := range kept {
		C.free(p)
	}
	return sum
}

func main() {
	results := make([]uint64, 16)
	var all sync.WaitGroup
	for n := range results {
		all.Add(1)
		go func(n int) {
			defer all.Done()
			if n%4 == 0 {
				runtime.LockOSThread()
			}
			results[n] = work(n * 1000)
		}(n)
	}
	all.Wait()
	for n, result := range results {
		fmt.Printf("goroutine %d: %x\n", n, result)
	}
	for n := 0; n < 5; n++ {
		output, err := exec.Command("sh", "-c", "echo child").Output()
		fmt.Printf("process %d: %q %v\n", n, output, err)
	}
	text := C.CString("a string of C's")
	fmt.Printf("string: %s\n", C.GoString(text))
	C.free(unsafe.Pointer(text))
}

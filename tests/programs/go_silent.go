// Uses nothing of Go that samples memory, so that Go's linker turns that off.
//
// Input: "rate" prints runtime.MemProfileRate; "hold N" keeps N objects of 1 MiB, and collects
// garbage.
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
)

var kept [][]byte

//go:noinline
func hold(count int) {
	for i := 0; i < count; i++ {
		kept = append(kept, make([]byte, 1<<20))
	}
}

func main() {
	// Not sampled, and large enough for all that is kept.
	kept = make([][]byte, 0, 1000)
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var count int
		if lines.Text() == "rate" {
			fmt.Println(runtime.MemProfileRate)
		} else if _, err := fmt.Sscanf(lines.Text(), "hold %d", &count); err == nil {
			hold(count)
			runtime.GC()
		}
		fmt.Println("ok")
	}
}

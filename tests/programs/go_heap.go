// Keeps and drops objects of known sizes, and writes the heap profile of its own runtime.
//
// Arguments: runtime.MemProfileRate; 0 keeps Go's own.
// Input: "own FILE" collects garbage and writes the profile to FILE; "more" allocates what is not
// published before the next collection.
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strconv"
	"strings"
)

var kept [][]byte

//go:noinline
func holdLarge(count int) {
	for i := 0; i < count; i++ {
		kept[i] = make([]byte, 64<<10)
	}
}

// Inlined into its caller.
func small() []byte { return make([]byte, 1<<10) }

//go:noinline
func holdSmall(first, count int) {
	for i := first; i < first+count; i++ {
		kept[i] = small()
	}
}

//go:noinline
func replace(count int) {
	for i := 0; i < count; i++ {
		kept[0] = make([]byte, 32<<10)
	}
}

//go:noinline
func deep(depth int) {
	if depth > 0 {
		deep(depth - 1)
		return
	}
	replace(64)
}

func main() {
	rate, _ := strconv.Atoi(os.Args[1])
	if rate > 0 {
		runtime.MemProfileRate = rate
	}
	// Garbage is collected on request only.
	debug.SetGCPercent(-1)
	kept = make([][]byte, 9000)
	holdLarge(1000)
	holdSmall(1000, 8000)
	replace(500)
	deep(50)
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		name, file, _ := strings.Cut(lines.Text(), " ")
		switch name {
		case "own":
			runtime.GC()
			out, err := os.Create(file)
			if err == nil {
				err = pprof.WriteHeapProfile(out)
			}
			if err != nil {
				panic(err)
			}
			out.Close()
		case "more":
			holdLarge(100)
		}
		fmt.Println("ok")
	}
}

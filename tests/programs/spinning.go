// Computes in functions that are not inlined, below main and in goroutines.
package main

import (
	"fmt"
	"sync"
)

//go:noinline
func leaf(n int) int {
	sum := 0
	for i := 0; i < n; i++ {
		sum += i*i ^ sum
	}
	return sum
}

//go:noinline
func branch(n int) int { return leaf(n) + 1 }

func main() {
	total := branch(300000000)
	var group sync.WaitGroup
	group.Add(1)
	go func() {
		defer group.Done()
		total += branch(300000000)
	}()
	group.Wait()
	fmt.Println(total)
}

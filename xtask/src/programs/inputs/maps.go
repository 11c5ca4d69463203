// Fills maps from several goroutines, changes them, and looks everything up.
package main

import (
	"fmt"
	"os"
	"strconv"
	"sync"
)

type value struct {
	number int
	word   string
}

func fill(part, count int) (int, int) {
	table := map[string]*value{}
	for i := 0; i < count; i++ {
		table["key-"+strconv.Itoa(i*7919+part)] = &value{i, "word " + strconv.Itoa(i)}
	}
	for i := 0; i < count; i += 3 {
		table["key-"+strconv.Itoa(i*7919+part)] = &value{i * 2, "changed"}
	}
	sum := 0
	for i := 0; i < count; i++ {
		found := table["key-"+strconv.Itoa(i*7919+part)]
		sum = (sum*31 + found.number + len(found.word)) % 1000000007
	}
	return len(table), sum
}

func main() {
	count, err := strconv.Atoi(os.Args[1])
	if err != nil {
		panic(err)
	}
	var parts sync.WaitGroup
	results := make([]string, 4)
	for part := range results {
		parts.Add(1)
		go func() {
			defer parts.Done()
			size, sum := fill(part, count/4)
			results[part] = fmt.Sprintln(part, size, sum)
		}()
	}
	parts.Wait()
	for _, line := range results {
		fmt.Print(line)
	}
}

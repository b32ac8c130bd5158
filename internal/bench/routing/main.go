// Command routing compares rules of routing over simulated replicas, in virtual time. `make
// bench-routing` runs it and writes its tables and plots into docs.
//
// It replays a recorded hour of a chat service, or another trace, and made-up worst cases. The
// strategy `prefix` is the product's own code: internal/prefix and internal/predict. The other
// rules are in others.go. replica.go says what a simulated replica does.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/sluice-gateway/sluice/internal/bench/report"
	"github.com/sluice-gateway/sluice/internal/bench/trace"
)

func main() {
	file := flag.String("trace", "", "a trace to use in the place of the recorded hour: JSON lines, with or without gzip")
	docs := flag.String("docs", "", "directory of routing.md, whose section and plots are written; empty: print the tables")
	flag.Parse()
	if err := run(*file, *docs); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(file, docs string) error {
	requests, err := trace.Open(file)
	if err != nil {
		return err
	}
	s := newSweep(requests)
	s.run()
	if docs == "" {
		fmt.Println(s.document())
		return nil
	}
	for _, line := range missed(s.all()) {
		fmt.Println("not met:", line)
	}
	for name, svg := range map[string]string{"routing-trace.svg": s.plotTrace(), "routing-made.svg": s.plotMade()} {
		if err := report.Write(filepath.Join(docs, name), svg); err != nil {
			return err
		}
	}
	return report.WriteSection(filepath.Join(docs, "routing.md"), "virtual time", s.document())
}

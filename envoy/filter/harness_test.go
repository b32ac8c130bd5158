package filter

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// TestB6_NothingIsWrongUnderSanitizers runs the filter in a stand-in for Envoy. Its gateway says
// anything. SLUICE_STORM is how many requests each run has (default 2,000).
func TestB6_NothingIsWrongUnderSanitizers(t *testing.T) {
	n := 2000
	if v, err := strconv.Atoi(os.Getenv("SLUICE_STORM")); err == nil {
		n = v
	}
	underSanitizers(t, "storm", func(t *testing.T, program, socket string) {
		seed := strconv.Itoa(rand.IntN(1 << 30))
		out, err := exec.Command(program, socket, strconv.Itoa(n), seed).CombinedOutput()
		if err != nil {
			t.Fatalf("seed %s: %v\n%s", seed, err, out)
		}
		t.Logf("seed %s: %s", seed, out)
	})
}

// TestB6_ACancelIsNotLostWhileTheRequestGoesOn cancels a request while the worker carries out its
// Go.
func TestB6_ACancelIsNotLostWhileTheRequestGoesOn(t *testing.T) {
	underSanitizers(t, "cancel", succeed)
}

// TestB6_AnAnswerInAnInletIsReadBeforeTheWorkerGivesUp has the worker run late, after the deadline
// of a request whose answer waits in the inlet.
func TestB6_AnAnswerInAnInletIsReadBeforeTheWorkerGivesUp(t *testing.T) {
	underSanitizers(t, "stall", succeed)
}

// TestB6_ALiveIsKeptWithItsEnd breaks connections whose queues hold more than is kept.
func TestB6_ALiveIsKeptWithItsEnd(t *testing.T) {
	underSanitizers(t, "ends", succeed)
}

// TestB6_X14_ConfigurationsOfTheFilter reads lists of headers, and such that are none.
func TestB6_X14_ConfigurationsOfTheFilter(t *testing.T) {
	underSanitizers(t, "config", succeed)
}

// succeed runs a program, which asserts what it shows.
func succeed(t *testing.T, program, socket string) {
	ctx, stop := context.WithTimeout(t.Context(), testTimeout)
	defer stop()
	if out, err := exec.CommandContext(ctx, program, socket).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// underSanitizers runs a program of harness under each sanitizer.
func underSanitizers(t *testing.T, name string, run func(t *testing.T, program, socket string)) {
	t.Parallel()
	for sanitizers := range objects {
		t.Run(sanitizers, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "harness") // short, for the path of the socket
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(dir)
			program := filepath.Join(dir, name)
			link(t, sanitizers, program, compiled(t, sanitizers), "harness/"+name+".c")
			run(t, program, filepath.Join(dir, "s"))
		})
	}
}

// objects has a function for each choice of sanitizers. It compiles the filter and the stand-in for
// Envoy, which all programs of harness have in common, and returns the object files.
var objects = map[string]func() ([]string, error){
	"address,undefined": sync.OnceValues(func() ([]string, error) { return compileObjects("address,undefined") }),
	"thread":            sync.OnceValues(func() ([]string, error) { return compileObjects("thread") }),
}

func compileObjects(sanitizers string) ([]string, error) {
	sources, err := filepath.Glob("src/*.c")
	if err != nil {
		return nil, err
	}
	sources = append(sources, "harness/envoy.c")
	for i, source := range sources {
		if sources[i], err = filepath.Abs(source); err != nil {
			return nil, err
		}
	}
	dir := filepath.Join(workDir, sanitizers)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	if err := cc(dir, sanitizers, append(sources, "-c")...); err != nil {
		return nil, err
	}
	return filepath.Glob(filepath.Join(dir, "*.o"))
}

// link makes a program of objects and sources.
func link(t *testing.T, sanitizers, program string, objects []string, more ...string) {
	t.Helper()
	if err := cc("", sanitizers, slices.Concat(objects, more, []string{"-o", program})...); err != nil {
		t.Fatal(err)
	}
}

// compiled returns the object files of the filter and of the stand-in for Envoy.
func compiled(t *testing.T, sanitizers string) []string {
	t.Helper()
	onlyOnce(t)
	files, err := objects[sanitizers]()
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// cc runs the C compiler in a directory.
func cc(dir, sanitizers string, more ...string) error {
	c := exec.Command("cc", append([]string{"-std=c11", "-D_GNU_SOURCE", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread",
		"-fsanitize=" + sanitizers, "-fno-sanitize-recover=all"}, more...)...)
	c.Dir = dir
	if out, err := c.CombinedOutput(); err != nil {
		return &buildError{out, err}
	}
	return nil
}

// TestB6_WhatFuzzingFoundIsHarmless repeats the inputs with which `make fuzz` reaches all it
// reaches of the filter.
func TestB6_WhatFuzzingFoundIsHarmless(t *testing.T) {
	t.Parallel()
	corpus, err := os.ReadFile("harness/corpus.txt")
	if err != nil {
		t.Fatal(err)
	}
	const sanitizers = "address,undefined"
	program := filepath.Join(t.TempDir(), "fuzz")
	target := slices.DeleteFunc(slices.Clone(compiled(t, sanitizers)), func(f string) bool { return filepath.Base(f) == "thread.o" }) // the target includes it
	link(t, sanitizers, program, target, "-DREPLAY", "harness/fuzz.c")
	replay := exec.Command(program)
	replay.Stdin = bytes.NewReader(corpus)
	out, err := replay.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if n := bytes.Count(corpus, []byte("\n")); n < 50 || !strings.Contains(string(out), fmt.Sprintf("%d inputs\n", n)) {
		t.Errorf("%d lines; %s", n, out)
	}
}

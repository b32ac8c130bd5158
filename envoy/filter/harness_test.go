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
	underSanitizers(t, "cancel", func(t *testing.T, program, socket string) {
		ctx, stop := context.WithTimeout(t.Context(), testTimeout)
		defer stop()
		if out, err := exec.CommandContext(ctx, program, socket).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	})
}

// TestB6_ALiveIsKeptWithItsEnd breaks connections whose queues hold more than is kept.
func TestB6_ALiveIsKeptWithItsEnd(t *testing.T) {
	underSanitizers(t, "ends", func(t *testing.T, program, _ string) {
		if out, err := exec.CommandContext(t.Context(), program).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	})
}

// TestB6_X14_ConfigurationsOfTheFilter reads lists of headers, and such that are none.
func TestB6_X14_ConfigurationsOfTheFilter(t *testing.T) {
	underSanitizers(t, "config", func(t *testing.T, program, _ string) {
		if out, err := exec.CommandContext(t.Context(), program).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	})
}

// underSanitizers runs a program of harness under each sanitizer.
func underSanitizers(t *testing.T, name string, run func(t *testing.T, program, socket string)) {
	sources, err := filepath.Glob("src/*.c")
	if err != nil {
		t.Fatal(err)
	}
	for _, sanitizers := range []string{"address,undefined", "thread"} {
		t.Run(sanitizers, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "harness") // short, for the path of the socket
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(dir)
			program := filepath.Join(dir, name)
			compile(t, sanitizers, program, append(sources, "harness/"+name+".c")...)
			run(t, program, filepath.Join(dir, "s"))
		})
	}
}

// compile compiles a program with the stand-in for Envoy.
func compile(t *testing.T, sanitizers, program string, more ...string) {
	t.Helper()
	onlyOnce(t)
	args := append([]string{"-std=c11", "-D_GNU_SOURCE", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread",
		"-fsanitize=" + sanitizers, "-fno-sanitize-recover=all", "-o", program, "harness/envoy.c"}, more...)
	if out, err := exec.Command("cc", args...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// TestB6_WhatFuzzingFoundIsHarmless repeats the inputs with which `make fuzz` reaches all it
// reaches of the filter.
func TestB6_WhatFuzzingFoundIsHarmless(t *testing.T) {
	corpus, err := os.ReadFile("harness/corpus.txt")
	if err != nil {
		t.Fatal(err)
	}
	sources, err := filepath.Glob("src/*.c")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "fuzz")
	sources = slices.DeleteFunc(sources, func(f string) bool { return f == "src/thread.c" }) // the target includes it
	compile(t, "address,undefined", program, append(sources, "-DREPLAY", "harness/fuzz.c")...)
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

package filter

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
)

// TestB6_NothingIsWrongUnderSanitizers runs the filter in a stand-in for Envoy. Its gateway says
// anything. SLUICE_STORM is how many requests each run has (default 2,000).
func TestB6_NothingIsWrongUnderSanitizers(t *testing.T) {
	n := 2000
	if v, err := strconv.Atoi(os.Getenv("SLUICE_STORM")); err == nil {
		n = v
	}
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
			program, seed := filepath.Join(dir, "harness"), strconv.Itoa(rand.IntN(1<<30))
			args := append([]string{"-std=c11", "-D_GNU_SOURCE", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread",
				"-fsanitize=" + sanitizers, "-fno-sanitize-recover=all", "-o", program, "harness/harness.c"}, sources...)
			if out, err := exec.Command("cc", args...).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			out, err := exec.Command(program, filepath.Join(dir, "s"), strconv.Itoa(n), seed).CombinedOutput()
			if err != nil {
				t.Fatalf("seed %s: %v\n%s", seed, err, out)
			}
			t.Logf("seed %s: %s", seed, out)
		})
	}
}

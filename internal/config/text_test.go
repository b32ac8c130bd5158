package config

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/engines"
)

func TestParseSize(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Size{
		"0": 0, "1": 1, "10B": 10, "1kB": 1000, "1KiB": 1024, "32MiB": 32 << 20, "1.5GiB": 3 << 29, "2 TB": 2e12, "1TiB": 1 << 40,
		"16Gi": 16 << 30, "1.5Mi": 3 << 19, "2Ki": 2048, "1 Ti": 1 << 40,
		"9223372036854775807": math.MaxInt64, "0.5kB": 500,
	} {
		if got, err := ParseSize(text); err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "B", "-1", "-1KiB", "1.5", "1kb", "1 K", "1G", "1gi", "i", "1e3B", "0x1KiB", "infB", "nan", "8388608TiB", "9223372036854775808", "1..5KiB", "1  KiB"} {
		if got, err := ParseSize(text); err == nil {
			t.Errorf("%q: %d, want an error", text, got)
		}
	}
}

func TestSizeString(t *testing.T) {
	t.Parallel()
	for size, want := range map[Size]string{0: "0B", 1: "1B", 1000: "1000B", 1024: "1KiB", 1536: "1536B", 32 << 20: "32MiB", 1 << 30: "1GiB", 1 << 40: "1TiB"} {
		if got := size.String(); got != want {
			t.Errorf("%d: %s, want %s", int64(size), got, want)
		}
		if back, err := ParseSize(want); err != nil || back != size {
			t.Errorf("%s reads as %d, %v", want, back, err)
		}
	}
}

func TestNearest(t *testing.T) {
	t.Parallel()
	known := []string{"listen", "models", "tenants", "max_body", "min"}
	for name, want := range map[string]string{
		"lisen": "listen", "model": "models", "tenats": "tenants", "maxbody": "max_body", "Models": "models", "mni": "min", "mxx": "", "max": "", "xyz": "", "": "",
		strings.Repeat("models", 1000): "",
	} {
		if got := closest(name, known); got != want {
			t.Errorf("%.20q: %q, want %q", name, got, want)
		}
	}
}

func TestDistance(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"", "ab", 2}, {"kitten", "sitting", 3}, {"abc", "abc", 0}, {"flaw", "lawn", 2}, {"modles", "models", 1}, {"ca", "abc", 3}} {
		if got := editDistance(tt.a, tt.b); got != tt.want {
			t.Errorf("%q to %q: %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}

func TestShown(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"a-b.c_1": "a-b.c_1", "": `""`, "a b": `"a b"`, "a\n": `"a\n"`, "\xff": `"\xff"`, strings.Repeat("a", 100): `"` + strings.Repeat("a", 60) + `…"`,
	} {
		if got := quoted(name); got != want {
			t.Errorf("%q: %s, want %s", name, got, want)
		}
	}
}

// TestTasksAreTheTasks checks that the file accepts the tasks of the built-in engines, and no
// other.
func TestTasksAreTheTasks(t *testing.T) {
	t.Parallel()
	var tasks []engines.Task
	for _, engine := range engines.Builtin() {
		for _, version := range engine.Versions {
			tasks = append(tasks, version.Tasks...)
		}
	}
	slices.Sort(tasks)
	tasks = slices.Compact(tasks)
	for _, task := range append(slices.Clone(tasks), "painting") {
		faults := faultsOf(t, "models: [{name: a, launcher: upstream, upstreams: [http://h], task: "+string(task)+"}]")
		if known := slices.Contains(tasks, task); known != (len(faults) == 0) {
			t.Errorf("%s: %q", task, faults)
		}
	}
}

package envoy

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestComplaint(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, out, want string }{
		{"marks are cut", "[2026-01-02 03:04:05.678][9][critical][main] [source/server/x.cc:1] error initializing: [bad] field\n" +
			"[2026-01-02 03:04:05.678][9][info][main] [source/server/x.cc:2] exiting\n", "error initializing: [bad] field"},
		{"several", "[1][9][error][a] [b] one\n[1][9][critical][a] two\n", "one; two"},
		{"no log line", "PARSE ERROR: Argument: --x\n             Couldn't find match\n\n", "Couldn't find match"},
		{"nothing", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := validationErrors([]byte(tt.out)); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestArguments(t *testing.T) {
	t.Parallel()
	got := New(Config{}).arguments("/b.json")
	want := []string{"--config-path", "/b.json", "--disable-hot-restart", "--drain-time-s", "1860", "--log-level", "warn", "--component-log-level", "misc:error"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("defaults (-want +got):\n%s", d)
	}
	e := New(Config{DrainTime: 1500 * time.Millisecond, Concurrency: 3})
	got = append(e.arguments("/b.json"), e.concurrency()...)
	want = []string{"--config-path", "/b.json", "--disable-hot-restart", "--drain-time-s", "2", "--log-level", "warn", "--component-log-level", "misc:error", "--concurrency", "3"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("a drain time is rounded up (-want +got):\n%s", d)
	}
}

package envoy

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap/zapcore"

	"github.com/sluice-gateway/sluice/internal/testutil"
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

// A gateway that ends while it checks a new bootstrap leaves the running Envoy to the next gateway,
// and tells of no fault.
func TestX20_AnEndDuringTheCheckIsNoFault(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	first, stop := b.live(t)
	pid, program := first.Status().PID, b.config.Binary
	b.restart(t, stop)
	checks := filepath.Join(t.TempDir(), "checks")
	b.config.Binary = filepath.Join(t.TempDir(), "envoy")
	script := fmt.Sprintf("#!/bin/sh\n[ $1 = --mode ] || exec %s \"$@\"\ntouch %s\nexec sleep 60\n", program, checks)
	testutil.WriteProgram(t, b.config.Binary, script)
	b.config.Concurrency++
	_, stop = b.run(t)
	eventually(t, func() error {
		_, err := os.Stat(checks)
		return err
	})
	if err := stop(); err != nil || !runs(pid) {
		t.Errorf("%v, the Envoy runs: %v", err, runs(pid))
	}
	if n := b.logs.FilterLevelExact(zapcore.ErrorLevel).Len(); n > 0 {
		t.Errorf("%d errors: %v", n, b.logs.FilterLevelExact(zapcore.ErrorLevel).All())
	}
}

package gateway

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"github.com/sluice-gateway/sluice/envoy"
	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/internal/process"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// conditionOf returns the condition of a type that is about the whole gateway.
func conditionOf(g *Gateway, kind condition.Type) condition.Condition {
	for _, c := range g.conditions.List() {
		if c.Type == kind && c.Subject == "" {
			return c
		}
	}
	return condition.Condition{}
}

// A start that fails ends what it has started, and nothing that was there before. Before, it took
// the way of a clean stop, which ended both.
func TestX5_AFailedStartLeavesWhatItHasAdopted(t *testing.T) {
	t.Parallel()
	for _, adopted := range []bool{true, false} {
		path := t.TempDir()
		dir := claimed(t, path)
		pid := 0
		if adopted {
			p, err := dir.Start(process.Spec{Name: "earlier", Purpose: "test", Command: []string{"sleep", "1000"}})
			if err != nil {
				t.Fatal(err)
			}
			pid = p.PID()
		}
		c := configOf(t, path, "acme", "old", "5")
		g, err := New(dir, Options{Config: c, Version: "test", Log: zap.NewNop(), Envoy: "/no/such/envoy"})
		if err != nil {
			t.Fatal(err)
		}
		if err := runGateway(t.Context(), g); err == nil || !strings.Contains(err.Error(), "/no/such/envoy") {
			t.Errorf("Run = %v, want the fault of the component", err)
		}
		if adopted && !alive(pid) {
			t.Error("a start that failed ended a process of an earlier run")
		}
		if !adopted && len(dir.Records()) > 0 {
			t.Errorf("a start that failed left %v", dir.Records())
		}
		if err := dir.EndAll(t.Context(), 0); err != nil {
			t.Error(err)
		}
	}
}

// The condition tells that nothing can be written, and is over when writing works again.
func TestX5_StateNotWritable(t *testing.T) {
	path := t.TempDir()
	g := newGateway(t, claimed(t, path), configOf(t, path, "acme", "old", "5"))
	writable := testutil.ReadOnly(t, path)
	synctest.Test(t, func(t *testing.T) {
		go g.watchState(t.Context()) //nolint:errcheck // nil
		synctest.Wait()
		c := conditionOf(g, condition.StateNotWritable)
		if c.Status != condition.True || !strings.Contains(c.Message, "read-only") || !strings.Contains(c.Message, path) {
			t.Errorf("condition %+v while nothing can be written", c)
		}
		writable()
		time.Sleep(stateRetryInterval)
		synctest.Wait()
		if c := conditionOf(g, condition.StateNotWritable); c.Status != condition.False {
			t.Errorf("condition %+v although writing works again", c)
		}
	})
}

// The condition tells that a write does not end, as on a file server that has gone. It is over when
// the write has ended.
func TestX5_AWriteThatDoesNotEnd(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	g := newGateway(t, claimed(t, path), configOf(t, path, "acme", "old", "5"))
	pipe := filepath.Join(path, "writable.probe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil { // whoever opens it to write waits for a reader
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- g.watchState(ctx) }()
	status := func(want condition.Status) {
		t.Helper()
		testutil.Eventually(t, "the condition is "+string(want), func() bool {
			c := conditionOf(g, condition.StateNotWritable)
			return c.Status == want && (want == condition.False || c.Reason == "WriteHangs" && strings.Contains(c.Message, path))
		})
	}
	status(condition.True)
	reader, err := os.OpenFile(pipe, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	status(condition.False)
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A start whose state directory hangs says so, and can be stopped.
func TestX5_AStartWhoseDiskHangs(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	pipe := filepath.Join(path, "id")
	if err := errors.Join(os.Chmod(path, 0o700), unix.Mkfifo(pipe, 0o600)); err != nil { // whoever reads it waits for a writer
		t.Fatal(err)
	}
	core, logs := observer.New(zap.WarnLevel)
	c := configOf(t, path, "acme", "old", "5")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, Options{Config: c, Log: zap.New(core)}) }()
	testutil.Eventually(t, "the start says why it waits", func() bool { return logs.FilterMessageSnippet("does not answer").Len() == 1 })
	stop()
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), path+" does not answer") {
			t.Errorf("the start ended: %v", err)
		}
	case <-time.After(testutil.Patience):
		t.Error("the start did not end")
	}
	if err := os.WriteFile(pipe, []byte("anid\n"), 0o600); err != nil { // for the one that still waits
		t.Error(err)
	}
}

// A stop that ends at once writes nothing in the state directory. Whoever removes the directory
// then would meet a file that has just come.
func TestX5_AStopThatEndsWritesNoFile(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	dir := claimed(t, path)
	kept := filepath.Join(path, "writable.probe") // a try to write there removes it
	if err := os.WriteFile(kept, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan struct{})
		unhurried, drained := context.WithCancel(t.Context())
		go stops{ended: ended}.exitOnHang(unhurried, time.Minute, dir, zap.NewNop())
		synctest.Wait()
		drained()
		synctest.Wait()
		close(ended)
	})
	if _, err := os.Stat(kept); err != nil {
		t.Error(err)
	}
}

// The condition tells that somebody has removed the files of the directory, although new ones can
// be written there.
func TestX5_RemovedStateDirectory(t *testing.T) {
	for name, remove := range map[string]func(path string) error{
		"the files": func(path string) error { return os.Remove(filepath.Join(path, "claim.lock")) },
		"all":       os.RemoveAll,
	} {
		t.Run(name, func(t *testing.T) {
			path := t.TempDir()
			g := newGateway(t, claimed(t, path), configOf(t, path, "acme", "old", "5"))
			synctest.Test(t, func(t *testing.T) {
				go g.watchState(t.Context()) //nolint:errcheck // nil
				synctest.Wait()
				if c := conditionOf(g, condition.StateNotWritable); c.Status != condition.False {
					t.Errorf("condition %+v before", c)
				}
				if err := remove(path); err != nil {
					t.Fatal(err)
				}
				time.Sleep(stateCheckInterval)
				synctest.Wait()
				if c := conditionOf(g, condition.StateNotWritable); c.Reason != "Removed" || !strings.Contains(c.Message, path) {
					t.Errorf("condition %+v after the files were removed", c)
				}
			})
		})
	}
}

func TestX13_ConditionsOfAnEnvoyThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	since := time.Now().Add(-12 * time.Second)
	for _, test := range []struct {
		status envoy.Status
		reason string
		says   string
	}{
		{envoy.Status{State: envoy.StateLive}, "", ""},
		{envoy.Status{State: envoy.StateStarting, PID: 7}, "Starting", "Envoy is starting"},
		{envoy.Status{State: envoy.StateDown}, "Starting", "Envoy is starting"},
		{envoy.Status{State: envoy.StateDown, Reason: "no space left on device"}, "NotLive", "no space left on device"},
		{envoy.Status{State: envoy.StateLive, PID: 7, SilentSince: since}, "AdminSilent", "(pid 7) has not answered on its admin interface for 12s"},
		{envoy.Status{State: envoy.StateStarting, PID: 7, SilentSince: since, Hung: true}, "Hung", "for 12s nor on its listener"},
	} {
		got := envoyProcessConditions(test.status)
		if test.reason == "" {
			if len(got) > 0 {
				t.Errorf("%+v: %+v", test.status, got)
			}
			continue
		}
		if len(got) != 1 || got[0].Reason != test.reason || !strings.Contains(got[0].Message, test.says) {
			t.Errorf("%+v: %+v, want %s", test.status, got, test.reason)
		}
		if does, _ := describeEnvoy(test.status); test.status.State == envoy.StateDown && !strings.Contains(does, test.says) {
			t.Errorf("%+v: readiness says %q", test.status, does)
		}
		// Sluice starts no Envoy in the place of one that it leaves alone.
		if alone := test.reason == "AdminSilent"; alone != (got[0].Action != "") {
			t.Errorf("%s: the action is %q", test.reason, got[0].Action)
		}
	}
}

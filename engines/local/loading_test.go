package local

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/supervise"
)

// TestU8_Stall: an engine that shows no progress is given up after StartStall, long before
// StartTimeout. One that logs is not.
func TestU8_Stall(t *testing.T) {
	t.Parallel()
	for what, gone := range map[string]bool{"loading": true, "chatty": false} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			w := newFixture(t)
			w.tell("loading")
			w.tell(what)
			c := w.config()
			c.BackOff = supervise.BackOff{First: time.Second, Max: time.Second} // long enough to be seen
			l := New(c)
			m := w.model("chat", 1)
			m.StartTimeout, m.StartStall = time.Hour, 1500*time.Millisecond
			l.Set([]Model{m})
			run(t, l)
			if !gone {
				w.eventually("it logs for three times as long as it may be silent", func() bool {
					r := w.replica("chat-0")
					return r.State == engines.Starting && lines(r.Reason) >= 45
				})
				return
			}
			// On a busy machine the process may not even listen in that time. It starts again then.
			var r engines.Replica
			w.eventually("it fails, and says why", func() bool {
				r = w.replica("chat-0")
				return r.State == engines.Failed && strings.HasPrefix(r.Reason, "no progress for 1.5s: probe /health answers 503")
			})
			if r.Failure != engines.TooSlow || r.FailedStarts == 0 || r.NextStart.IsZero() {
				t.Errorf("%+v", r)
			}
		})
	}
}

// lines returns the number in the last line of an engine that is chatty.
func lines(reason string) (n int) {
	_, _ = fmt.Sscanf(reason, "loaded %d", &n)
	return n
}

// TestU9_FailedStarts: each start that ends before the replica is ready counts. A replica that
// becomes ready has none and tells how long it took.
func TestU9_FailedStarts(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.tell("exit")
	c := w.config()
	c.BackOff = supervise.BackOff{First: time.Millisecond, Max: time.Millisecond}
	l := New(c)
	l.Set([]Model{w.model("chat", 1)})
	run(t, l)
	w.eventually("it has failed three times", func() bool { return w.replica("chat-0").FailedStarts >= 3 })
	if r := w.replica("chat-0"); r.Failure != engines.NoWeights {
		t.Errorf("its log ends with %q, and the class is %s", r.Reason, r.Failure)
	}
	if err := os.Remove(filepath.Join(w.folder, "exit")); err != nil {
		t.Fatal(err)
	}
	w.eventually("it is ready", func() bool { return w.replica("chat-0").State == engines.Ready })
	if r := w.replica("chat-0"); r.FailedStarts != 0 || r.Failure != "" || r.LoadTime <= 0 || !r.NextStart.IsZero() {
		t.Errorf("%+v", r)
	}
}

// TestProgressByData: a process that is silent and reads is loading.
func TestProgressByData(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.tell("loading")
	w.tell("reads")
	l := New(w.config())
	m := w.model("chat", 1)
	m.StartTimeout, m.StartStall = time.Hour, 2*time.Second
	l.Set([]Model{m})
	run(t, l)
	w.eventually("it has read for longer than it may be silent", func() bool {
		_, err := os.Stat(filepath.Join(w.folder, "has read"))
		return err == nil
	})
	if r := w.replica("chat-0"); r.State != engines.Starting {
		t.Errorf("it is %s: %s", r.State, r.Reason)
	}
}

// TestU8_AReloadReachesAStartThatRuns: changed times bound an engine that loads already.
func TestU8_AReloadReachesAStartThatRuns(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.tell("loading")
	c := w.config()
	c.BackOff = supervise.BackOff{First: time.Hour, Max: time.Hour}
	l := New(c)
	m := w.model("chat", 1)
	m.StartTimeout = time.Hour
	l.Set([]Model{m})
	run(t, l)
	w.eventually("it starts", func() bool { return w.replica("chat-0").State == engines.Starting })
	m.StartTimeout = 300 * time.Millisecond
	l.Set([]Model{m})
	w.eventually("it fails", func() bool { return w.replica("chat-0").State == engines.Failed })
	if r := w.replica("chat-0"); !strings.HasPrefix(r.Reason, "not ready after 300ms") {
		t.Errorf("%+v", r)
	}
}

package envoy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/process"
)

// replaceable runs an Envoy with a stream and ends its Run, so that the next Run of the testbed
// replaces it.
func replaceable(t *testing.T, b *testbed) (pid int, running io.ReadCloser) {
	t.Helper()
	first, stop := b.live(t)
	running = stream(t, address(t, first.Admin()))
	b.restart(t, stop)
	b.another()
	return first.Status().PID, running
}

// replaced replaces an Envoy that has a stream, by one that is live.
func replaced(t *testing.T, b *testbed) (old int, running io.ReadCloser, second *Envoy, stop func() error) {
	t.Helper()
	old, running = replaceable(t, b)
	second, stop = b.live(t)
	eventually(t, func() error { return predecessors(second, old) })
	return old, running, second, stop
}

// another has the next Run of the testbed find that the running Envoy differs.
func (b *testbed) another() { b.config.Bootstrap.Cluster += "-" }

// predecessors returns an error if the predecessors are other Envoys than these.
func predecessors(e *Envoy, pids ...int) error {
	var got []int
	for _, l := range e.Status().Predecessors {
		got = append(got, l.PID)
	}
	if !slices.Equal(got, pids) {
		return fmt.Errorf("the predecessors are %v, want %v", got, pids)
	}
	return nil
}

// refuses returns an error while an Envoy still accepts connections.
func refuses(t *testing.T, b *testbed, pid int) error {
	t.Helper()
	for _, i := range Running(b.dir, b.config.Bootstrap) {
		if i.PID != pid {
			continue
		}
		if state, err := i.Admin.ServerState(t.Context()); err != nil || state != serverDraining {
			return fmt.Errorf("the state of the first Envoy is %q, %w", state, err)
		}
	}
	return nil
}

// gone checks that an Envoy has ended.
func gone(t *testing.T, pid int) {
	t.Helper()
	if runs(pid) {
		t.Errorf("the Envoy with pid %d still runs", pid)
	}
}

// An Envoy that is replaced carries its stream to the end, and another one serves meanwhile.
func TestReplacedEnvoyCarriesItsStreams(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	var nodes atomic.Pointer[[]string]
	b.config.OnPredecessors = func(n []string) { nodes.Store(&n) }
	old, running, second, _ := replaced(t, b)
	now := second.Status()
	if now.PID == old || now.Adopted {
		t.Errorf("status %+v, old pid %d", now, old)
	}
	eventually(t, func() error {
		if l := second.Status().Predecessors; len(l) != 1 || l[0].Requests != 1 || l[0].Version == "" || time.Since(l[0].Since) > testTimeout {
			return fmt.Errorf("predecessors: %+v", l)
		}
		return nil
	})
	if n := *nodes.Load(); !slices.Equal(n, []string{"sluice"}) {
		t.Errorf("the nodes of predecessors are %q", n)
	}
	eventually(t, func() error { return refuses(t, b, old) })
	for range 50 {
		expectAnswer(t, address(t, second.Admin()))
	}
	if n, err := second.Admin().InFlight(t.Context()); err != nil || n != 0 {
		t.Errorf("the second Envoy has %d requests, %v: the first one's admin interface answers", n, err)
	}
	if !runs(old) {
		t.Fatal("the first Envoy has ended, and its stream has not")
	}
	b.finish(t, running)
	eventually(t, func() error { return predecessors(second) })
	gone(t, old)
	eventually(t, func() error {
		if n := *nodes.Load(); len(n) > 0 {
			return fmt.Errorf("the nodes of predecessors are %q", n)
		}
		return nil
	})
	if n := b.logs.FilterMessage("running Envoy replaced").Len(); n != 1 {
		t.Errorf("it was logged %d times", n)
	}
}

// expectAnswer makes a request on a connection of its own.
func expectAnswer(t *testing.T, url string) {
	t.Helper()
	res, err := fetch(url + "/quick")
	if err != nil {
		t.Error(err)
		return
	}
	defer res.Body.Close() //nolint:errcheck // it was read
	if text, err := io.ReadAll(res.Body); err != nil || string(text) != "begin\n" {
		t.Errorf("%s %q, %v", res.Status, text, err)
	}
}

// While an Envoy is replaced, the one or the other accepts each new connection. At any time more of
// them wait at its listener than it can accept at once.
func TestReplacingRefusesNoConnection(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	first, stop := b.live(t)
	url, old := address(t, first.Admin()), first.Status().PID
	var clients sync.WaitGroup
	end := make(chan struct{})
	var served atomic.Int64
	for range 32 {
		clients.Go(func() {
			for {
				select {
				case <-end:
					return
				case <-time.After(2 * time.Millisecond): // else a fast machine runs out of ports
				}
				if res, err := fetch(url + "/quick"); err != nil {
					t.Error(err)
				} else {
					_ = res.Body.Close()
					served.Add(1)
				}
			}
		})
	}
	b.restart(t, stop)
	b.another()
	second, stop := b.live(t)
	// The next one comes while the first one still accepts connections.
	b.restart(t, stop)
	b.another()
	third, _ := b.live(t)
	eventually(t, func() error { return predecessors(third) })
	close(end)
	clients.Wait()
	gone(t, old)
	gone(t, second.Status().PID)
	t.Logf("%d requests", served.Load())
}

// The next gateway drains the predecessor, which keeps its name, its sockets and its time.
func TestPredecessorOutlivesTheGateway(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	old, running, second, stop := replaced(t, b)
	since := second.Status().Predecessors[0].Since
	b.restart(t, stop)
	third, _ := b.live(t)
	if s := third.Status(); s.PID != second.Status().PID || !s.Adopted {
		t.Errorf("status %+v, want the second Envoy", s)
	}
	eventually(t, func() error { return predecessors(third, old) })
	if got := third.Status().Predecessors[0].Since; !got.Equal(since) {
		t.Errorf("it was replaced at %v, before at %v", got, since)
	}
	b.finish(t, running)
	eventually(t, func() error { return predecessors(third) })
	gone(t, old)
}

// There may be several predecessors. Each one has an ordinal of its own, which becomes free again.
func TestSeveralPredecessors(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	var reported atomic.Pointer[[]string]
	b.config.OnPredecessors = func(n []string) { reported.Store(&n) }
	old, running, second, stop := replaced(t, b)
	eventually(t, func() error { return refuses(t, b, old) })
	slow := stream(t, address(t, second.Admin()))
	b.restart(t, stop)
	b.another()
	third, stop := b.live(t)
	eventually(t, func() error { return predecessors(third, old, second.Status().PID) })
	var nodes []string
	for _, i := range Running(b.dir, b.config.Bootstrap) {
		nodes = append(nodes, i.Node)
	}
	if slices.Sort(nodes); !slices.Equal(nodes, []string{"sluice", "sluice-2", "sluice-3"}) {
		t.Errorf("nodes %q", nodes)
	}
	b.finish(t, running)
	_ = slow.Close()
	eventually(t, func() error { return predecessors(third) })
	b.restart(t, stop)
	b.another()
	fourth, _ := b.live(t)
	if socket := fourth.Admin().Socket; socket != b.config.Bootstrap.AdminSocket {
		t.Errorf("the admin socket of the fourth Envoy is %s, and the first ordinal was free", socket)
	}
	if n := *reported.Load(); slices.Contains(n, "sluice") {
		t.Errorf("the nodes of predecessors are %q, and the fourth Envoy is none", n)
	}
}

// A successor that gets no configuration accepts nothing, and so the first Envoy goes on to accept.
func TestEnvoyStaysUntilItsSuccessorAccepts(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	first, stop := b.live(t)
	url := address(t, first.Admin())
	b.restart(t, stop)
	b.another()
	b.stopControl()
	second, _ := b.run(t)
	eventually(t, func() error { return predecessors(second, first.Status().PID) })
	eventually(t, func() error {
		state, err := second.Admin().ServerState(t.Context())
		if err == nil && state == serverLive {
			err = errors.New("the second Envoy is live without a listener")
		}
		return err
	})
	expectAnswer(t, url)
	b.control.serve(t, b.config.Bootstrap.ControlSocket)
	eventually(t, func() error { return predecessors(second) })
	expectAnswer(t, url)
	gone(t, first.Status().PID)
}

// A successor that has refused its listener is live, and accepts nothing.
func TestEnvoyStaysWhileItsSuccessorHasNoListener(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	first, stop := b.live(t)
	url := address(t, first.Admin())
	b.restart(t, stop)
	b.another()
	taken, err := net.Listen("tcp", "127.0.0.1:0") // it does not share its port
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close() //nolint:errcheck // nobody connects
	b.config.Listen = taken.Addr().(*net.TCPAddr).AddrPort()
	b.control.listener = packed(t, listener(t, b.config.Listen))
	second, _ := b.live(t)
	time.Sleep(2 * steerTime) // in this time the first one was told to close its listener
	expectAnswer(t, url)
	if err := predecessors(second, first.Status().PID); err != nil {
		t.Error(err)
	}
}

// A predecessor that hangs gets no new connections, and is ended after a while.
func TestPredecessorThatHangs(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	b.config.HangTimeout = 2 * time.Second
	first, stop := b.live(t)
	url, old := address(t, first.Admin()), first.Status().PID
	b.restart(t, stop)
	b.another()
	b.stopControl()
	second, _ := b.run(t)
	eventually(t, func() error { return predecessors(second, old) })
	if err := syscall.Kill(old, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	b.control.serve(t, b.config.Bootstrap.ControlSocket)
	eventually(t, func() error { return inState(second, StateLive) })
	eventually(t, func() error { return predecessors(second) })
	gone(t, old)
	for range 50 {
		expectAnswer(t, url)
	}
	if b.logs.FilterMessage("hung Envoy ended").FilterField(zap.Int("pid", old)).Len() == 0 {
		t.Error("it was not logged")
	}
}

// The time of a predecessor is bounded, also if a request never ends.
func TestPredecessorHasItsTime(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	b.config.PredecessorTimeout = func() time.Duration { return 100 * time.Millisecond }
	old, running := replaceable(t, b)
	second, _ := b.live(t)
	eventually(t, func() error {
		if runs(old) {
			return errors.New("the first Envoy still runs")
		}
		return predecessors(second)
	})
	if _, err := io.ReadAll(running); err == nil {
		t.Error("a cut stream ended cleanly")
	}
	if n := b.logs.FilterMessage("replaced Envoy ended with requests").FilterField(zap.Int("requests", 1)).Len(); n != 1 {
		t.Errorf("%d lines of the log say that a request was cut", n)
	}
}

// A client that keeps its connection is told to close it by the response to its next request.
func TestReplacedEnvoyClosesConnections(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	first, stop := b.live(t)
	url, old := address(t, first.Admin()), first.Status().PID
	transport := new(http.Transport)
	defer transport.CloseIdleConnections()
	get := func() bool {
		res, err := (&http.Client{Transport: transport}).Get(url + "/quick")
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close() //nolint:errcheck // it was read
		if _, err := io.ReadAll(res.Body); err != nil {
			t.Fatal(err)
		}
		return res.Close
	}
	if get() {
		t.Error("a connection was closed before")
	}
	b.restart(t, stop)
	b.another()
	second, _ := b.live(t)
	eventually(t, func() error { return refuses(t, b, old) })
	if err := predecessors(second, old); err != nil {
		t.Errorf("a client has a connection, and %v", err)
	}
	if !get() {
		t.Error("the connection to the predecessor is kept")
	}
	eventually(t, func() error { return predecessors(second) })
	gone(t, old)
}

// Stop drains predecessors as well, also before Run has found them.
func TestStopDrainsPredecessors(t *testing.T) {
	t.Parallel()
	for _, ran := range []bool{true, false} {
		t.Run(fmt.Sprintf("after Run %v", ran), func(t *testing.T) {
			t.Parallel()
			b := newTestbed(t)
			old, running, second, stop := replaced(t, b)
			e := second
			if !ran {
				b.restart(t, stop)
				c := b.config
				c.Dir = b.dir
				e = New(c)
			}
			done := stopInBackground(t.Context(), e, testTimeout)
			eventually(t, func() error { return inState(e, StateDraining) })
			b.finish(t, running)
			if err := <-done; err != nil {
				t.Error(err)
			}
			expectEnded(t, b, old)
			if r := b.dir.Records(); len(r) > 0 {
				t.Errorf("%d processes are left", len(r))
			}
		})
	}
}

func TestDrainingIsReplaced(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	first, stop := b.live(t)
	b.restart(t, stop)
	if _, err := first.Admin().Post(t.Context(), "/healthcheck/fail"); err != nil {
		t.Fatal(err)
	}
	second, _ := b.live(t)
	if first.Status().PID == second.Status().PID {
		t.Error("an Envoy that refuses work was adopted")
	}
}

// After a crash in the middle of a replacement, one Envoy has two records. It counts once: as the
// one that accepts requests.
func TestEnvoyWithTwoRecordsCountsOnce(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	first, stop := b.live(t)
	path := b.path + "/processes/"
	content, err := os.ReadFile(path + RecordName + ".json")
	if err != nil {
		t.Fatal(err)
	}
	p, ok := b.dir.Adopt(RecordName)
	if !ok {
		t.Fatal("no Envoy runs")
	}
	if err := p.Rename(fmt.Sprint(predecessorPrefix, p.PID())); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+RecordName+".json", content, 0o600); err != nil {
		t.Fatal(err)
	}
	if n := len(b.dir.Records()); n != 2 {
		t.Fatalf("%d records", n)
	}
	b.restart(t, stop)
	second, _ := b.live(t)
	if s := second.Status(); s.PID != first.Status().PID || !s.Adopted {
		t.Errorf("status %+v, want the first Envoy", s)
	}
	all := Running(b.dir, b.config.Bootstrap)
	if len(all) != 1 || all[0].Predecessor {
		t.Errorf("running: %+v", all)
	}
	if err := predecessors(second); err != nil {
		t.Error(err)
	}
}

// TestOrdinals checks that Envoys with different ordinals share nothing, and that the first one is
// what the configuration says.
func TestOrdinals(t *testing.T) {
	t.Parallel()
	c := BootstrapConfig{AdminSocket: "/s/envoy.sock", Inlets: Inlets{Socket: "/s/inlets.sock", Gateway: "/s/filter.sock"}}
	if got := c.at(1); got != c {
		t.Errorf("the first one is %+v", got)
	}
	got := c.at(2)
	if got.AdminSocket != "/s/envoy-2.sock" || got.Inlets.Socket != "/s/inlets-2.sock" || got.Inlets.Gateway != "/s/filter.sock" || got.NodeID != "sluice-2" {
		t.Errorf("the second one is %+v", got)
	}
	if n := ordinalOf(process.Record{Meta: map[string]string{metaAdmin: "/s/envoy.sock"}}); n != 1 {
		t.Errorf("the record of an earlier release has the ordinal %d", n)
	}
	if name := predecessorPrefix + "1"; !strings.HasPrefix(name, RecordName) {
		t.Errorf("%s comes before %s", name, RecordName)
	}
}

package relay

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/internal/request"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// recordingTracer is a Tracer, and the Trace of all its calls.
type recordingTracer struct {
	mu    sync.Mutex
	lines []string
	// ends are the results of End.
	ends []Result
}

func (d *recordingTracer) add(line string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, line)
}

func (d *recordingTracer) Queued()                      { d.add("queued") }
func (d *recordingTracer) Admitted(string, string, int) { d.add("admitted") }
func (d *recordingTracer) Traceparent() string          { return "" }
func (d *recordingTracer) FirstToken()                  { d.add("first") }
func (d *recordingTracer) Token(int64)                  { d.add("token") }
func (d *recordingTracer) Emitted(int64)                { d.add("emitted") }
func (d *recordingTracer) End(r Result) {
	d.add("end")
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ends = append(d.ends, r)
}

// However quickly a stream is over, its trace has what was written to the client, and ends once,
// after that.
func TestTraceEndsAfterTheLastWrite(t *testing.T) {
	h := newHarness(t, options{handler: engineThatSends(roleEvent + tokenEvent("a") + tokenEvent("b") + finishEvent("", "stop") + doneEvent)})
	d := new(recordingTracer)
	h.relay.config.StartTrace = func(request.Arrival, string, time.Time) Trace { return d }
	for n := range 20 {
		h.sendAndRead(hello)
		h.result(n + 1)
		d.mu.Lock()
		lines := d.lines
		d.lines = nil
		d.mu.Unlock()
		end := slices.Index(lines, "end")
		if emitted := slices.Index(lines, "emitted"); emitted < 0 || end != len(lines)-1 || slices.Index(lines, "token") < 0 || emitted > end {
			t.Fatalf("%v", lines)
		}
	}
}

// movingCall is a harness whose second call waits, and is traced, until it moves.
func movingCall(t *testing.T) (*harness, *recordingTracer) {
	old := newHarness(t, options{policy: Policy{Resume: time.Minute}, limits: admission.Limits{MaxConcurrent: 1},
		handler: engineThatHangs(roleEvent, tokenEvent("a"))})
	d, calls := new(recordingTracer), 0
	old.relay.config.StartTrace = func(request.Arrival, string, time.Time) Trace {
		if calls++; calls == 1 {
			return nil
		}
		return d
	}
	first := old.send(hello)
	t.Cleanup(func() { first.Body.Close() })
	return old, d
}

// awaitEnd waits until the trace has ended, and returns its result.
func (d *recordingTracer) awaitEnd(t *testing.T) Result {
	t.Helper()
	ended := func() int {
		d.mu.Lock()
		defer d.mu.Unlock()
		return len(d.ends)
	}
	testutil.Eventually(t, "the trace has ended", func() bool { return ended() > 0 })
	time.Sleep(10 * time.Millisecond)
	if n := ended(); n != 1 {
		t.Errorf("the trace has ended %d times", n)
	}
	return d.ends[0]
}

// The trace of a call that moves to the next process ends once, as the call has ended there.
func TestX20_TraceOfACallThatMoves(t *testing.T) {
	for _, more := range [][]string{nil, {"id: r"}} {
		old, d := movingCall(t)
		next := newHarness(t, options{})
		var client sync.WaitGroup
		client.Go(func() { old.sendAndRead(hello, more...) })
		old.waitQueued(1)
		old.relay.Retire(forwarderTo(t, next))
		old.dispatcher.Retire()
		client.Wait()
		if r := d.awaitEnd(t); r.Fault != nil || !r.Answered || r.Finish != "length" {
			t.Errorf("%v: %+v", more, r)
		}
	}
}

// The trace of a named call that has no client any more ends with the process that the call waited
// in.
func TestX20_TraceOfAMovedCallWithoutAClient(t *testing.T) {
	old, d := movingCall(t)
	ctx, leave := context.WithCancel(t.Context())
	call := old.newCall(hello)
	call.Scan.RequestID = "r"
	var client sync.WaitGroup
	client.Go(func() { old.relay.Generate(ctx, call, new(recordingSink)) })
	old.waitQueued(1)
	leave()
	client.Wait()
	old.relay.Retire(forwarderTo(t, newHarness(t, options{})))
	old.dispatcher.Retire()
	if r := d.awaitEnd(t); r.Fault == nil {
		t.Errorf("%+v", r)
	}
}

// slowFinish is a sink whose Finish blocks until release is closed.
type slowFinish struct {
	funcSink
	entered, release chan struct{}
}

func (s slowFinish) Finish(Result) error {
	close(s.entered)
	<-s.release
	return nil
}

// Close returns when clients have been told, not when that has become known.
func TestCloseWaitsForWhoTells(t *testing.T) {
	h := newHarness(t, options{handler: engineThatHangs(roleEvent, tokenEvent("a"))})
	began := make(chan struct{}, 2)
	s := slowFinish{funcSink{event: func([]byte) { began <- struct{}{} }, ended: nil}, make(chan struct{}), make(chan struct{})}
	over, closed := make(chan struct{}), make(chan struct{})
	go func() {
		h.relay.Generate(t.Context(), h.newCall(hello), s)
		close(over)
	}()
	<-began
	go func() {
		h.relay.Close(t.Context())
		close(closed)
	}()
	<-s.entered
	select {
	case <-closed:
		t.Error("Close has returned before")
	case <-time.After(50 * time.Millisecond): // it would not take that long
	}
	close(s.release)
	<-over
	<-closed
}

package relay

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/request"
)

// recordingTracer is a Tracer, and the Trace of all its calls.
type recordingTracer struct {
	mu    sync.Mutex
	lines []string
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
func (d *recordingTracer) End(Result)                   { d.add("end") }

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

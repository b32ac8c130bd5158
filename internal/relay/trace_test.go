package relay

import (
	"slices"
	"sync"
	"testing"
	"time"
)

// diary is a Tracer and the Trace of all its calls.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (d *diary) add(line string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, line)
}

func (d *diary) Begin(*Call) Trace            { d.add("begin"); return d }
func (d *diary) Queued()                      { d.add("queued") }
func (d *diary) Admitted(string, string, int) { d.add("admitted") }
func (d *diary) Traceparent() string          { return "" }
func (d *diary) FirstToken()                  { d.add("first") }
func (d *diary) Token(int64)                  { d.add("token") }
func (d *diary) Emitted(int64)                { d.add("emitted") }
func (d *diary) End(Result)                   { d.add("end") }

// However quickly a stream is over, its trace has what was written to the client, and ends once, after that.
func TestTraceEndsAfterTheLastWrite(t *testing.T) {
	b := newBench(t, setup{handler: script(role + say("a") + say("b") + finish("", "stop") + done)})
	d := new(diary)
	b.relay.config.Tracer = d
	for n := range 20 {
		b.read(hello)
		b.last(n + 1)
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

// slowEnd takes its time to tell its client of the end.
type slowEnd struct {
	taker
	entered, release chan struct{}
}

func (s slowEnd) End(Result) error {
	close(s.entered)
	<-s.release
	return nil
}

// Close returns when clients have been told, not when that has become known.
func TestCloseWaitsForWhoTells(t *testing.T) {
	b := newBench(t, setup{handler: hangs(role, say("a"))})
	began := make(chan struct{}, 2)
	s := slowEnd{taker{event: func([]byte) { began <- struct{}{} }, ended: nil}, make(chan struct{}), make(chan struct{})}
	over, closed := make(chan struct{}), make(chan struct{})
	go func() {
		b.relay.Generate(t.Context(), b.call(hello), s)
		close(over)
	}()
	<-began
	go func() {
		b.relay.Close(t.Context())
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

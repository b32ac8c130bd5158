package frames

import (
	"encoding/binary"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/decide"
	"github.com/sluice-gateway/sluice/internal/decide/decidetest"
	"github.com/sluice-gateway/sluice/internal/nonblock"
	"github.com/sluice-gateway/sluice/internal/request"
)

// workers is Envoy's listener for the gateway: the next connection goes to the worker that the test
// has named.
type workers struct {
	net.Listener
	t testing.TB
}

func listenAsWorkers(t testing.TB) *workers {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "i"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return &workers{l, t}
}

// accept accepts a connection as a worker does.
func (w *workers) accept(of worker) *filter {
	w.t.Helper()
	w.Listener.(*net.UnixListener).SetDeadline(time.Now().Add(time.Minute)) //nolint:errcheck // Accept fails then
	c, err := w.Accept()
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { c.Close() })
	f := &filter{w.t, c}
	f.send(kindReady, 0, 0, binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint32(nil, of.index), of.instance))
	return f
}

// connectAs opens a connection as a worker does.
func connectAs(t testing.TB, path string, of worker, number uint64) *filter {
	t.Helper()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	f := &filter{t, c}
	hello := binary.LittleEndian.AppendUint32(nil, Version)
	hello = binary.LittleEndian.AppendUint32(hello, of.index)
	hello = binary.LittleEndian.AppendUint64(hello, of.instance)
	hello = binary.LittleEndian.AppendUint32(hello, 0)
	f.send(kindHello, 0, 0, binary.LittleEndian.AppendUint64(hello, number))
	if h, _ := f.next(); h.kind != kindWelcome {
		t.Fatalf("the answer to Hello is of type %d", h.kind)
	}
	return f
}

// joined reads the Join of an inlet.
func (f *filter) joined() uint64 {
	f.t.Helper()
	h, payload := f.next()
	if h.kind != kindJoin || h.id != 0 || h.flags != 0 || len(payload) != 8 {
		f.t.Fatalf("the first frame is %+v with %d bytes", h, len(payload))
	}
	return binary.LittleEndian.Uint64(payload)
}

// decided sends a request and returns the type of the answer, which comes by the inlet.
func (f *filter) decided(id uint64, inlet *filter) kind {
	f.t.Helper()
	f.send(kindHeaders, 0, id, chatHeaders("key"))
	f.send(kindBody, 0, id, []byte(chat))
	h, _ := inlet.next()
	if h.id != id {
		f.t.Errorf("the answer is for %d, not %d", h.id, id)
	}
	return h.kind
}

// closed waits until the gateway has closed a connection.
func (f *filter) closed() {
	f.t.Helper()
	f.SetReadDeadline(time.Now().Add(time.Minute)) //nolint:errcheck // the read fails then
	if h, _, err := f.read(); err == nil {
		f.t.Errorf("a frame of type %d came", h.kind)
	} else if timeout, ok := err.(net.Error); ok && timeout.Timeout() {
		f.t.Error("the connection stays open")
	}
}

// Each connection gets an inlet of its own worker, whichever worker Envoy chooses. One that is for
// another worker waits for it.
func TestB6_B12_AnswersGoToTheWorker(t *testing.T) {
	d := decidetest.New(t, 100, decide.UploadLimits{})
	w := listenAsWorkers(t)
	s, path := serveWith(t, d, w.Addr().String())
	first, second, third := worker{0, 7}, worker{1, 7}, worker{2, 7}
	a := connectAs(t, path, first, 11)
	ofThird := w.accept(third)
	ofSecond := w.accept(second)
	ofFirst := w.accept(first)
	if n := ofFirst.joined(); n != 11 {
		t.Errorf("the first worker is told of connection %d", n)
	}
	b := connectAs(t, path, second, 12)
	if n := ofSecond.joined(); n != 12 {
		t.Errorf("the second worker is told of connection %d", n)
	}
	got := []kind{a.decided(1, ofFirst), b.decided(1, ofSecond)}
	s.Retire()
	for _, f := range []*filter{ofFirst, ofSecond} {
		h, _ := f.next()
		got = append(got, h.kind)
	}
	if want := []kind{kindGo, kindGo, kindBye, kindBye}; !slices.Equal(got, want) {
		t.Error(cmp.Diff(want, got))
	}
	a.Close()
	ofFirst.closed()
	// Those of an Envoy that has ended have no use any more.
	b.Close()
	ofThird.closed()
}

// A worker reads its answers without notice to the gateway.
func TestB12_AnInletIsDetached(t *testing.T) {
	w := listenAsWorkers(t)
	s, path := serveWith(t, decidetest.New(t, 100, decide.UploadLimits{}), w.Addr().String())
	connectAs(t, path, worker{0, 7}, 11)
	w.accept(worker{0, 7}).joined()
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.mu.Lock()
		inlet := c.inlet
		c.mu.Unlock()
		if _, ok := inlet.(*nonblock.Conn); !ok {
			t.Errorf("the inlet is a %T", inlet)
		}
	}
	if len(s.conns) != 1 {
		t.Errorf("there are %d connections", len(s.conns))
	}
}

// Two Envoys run at the same time while one takes the place of the other one. Each has inlets of
// its own, and the end of one of them takes nothing from the other one.
func TestB6_B12_TwoEnvoys(t *testing.T) {
	old, next := listenAsWorkers(t), listenAsWorkers(t)
	var now atomic.Pointer[net.Listener]
	now.Store(&old.Listener)
	_, path := serveInlets(t, decidetest.New(t, 100, decide.UploadLimits{}), func(pid int) string {
		if pid != os.Getpid() {
			t.Errorf("the pid is %d, want %d", pid, os.Getpid())
		}
		return (*now.Load()).Addr().String()
	})
	first := connectAs(t, path, worker{0, 7}, 11)
	spare := old.accept(worker{1, 7})
	ofFirst := old.accept(worker{0, 7})
	if n := ofFirst.joined(); n != 11 {
		t.Errorf("the worker is told of connection %d", n)
	}
	now.Store(&next.Listener)
	second := connectAs(t, path, worker{0, 8}, 12)
	ofSecond := next.accept(worker{0, 8})
	if n := ofSecond.joined(); n != 12 {
		t.Errorf("the worker is told of connection %d", n)
	}
	got := []kind{first.decided(1, ofFirst), second.decided(1, ofSecond)}
	second.Close()
	ofSecond.closed()
	got = append(got, first.decided(2, ofFirst))
	if want := []kind{kindGo, kindGo, kindGo}; !slices.Equal(got, want) {
		t.Error(cmp.Diff(want, got))
	}
	// What is kept for the other worker of the first Envoy is still there.
	other := connectAs(t, path, worker{1, 7}, 13)
	if n := spare.joined(); n != 13 {
		t.Errorf("the worker is told of connection %d", n)
	}
	first.Close()
	other.Close()
	spare.closed()
}

// A worker that takes no connection at first is asked again. Its answers go by the other way until
// then.
func TestB6_B12_AWorkerThatIsLate(t *testing.T) {
	w := listenAsWorkers(t)
	_, path := serveWith(t, decidetest.New(t, 100, decide.UploadLimits{}), w.Addr().String())
	own := worker{0, 7}
	f := connectAs(t, path, own, 11)
	early, err := w.Accept()
	if err != nil {
		t.Fatal(err)
	}
	early.Close()
	before := f.decided(1, f)
	inlet := w.accept(own)
	if n := inlet.joined(); n != 11 {
		t.Errorf("the worker is told of connection %d", n)
	}
	if got, want := []kind{before, f.decided(2, inlet)}, []kind{kindGo, kindGo}; !slices.Equal(got, want) {
		t.Error(cmp.Diff(want, got))
	}
}

// An inlet that ends ends its connection: what was written last is lost.
func TestB6_B12_AnInletThatEnds(t *testing.T) {
	d := decidetest.New(t, 100, decide.UploadLimits{})
	w := listenAsWorkers(t)
	_, path := serveWith(t, d, w.Addr().String())
	f := connectAs(t, path, worker{0, 7}, 11)
	inlet := w.accept(worker{0, 7})
	inlet.joined()
	f.send(kindHeaders, 0, 1, chatHeaders("key"))
	eventually(t, "the request is known", d.Busy)
	inlet.Close()
	f.closed()
	eventually(t, "the request has ended", func() bool { return !d.Busy() })
}

// All that the filter has told before its connections end is read.
func TestB6_B12_EndsBeforeAnInletEnds(t *testing.T) {
	d := decidetest.New(t, 100, decide.UploadLimits{})
	w := listenAsWorkers(t)
	const n = 200
	entries := make(chan request.Entry, n)
	s, path := serveWith(t, d, w.Addr().String())
	s.OnEntry = func(e request.Entry) {
		entries <- e
		time.Sleep(10 * time.Microsecond) // so that the reader is behind
	}
	f := connectAs(t, path, worker{0, 7}, 11)
	inlet := w.accept(worker{0, 7})
	inlet.joined()
	var all []byte
	for i := range uint64(n) {
		all = append(all, frame(kindEnd, 0, 1000+i, record("x"))...)
	}
	if _, err := f.Write(all); err != nil {
		t.Fatal(err)
	}
	f.Close()
	inlet.Close()
	for i := range n {
		select {
		case <-entries:
		case <-time.After(time.Minute):
			t.Fatalf("%d of %d ends were read", i, n)
		}
	}
}

// An Envoy that is another one now has no inlet for a connection of the one before. The gateway
// does not look for it, and keeps what it has got for the workers of the new one.
func TestB6_B12_InletsOfTheNextEnvoy(t *testing.T) {
	d := decidetest.New(t, 100, decide.UploadLimits{})
	w := listenAsWorkers(t)
	_, path := serveWith(t, d, w.Addr().String())
	connectAs(t, path, worker{0, 7}, 11)
	kept := w.accept(worker{1, 8})
	second := connectAs(t, path, worker{1, 8}, 12)
	if n := kept.joined(); n != 12 {
		t.Errorf("the worker of the next Envoy is told of connection %d", n)
	}
	if k := second.decided(1, kept); k != kindGo {
		t.Errorf("the answer is of type %d", k)
	}
}

// A gateway that cannot connect to the workers answers where it is asked. Stop does not wait for
// the attempts.
func TestB6_B12_WithoutInlets(t *testing.T) {
	for name, listen := range map[string]func(t *testing.T) string{
		"nobody listens": func(t *testing.T) string { return filepath.Join(t.TempDir(), "i") },
		"nobody accepts": func(t *testing.T) string { return listenAsWorkers(t).Addr().String() },
		"no Ready comes": func(t *testing.T) string {
			w := listenAsWorkers(t)
			go func() {
				for {
					c, err := w.Accept()
					if err != nil {
						return
					}
					c.Write(frame(kindHello, 0, 0, make([]byte, 12))) //nolint:errcheck // the gateway may have closed it
					(&filter{t, c}).closed()
					c.Close()
				}
			}()
			return w.Addr().String()
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := decidetest.New(t, 100, decide.UploadLimits{})
			_, path := serveWith(t, d, listen(t))
			f := connectAs(t, path, worker{0, 7}, 11)
			if k := f.decided(1, f); k != kindGo {
				t.Errorf("the answer is of type %d", k)
			}
		})
	}
}

// inletPair returns an inlet and its end at the worker.
func inletPair(t *testing.T) (net.Conn, *filter) {
	t.Helper()
	w := listenAsWorkers(t)
	inlet, err := net.Dial("unix", w.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	end, err := w.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		inlet.Close()
		end.Close()
	})
	return inlet, &filter{t, end}
}

// Inlets that have no use any more are closed: those of an Envoy without a connection when another
// Envoy has one, one whose connection has ended meanwhile, and all at the end.
func TestB6_B12_InletsWithoutUseAreClosed(t *testing.T) {
	s, path := serve(t, decidetest.New(t, 1, decide.UploadLimits{}))
	f := connectAs(t, path, worker{0, 8}, 1)
	ofBefore, endOfBefore := inletPair(t)
	ofNow, endOfNow := inletPair(t)
	if !s.keepInlet(ofBefore, worker{0, 7}) || !s.keepInlet(ofNow, worker{1, 8}) {
		t.Error("an inlet is not kept")
	}
	endOfBefore.closed()
	s.mu.Lock()
	if len(s.inlets) != 1 || s.inlets[worker{1, 8}] == nil {
		t.Errorf("the inlets are %v", s.inlets)
	}
	var c *conn
	for c = range s.conns {
	}
	s.mu.Unlock()
	f.Close()
	endOfNow.closed()
	eventually(t, "the connection has ended", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.Broken
	})
	late, endOfLate := inletPair(t)
	if !s.keepInlet(late, worker{0, 8}) {
		t.Error("an inlet is not kept")
	}
	s.join(c, worker{0, 8}, 1)
	endOfLate.closed()

	kept, endOfKept := inletPair(t)
	if !s.keepInlet(kept, worker{0, 9}) {
		t.Error("an inlet is not kept")
	}
	s.Stop()
	endOfKept.closed()
	after, endOfAfter := inletPair(t)
	if s.keepInlet(after, worker{0, 9}) {
		t.Error("an inlet is kept after the end")
	}
	endOfAfter.closed()
}

package frames

import (
	"encoding/binary"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/decide"
	"github.com/sluice-gateway/sluice/internal/decide/decidetest"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/request"
)

// helloFrame is the first frame of a connection of worker 0 without shared memory.
func helloFrame() []byte { return frame(kindHello, 0, 0, helloPayload(0)) }

func helloPayload(blocks uint32) []byte {
	b := binary.LittleEndian.AppendUint32(nil, Version)
	b = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint32(b, 0), 1)
	b = binary.LittleEndian.AppendUint32(b, blocks)
	return binary.LittleEndian.AppendUint64(b, 1)
}

// unused returns a connection over which nothing was sent.
func unused(t *testing.T, path string) *filter {
	t.Helper()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &filter{t, c}
}

// A filter that breaks a connection tells the next one at once of its requests. Each of them is
// known then.
func TestB6_LivesOverTheNextConnectionFindTheirRequests(t *testing.T) {
	t.Parallel()
	const n = 60
	for round := range 10 {
		d, path, all := entries(t, n)
		first := connect(t, path)
		burst := helloFrame()
		for i := range n {
			id := fmt.Sprintf("2f0c5f0e-8f0f-4d9d-9d5c-%012d", round*n+i)
			first.send(kindHeaders, 0, uint64(i+1), list(":authority", "127.0.0.1:8080", ":path", "/v1/chat/completions", ":method", "POST", ":scheme", "http",
				"content-length", "140", "content-type", "application/json", "authorization", "Bearer key", "x-request-id", id))
			first.send(kindBody, 0, uint64(i+1), []byte(chat))
			if h, _ := first.next(); h.kind != kindGo {
				t.Fatal(h)
			}
			live := append(binary.LittleEndian.AppendUint64(nil, 5_000_000), list("id", id, "cluster", "model/m")...)
			burst = append(burst, frame(kindLive, 0, uint64(1000+i), live)...)
			burst = append(burst, frame(kindEnd, 0, uint64(1000+i), record(id))...)
		}
		second := unused(t, path)
		first.Close()
		if _, err := second.Write(burst); err != nil {
			t.Fatal(err)
		}
		for range n {
			if e := <-all; e.Interim {
				t.Errorf("a Live has found no request: %+v", e)
				<-all // its End
			}
		}
		eventually(t, "all have ended", func() bool { v, _ := d.Dispatcher.View("m"); return v.InFlight == 0 })
	}
}

// Ends that a connection has sent before it broke are read, although the next one is there.
func TestB6_EndsOfABrokenConnectionAreRead(t *testing.T) {
	t.Parallel()
	const n = 300
	s, path := serve(t, decidetest.New(t, n, decide.UploadLimits{}))
	var read atomic.Int64
	goOn := make(chan struct{})
	s.OnEntry = func(request.Entry) {
		read.Add(1)
		<-goOn
	}
	first := connect(t, path)
	var ends []byte
	for i := range n {
		ends = append(ends, frame(kindEnd, 0, uint64(i+1), record(fmt.Sprint("r-", i)))...)
	}
	sent := make(chan error)
	go func() {
		_, err := first.Write(ends)
		first.Close()
		sent <- err
	}()
	eventually(t, "the first End is read", func() bool { return read.Load() == 1 })
	second := unused(t, path)
	if _, err := second.Write(helloFrame()); err != nil {
		t.Fatal(err)
	}
	close(goOn)
	if err := <-sent; err != nil {
		t.Error(err)
	}
	eventually(t, "all Ends are read", func() bool { return read.Load() == n })
}

// A connection whose Hello is handled late breaks none that the same worker has opened later.
func TestB6_ALateHelloBreaksNoLaterConnection(t *testing.T) {
	t.Parallel()
	_, path := serve(t, decidetest.New(t, 1, decide.UploadLimits{}))
	first := unused(t, path)
	second := connect(t, path)
	if _, err := first.Write(helloFrame()); err != nil {
		t.Fatal(err)
	}
	if h, _ := first.next(); h.kind != kindWelcome {
		t.Fatalf("a frame of type %d", h.kind)
	}
	second.send(kindHeaders, 0, 1, chatHeaders("key"))
	second.send(kindBody, 0, 1, []byte(chat))
	if h, _ := second.next(); h.kind != kindGo {
		t.Errorf("a frame of type %d", h.kind)
	}
	second.send(kindEnd, 0, 1, record(""))
}

// A filter of another version that has sent more can still send when it is refused, until it has
// read so. Otherwise it would take the gateway for one that has died.
func TestB6_AFilterOfAnotherVersionReadsThatItIsRefused(t *testing.T) {
	t.Parallel()
	_, path := serve(t, decidetest.New(t, 1, decide.UploadLimits{}))
	f := unused(t, path)
	hello := helloPayload(0)
	hello[0] = Version + 1
	begin := append(frame(kindHello, 0, 0, hello), frame(kindHeaders, 0, 1, chatHeaders("key"))...)
	if _, err := f.Write(append(begin, make([]byte, 2*bufferSize)...)); err != nil {
		t.Fatal(err)
	}
	if h, _ := f.next(); h.kind != kindWelcome {
		t.Fatalf("a frame of type %d", h.kind)
	}
	for range 5 { // the gateway would have closed the connection meanwhile
		time.Sleep(10 * time.Millisecond)
		f.send(kindHeaders, 0, 2, chatHeaders("key"))
	}
}

// Bodies that the gateway has replaced may wait for a filter that reads all the time.
func TestB6_LargeReplacedBodiesBreakNoConnection(t *testing.T) {
	t.Parallel()
	d := decidetest.New(t, 1000, decide.UploadLimits{})
	d.MaxBody = maxQueue
	d.Dispatcher.SetRules(dispatch.Rules{Default: dispatch.Policy{Way: dispatch.WayPolicy{Mode: dispatch.ModeNative}}})
	_, path := serve(t, d)
	f := connect(t, path)
	large := strings.Replace(chat, `"stream":true`, `"stream":true,"timeout_ms":60000`, 1)
	large = strings.Replace(large, "Hello", strings.Repeat("x", maxQueue*2/3), 1)
	const n = 3 // one is written, and the others wait
	for id := range uint64(n) {
		f.send(kindHeaders, 0, id+1, chatHeaders("key"))
		f.send(kindBody, 0, id+1, []byte(large))
	}
	for id := range uint64(5) { // they are refused
		f.send(kindHeaders, 0, n+id+1, chatHeaders("wrong"))
	}
	f.send(kindHeaders, 0, n+6, chatHeaders("key"))
	f.send(kindBody, 0, n+6, []byte(chat))
	eventually(t, "all are decided", func() bool { v, _ := d.Dispatcher.View("m"); return v.InFlight == n+1 })
	got := map[kind]int{}
	for range n + 6 {
		h, _ := f.next()
		got[h.kind]++
	}
	if got[kindGo] != n+1 || got[kindReply] != 5 {
		t.Errorf("frames of these types came: %v", got)
	}
	for id := range uint64(n + 6) {
		f.send(kindEnd, 0, id+1, record(""))
	}
}

// full is a listener that fails once, as for lack of file descriptors.
type full struct {
	net.Listener
	once sync.Once
}

func (f *full) Accept() (c net.Conn, err error) {
	f.once.Do(func() { err = &net.OpError{Op: "accept", Err: syscall.EMFILE} })
	if err != nil {
		return nil, err
	}
	return f.Listener.Accept()
}

func TestB6_AnAcceptThatFailsIsTriedAgain(t *testing.T) {
	t.Parallel()
	s, path := New(decidetest.New(t, 1, decide.UploadLimits{})), filepath.Join(t.TempDir(), "f")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(&full{Listener: l}) }()
	t.Cleanup(s.Stop)
	connect(t, path).Close()
	l.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

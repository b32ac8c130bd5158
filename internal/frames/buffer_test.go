package frames

import (
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gateway/sluice/internal/decide"
	"github.com/sluice-gateway/sluice/internal/decide/decidetest"
)

// sized is a socket that keeps how much its last read could have taken.
type sized struct {
	net.Conn
	last atomic.Int64
}

func (s *sized) Read(b []byte) (int, error) {
	s.last.Store(int64(len(b)))
	return s.Conn.Read(b)
}

// A connection keeps a large buffer while frames need it, and gives it back when none has come for
// a while, whether the connection is idle or not.
func TestB6_AnIdleConnectionGivesItsBufferBack(t *testing.T) {
	t.Parallel()
	for name, idle := range map[string]bool{"idle": true, "small frames": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := New(decidetest.New(t, 1, decide.UploadLimits{}))
				s.MaxBody = 1 << 20
				pipe, theirs := net.Pipe()
				ours := &sized{Conn: pipe}
				r := &reader{conn: newConn(s, ours), buffer: make([]byte, bufferSize)}
				done := make(chan struct{})
				go func() {
					defer close(done)
					r.read()
				}()
				f := &filter{t, theirs}
				if _, err := f.Write(helloFrame()); err != nil {
					t.Fatal(err)
				}
				f.next()
				large := frame(kindBody, 0, 9, make([]byte, 500<<10)) // of a request that has ended
				check := func(when string, want int) {
					t.Helper()
					synctest.Wait()
					if got := int(ours.last.Load()); got != want {
						t.Errorf("%s: a buffer of %d bytes, want %d", when, got, want)
					}
				}
				for range 5 {
					if _, err := f.Write(large); err != nil {
						t.Fatal(err)
					}
					check("frames need it", len(large))
					time.Sleep(keptTime - time.Second)
					check("a frame has needed it before", len(large))
				}
				for range 3 * int(keptTime/time.Second) {
					if time.Sleep(time.Second); !idle {
						f.send(kindBody, 0, 9, []byte("small"))
					}
				}
				check("no frame has needed it for long", bufferSize)
				time.Sleep(time.Hour)
				f.send(kindBody, 0, 9, large) // the connection goes on
				check("a frame needs it again", headSize+len(large))
				theirs.Close()
				<-done
			})
		})
	}
}

// Requests that wait share a buffer: none keeps one of its own.
func TestB6_WaitingRequestsShareABuffer(t *testing.T) {
	const waiting = 200
	_, path := serve(t, decidetest.New(t, 1, decide.UploadLimits{}))
	f := connect(t, path)
	ask := func(id uint64) {
		f.send(kindHeaders, 0, id, chatHeaders("key"))
		f.send(kindBody, 0, id, []byte(chat))
	}
	for id := range uint64(2) {
		ask(id + 1)
		f.next()
	}
	before := heap()
	for id := range uint64(waiting) {
		ask(id + 3)
		if h, _ := f.next(); h.kind != kindWait {
			t.Fatalf("the answer is of type %d", h.kind)
		}
	}
	if each := (heap() - before) / waiting; each > 24<<10 {
		t.Errorf("each request that waits has %d bytes of memory", each)
	}
	f.send(kindEnd, 0, 1, record(""))
	for id := range uint64(waiting) {
		h, _ := f.next()
		if h.kind != kindGo {
			t.Fatalf("answer %d is of type %d", id, h.kind)
		}
		f.send(kindEnd, 0, h.id, record(""))
	}
	f.send(kindEnd, 0, 2, record(""))
}

// heap is how many bytes are in use.
func heap() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

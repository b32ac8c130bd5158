package frames

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/decide"
	"github.com/sluice-gateway/sluice/internal/decide/decidetest"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/jwks"
	"github.com/sluice-gateway/sluice/internal/request"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// record returns the record of a request.
func record(id string, more ...string) []byte {
	var b []byte
	for _, n := range []int64{200, 140, 1000, 2, 5000, 3000, 4900, 100, 1_900_000_000_000_000} {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	return append(b, list(append([]string{"id", id, "method", "POST", "path", "/v1/chat/completions?key=secret", "route", "stream",
		"details", "via_upstream", "flags", "UF,URX", "upstream", "127.0.0.1:9000", "cluster", "model/org/m", "replica", "m-0", "@tenant", "acme"}, more...)...)...)
}

// entries is a server whose entries go to a channel.
func entries(t testing.TB, slots int) (d *decide.Decider, path string, all chan request.Entry) {
	d = decidetest.New(t, slots, decide.UploadLimits{})
	all = make(chan request.Entry, 100)
	s, path := serve(t, d)
	s.OnEntry = func(e request.Entry) { all <- e }
	return d, path, all
}

func TestB6_ARecordIsAnEntry(t *testing.T) {
	_, path, all := entries(t, 1)
	f := connect(t, path)
	f.send(kindEnd, 0, 77, record("e-1", "usage", "7 11 3", "read", "2 30 1900000000000000 1900000000001000 1 stop 5:1", "unknown", "x"))
	want := request.Entry{
		Log: headers.LogRequests, PID: os.Getpid(), RequestID: "e-1", Method: "POST", Path: "/v1/chat/completions", Route: "stream", Status: 200,
		Details: "via_upstream", Flags: "UF,URX", Upstream: "127.0.0.1:9000", Cluster: "model/org/m", Model: "org/m", Replica: "m-0", Attempts: 2, Streamed: true,
		Metadata: map[string]string{"tenant": "acme"}, BytesIn: 140, BytesOut: 1000, Start: time.UnixMicro(1_900_000_000_000_000).UTC(),
		Usage:    request.Usage{Prompt: 7, Completion: 11, Cached: 3, Known: true, CachedKnown: true},
		Duration: 5 * time.Millisecond, FirstByte: 3 * time.Millisecond, LastByte: 4900 * time.Microsecond, UpstreamDuration: 4800 * time.Microsecond,
	}
	got := <-all
	if got.Reading == nil || got.Reading.Finish != "stop" || got.Reading.Tokens != 2 {
		t.Errorf("read %+v", got.Reading)
	}
	got.Reading = nil
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// A usage without the tokens of the answer is a total.
func TestB3_ARecordWithATotal(t *testing.T) {
	_, path, all := entries(t, 3)
	f := connect(t, path)
	for _, text := range []string{"56 -1 -1", "-1 -1 -1", "-1 5 -1"} {
		f.send(kindEnd, 0, 77, record("e-1", "usage", text))
	}
	for i, want := range []request.Usage{{Prompt: 56, Known: true, OnlyTotal: true}, {}, {}} {
		if got := <-all; got.Usage != want {
			t.Errorf("%d: %+v, want %+v", i, got.Usage, want)
		}
	}
}

// The beginning of a response is told until nobody wants more of it.
func TestB6_TheBeginningOfAResponse(t *testing.T) {
	d := decidetest.New(t, 1, decide.UploadLimits{})
	s, path := serve(t, d)
	var heard []string
	s.OnFirst = func(id string, begin []byte) bool {
		heard = append(heard, id+": "+string(begin))
		return len(begin) < 4
	}
	f := connectDecided(t, path)
	for _, part := range []string{"ab", "cd"} {
		f.send(kindFirst, 0, 1, []byte(part))
	}
	f.send(kindFirst, 0, 1, []byte("was under way"))
	f.send(kindFirst, 0, 9, []byte("of a request that nobody knows"))
	for _, id := range []uint64{1, 1, 9} {
		if h, _ := f.next(); h.kind != kindHeard || h.id != id {
			t.Errorf("a frame of type %d for %d, want Heard for %d", h.kind, h.id, id)
		}
	}
	if len(heard) != 2 || !strings.HasSuffix(heard[0], ": ab") || !strings.HasSuffix(heard[1], ": abcd") {
		t.Errorf("heard %q", heard)
	}
}

// A First without bytes says that the response has begun. The rest of its beginning is lost.
func TestB6_ABeginningThatIsLost(t *testing.T) {
	d := decidetest.New(t, 1, decide.UploadLimits{})
	s, path := serve(t, d)
	var heard []string
	s.OnFirst = func(_ string, begin []byte) bool {
		heard = append(heard, string(begin))
		return true
	}
	f := connectDecided(t, path)
	for _, part := range []string{"ab", "", ""} {
		f.send(kindFirst, 0, 1, []byte(part))
	}
	for range 2 {
		if h, _ := f.next(); h.kind != kindHeard || h.id != 1 {
			t.Errorf("a frame of type %d, want Heard", h.kind)
		}
	}
	if !slices.Equal(heard, []string{"ab", "ab"}) {
		t.Errorf("heard %q", heard)
	}
}

// Of a response whose beginning stays in doubt, only so much is kept.
func TestB6_ABeginningWithoutEnd(t *testing.T) {
	s, path := serve(t, decidetest.New(t, 1, decide.UploadLimits{}))
	var heard []int
	s.OnFirst = func(_ string, begin []byte) bool {
		heard = append(heard, len(begin))
		return true
	}
	f := connectDecided(t, path)
	for range 3 {
		f.send(kindFirst, 0, 1, make([]byte, maxObserved/2))
	}
	for range 2 { // the third part was under way
		if h, _ := f.next(); h.kind != kindHeard || h.id != 1 {
			t.Errorf("a frame of type %d, want Heard", h.kind)
		}
	}
	if !slices.Equal(heard, []int{maxObserved / 2, maxObserved}) {
		t.Errorf("%d bytes were kept", heard)
	}
}

// Frames may come in any pieces, and a body may be larger than the reader's buffer.
func TestB6_FramesInPieces(t *testing.T) {
	d := decidetest.New(t, 100, decide.UploadLimits{})
	d.MaxBody = 1 << 20
	_, path := serve(t, d)
	f := connect(t, path)
	large := strings.Replace(chat, "Hello", strings.Repeat("x", 300_000), 1)
	var all []byte
	for id, body := range []string{chat, large, chat} {
		all = append(all, frame(kindHeaders, 0, uint64(id+1), chatHeaders("key"))...)
		all = append(all, frame(kindBody, 0, uint64(id+1), []byte(body))...)
	}
	for step := 1; step < 200_000; step = step*3 + 1 {
		done := make(chan error, 1)
		go func() {
			for at := 0; at < len(all); at += step {
				if step < 100 && at > 3000 && at < len(all)-3000 {
					step = 5000 // the middle is the large body
				}
				if _, err := f.Write(all[at:min(at+step, len(all))]); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
		for id := range uint64(3) {
			if h, _ := f.next(); h.kind != kindGo || h.id != id+1 {
				t.Fatalf("pieces of %d: a frame of type %d for %d", step, h.kind, h.id)
			}
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		for id := range uint64(3) {
			f.send(kindEnd, 0, id+1, record(""))
		}
	}
}

// A filter that does not speak the protocol loses its connection, and no other one does.
func TestB6_MalformedFramesEndTheConnection(t *testing.T) {
	d := decidetest.New(t, 100, decide.UploadLimits{})
	s, path := serve(t, d)
	versions := make(chan uint32, 1)
	s.mu.Lock() // Serve locks it for each connection
	s.OnVersion = func(_ int, version uint32) { versions <- version }
	s.mu.Unlock()
	good := connect(t, path)
	hello := append(binary.LittleEndian.AppendUint32(nil, Version), make([]byte, 24)...) // another instance
	for name, b := range map[string][]byte{
		"no Hello":          frame(kindHeaders, 0, 1, chatHeaders("key")),
		"another version":   frame(kindHello, 0, 0, append(binary.LittleEndian.AppendUint32(nil, Version+1), make([]byte, 12)...)),
		"a short Hello":     frame(kindHello, 0, 0, hello[:2]),
		"an unknown type":   append(frame(kindHello, 0, 0, hello), frame(99, 0, 1, nil)...),
		"a second Hello":    append(frame(kindHello, 0, 0, hello), frame(kindHello, 0, 0, hello)...),
		"no shared memory":  append(frame(kindHello, 0, 0, hello), frame(kindShared, 0, 1, make([]byte, 8))...),
		"too long":          append(frame(kindHello, 0, 0, hello), begin(nil, kindBody, 0, 1)...),
		"a list too long":   append(frame(kindHello, 0, 0, hello), frame(kindHeaders, 0, 1, chatHeaders("key")[:100])...),
		"an id in use":      append(frame(kindHello, 0, 0, hello), bytes.Repeat(frame(kindHeaders, 0, 1, chatHeaders("key")), 2)...),
		"a short record":    append(frame(kindHello, 0, 0, hello), frame(kindEnd, 0, 1, record("x")[:80])...),
		"a value too long":  append(frame(kindHello, 0, 0, hello), frame(kindHeaders, 0, 1, []byte{1, 0, 0, 0, 1, 0, 0, 0, 255, 255, 255, 255, 'a'})...),
		"a short Live":      append(frame(kindHello, 0, 0, hello), frame(kindLive, 0, 1, make([]byte, 7))...),
		"half of a request": append(frame(kindHello, 0, 0, hello), frame(kindHeaders, 0, 1, chatHeaders("key"))[:50]...),
	} {
		if name == "too long" {
			binary.LittleEndian.PutUint32(b[len(b)-headSize:], 1<<31)
		}
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write(b); err != nil {
			t.Error(err)
		}
		if name == "half of a request" {
			c.(*net.UnixConn).CloseWrite() //nolint:errcheck // the test fails then
		}
		c.SetReadDeadline(time.Now().Add(time.Minute)) //nolint:errcheck // as above
		if _, err := io.Copy(io.Discard, c); err != nil {
			t.Errorf("%s: the connection stays open: %v", name, err)
		}
		c.Close()
	}
	if v := <-versions; v != Version+1 {
		t.Errorf("told of version %d", v)
	}
	good.send(kindHeaders, 0, 1, chatHeaders("key"))
	good.send(kindBody, 0, 1, []byte(chat))
	if h, _ := good.next(); h.kind != kindGo {
		t.Errorf("the other connection got a frame of type %d", h.kind)
	}
}

// A request whose connection has broken keeps its slot until Envoy tells it again, and then until
// its end. One without an answer ends at once.
func TestB6_RequestsOutliveTheirConnection(t *testing.T) {
	d, path, all := entries(t, 1)
	view := func() (inFlight, queued int) { v, _ := d.Dispatcher.View("m"); return v.InFlight, v.Queued }
	first := connect(t, path)
	for id := range uint64(3) {
		h := bytes.Replace(chatHeaders("key"), []byte("0a4c1b5e7f11"), []byte("0a4c1b5e7f1"+string(rune('a'+id))), 1)
		first.send(kindHeaders, 0, id+1, h)
		first.send(kindBody, 0, id+1, []byte(chat))
		first.next()
	}
	if n, q := view(); n != 2 || q != 1 {
		t.Fatalf("%d run, %d wait", n, q)
	}
	first.Close()
	eventually(t, "the one that waits has ended", func() bool { n, q := view(); return n == 2 && q == 0 })
	second := connect(t, path)
	live := append(binary.LittleEndian.AppendUint64(nil, 5_000_000), list("id", "2f0c5f0e-8f0f-4d9d-9d5c-0a4c1b5e7f1a", "cluster", "model/m")...)
	second.send(kindLive, 0, 9, live)
	unknown := append(binary.LittleEndian.AppendUint64(nil, 5_000_000), list("id", "of before", "cluster", "model/m",
		"upstream", "127.0.0.1:9000", "route", "stream", "@tenant", "acme", "@task", "tsk_1")...)
	second.send(kindLive, 0, 10, unknown)
	e := <-all // one that this process does not know is an entry
	if !e.Interim || e.RequestID != "of before" || e.Model != "m" || e.Upstream != "127.0.0.1:9000" || !e.Streamed || e.PID != os.Getpid() || time.Since(e.Start) < 5*time.Second {
		t.Errorf("%+v", e)
	}
	if e.Metadata["tenant"] != "acme" || e.Metadata["task"] != "tsk_1" {
		t.Errorf("%+v", e)
	}
	eventually(t, "the one that Envoy does not tell has ended", func() bool { n, _ := view(); return n == 1 })
	second.send(kindEnd, 0, 9, record("2f0c5f0e-8f0f-4d9d-9d5c-0a4c1b5e7f1a"))
	<-all
	eventually(t, "the other one has ended", func() bool { n, _ := view(); return n == 0 && !d.Busy() })
}

// The End of a request whose connection has broken comes over the next connection, without a Live.
func TestB6_AnEndOfABrokenConnectionEndsItsRequest(t *testing.T) {
	d, path, all := entries(t, 1)
	first := connect(t, path)
	first.send(kindHeaders, 0, 1, chatHeaders("key"))
	first.send(kindBody, 0, 1, []byte(chat))
	first.next()
	second := connect(t, path) // of the same worker, so the first one has broken
	second.send(kindEnd, 0, 1, record("2f0c5f0e-8f0f-4d9d-9d5c-0a4c1b5e7f11"))
	<-all
	if v, _ := d.Dispatcher.View("m"); v.InFlight != 0 || d.Busy() {
		t.Errorf("it still holds its slot: %+v", v)
	}
}

// A gateway that has a successor has Envoy open new connections, and ask again what it has not
// decided. What it has decided stays.
func TestX20_UndecidedRequestsMoveToTheSuccessor(t *testing.T) {
	d := decidetest.New(t, 1, decide.UploadLimits{})
	s, path := serve(t, d)
	f := connect(t, path)
	for id := range uint64(3) { // two run, one waits
		f.send(kindHeaders, 0, id+1, chatHeaders("key"))
		f.send(kindBody, 0, id+1, []byte(chat))
		f.next()
	}
	f.send(kindHeaders, 0, 4, chatHeaders("key")) // its body is to come
	eventually(t, "all are known", func() bool { _, n := d.Requests.List(0); return n == 4 })
	d.Retire()
	s.Retire()
	d.Dispatcher.Retire()
	got := map[uint64]kind{}
	for range 2 {
		h, _ := f.next()
		got[h.id] = h.kind
	}
	f.send(kindBody, 0, 4, []byte(chat))
	f.send(kindHeaders, 0, 5, chatHeaders("key"))
	for range 2 {
		h, _ := f.next()
		got[h.id] = h.kind
	}
	if diff := cmp.Diff(map[uint64]kind{0: kindBye, 3: kindAgain, 4: kindAgain, 5: kindAgain}, got); diff != "" {
		t.Error(diff)
	}
	if v, _ := d.Dispatcher.View("m"); v.InFlight != 2 || !d.Busy() {
		t.Errorf("the decided requests have not stayed: %+v", v)
	}
	f.send(kindEnd, 0, 1, record(""))
	f.send(kindEnd, 0, 2, record(""))
	eventually(t, "all have ended", func() bool { return !d.Busy() })
}

// slowTokens verify a token when the test lets them, as if the keys of an identity provider were
// read.
type slowTokens struct{ begun, answer chan struct{} }

func (s slowTokens) Verify(_ string, onBlock func()) (jwks.Identity, error) {
	onBlock()
	s.begun <- struct{}{}
	<-s.answer
	return jwks.Identity{Tenant: "acme"}, nil
}

func (slowTokens) Watch([sha256.Size]byte) func() bool { return func() bool { return true } }

// A caller whose token is looked up slowly holds up nobody else on its connection, and its body may
// come meanwhile.
func TestB6_ASlowTokenHoldsUpNobody(t *testing.T) {
	d := decidetest.New(t, 100, decide.UploadLimits{})
	slow := slowTokens{make(chan struct{}), make(chan struct{})}
	if err := d.Authenticator.Set(authz.Config{Tokens: slow, Tenants: []authz.TenantConfig{{
		Tenant: authz.Tenant{Name: "acme", Models: []string{"m"}}}}}); err != nil {
		t.Fatal(err)
	}
	_, path := serve(t, d)
	f := connect(t, path)
	for id := range uint64(2) {
		f.send(kindHeaders, 0, id+1, chatHeaders("token"))
		f.send(kindBody, 0, id+1, []byte(chat))
	}
	f.send(kindHeaders, 0, 3, chatHeaders("token"))
	for range 3 {
		<-slow.begun // all three are looked up at the same time
	}
	f.send(kindEnd, 0, 3, record("")) // its client leaves
	slow.answer <- struct{}{}
	slow.answer <- struct{}{}
	slow.answer <- struct{}{}
	got := map[uint64]kind{}
	for range 2 {
		h, _ := f.next()
		got[h.id] = h.kind
	}
	if diff := cmp.Diff(map[uint64]kind{1: kindGo, 2: kindGo}, got); diff != "" {
		t.Error(diff)
	}
	f.send(kindEnd, 0, 1, record(""))
	f.send(kindEnd, 0, 2, record(""))
	eventually(t, "all have ended", func() bool { return !d.Busy() })
}

// A worker that does not read cannot hold up the gateway.
func TestB6_AWorkerThatDoesNotRead(t *testing.T) {
	d := decidetest.New(t, 1, decide.UploadLimits{})
	_, path := serve(t, d)
	f := connect(t, path)
	f.SetWriteDeadline(time.Now().Add(time.Minute)) //nolint:errcheck // the test fails then
	bad := frame(kindHeaders, 0, 0, chatHeaders("wrong"))
	for id := uint64(1); ; id++ {
		binary.LittleEndian.PutUint64(bad[8:], id)
		if _, err := f.Write(bad); err != nil {
			if strings.Contains(err.Error(), "timeout") {
				t.Fatal("the connection stays open")
			}
			break
		}
	}
	eventually(t, "nothing is left", func() bool { return !d.Busy() })
}

func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	testutil.Eventually(t, what, holds)
}

// FuzzRecord reads any bytes as a record and as a Live. What it reads lies within them.
func FuzzRecord(f *testing.F) {
	f.Add(record("x", "usage", "7 11 -1", "read", "2 30 1900000000000000 1900000000001000 1 stop 5:1"))
	f.Add(append(make([]byte, 8), list("id", "x", "route", "stream", "@tenant", "acme")...))
	f.Fuzz(func(t *testing.T, b []byte) {
		var w request.Words
		p, q := payload{rest: b}, payload{rest: b}
		e, live := entryOf(&p, &w), liveOf(&q, time.Unix(1<<31, 0), &w)
		size := 0
		for _, s := range []string{e.RequestID, e.Method, e.Route, e.Details, e.Flags, e.Upstream, e.Cluster, e.Replica} {
			size += len(s)
		}
		if size > len(b) || !live.Interim || live.Start.After(time.Unix(1<<31, 0)) || e.Duration < 0 || e.UpstreamDuration < 0 {
			t.Errorf("%+v %+v", e, live)
		}
	})
}

// FuzzServer sends any bytes after Hello. Nothing is left of them when the connection has ended.
func FuzzServer(f *testing.F) {
	f.Add(append(frame(kindHeaders, 0, 1, chatHeaders("key")), frame(kindBody, 0, 1, []byte(chat))...))
	f.Add(frame(kindEnd, 0, 1, record("x", "usage", "1 2")))
	f.Add(frame(kindLive, 0, 1, append(make([]byte, 8), list("id", "x")...)))
	d := decidetest.New(f, 1000, decide.UploadLimits{})
	s := New(d)
	s.OnEntry = func(request.Entry) {}
	dir := f.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "f"))
	if err != nil {
		f.Fatal(err)
	}
	go s.Serve(l) //nolint:errcheck // it ends with the listener
	f.Cleanup(func() { l.Close(); s.Stop() })
	hello := helloFrame()
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := net.Dial("unix", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		c.Write(append(bytes.Clone(hello), b...)) //nolint:errcheck // the server may have closed it
		c.(*net.UnixConn).CloseWrite()            //nolint:errcheck // as above
		io.Copy(io.Discard, c)                    //nolint:errcheck // as above
		c.Close()
	})
}

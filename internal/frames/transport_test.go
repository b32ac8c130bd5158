package frames

import (
	"encoding/binary"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/decide"
	"github.com/sluice-gateway/sluice/internal/decide/decidetest"
	"github.com/sluice-gateway/sluice/internal/headers"
)

// TestB6_Transport runs the tests of every transport. All requests of a test share a connection.
func TestB6_Transport(t *testing.T) {
	decidetest.Run(t, func(t testing.TB, d *decide.Decider) func() decidetest.Client {
		_, path := serve(t, d)
		m := newMux(connect(t, path))
		return m.open
	})
}

// serve serves a decider at a path.
func serve(t testing.TB, d *decide.Decider) (s *Server, path string) {
	t.Helper()
	return serveWith(t, d, "")
}

// serveWith serves a decider whose answers go to workers that listen at the path inlets.
func serveWith(t testing.TB, d *decide.Decider, inlets string) (s *Server, path string) {
	t.Helper()
	return serveInlets(t, d, func(int) string { return inlets })
}

func serveInlets(t testing.TB, d *decide.Decider, inlets func(pid int) string) (s *Server, path string) {
	t.Helper()
	s, path = New(d), filepath.Join(t.TempDir(), "f")
	s.Inlets = inlets
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		l.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
		s.Stop()
	})
	return s, path
}

// mux shares a connection among requests.
type mux struct {
	*filter
	mu   sync.Mutex
	last uint64
	// clients are the requests by their ids. A frame of another id is lost, as in the filter.
	clients map[uint64]*client
}

func newMux(f *filter) *mux {
	m := &mux{filter: f, clients: map[uint64]*client{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			h, payload, err := f.read()
			if err != nil {
				return
			}
			m.mu.Lock()
			c := m.clients[h.id]
			m.mu.Unlock()
			if c != nil {
				c.got <- received{h, payload}
			}
		}
	}()
	f.t.Cleanup(func() {
		f.Close()
		<-done
	})
	return m
}

// received is a frame.
type received struct {
	head
	payload []byte
}

// client is one request for package decidetest.
type client struct {
	*mux
	id  uint64
	got chan received
	// request is its x-request-id.
	request string
}

func (m *mux) open() decidetest.Client {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last++
	c := &client{mux: m, id: m.last, got: make(chan received, 16)}
	m.clients[c.id] = c
	return c
}

// Headers implements decidetest.Client.
func (c *client) Headers(pairs []decide.Header, bodyless bool) {
	var all []string
	for _, p := range pairs {
		if all = append(all, p.Name, p.Value); p.Name == headers.RequestID {
			c.request = p.Value
		}
	}
	flags := uint8(0)
	if bodyless {
		flags = flagBodyless
	}
	c.send(kindHeaders, flags, c.id, list(all...))
}

// Body implements decidetest.Client.
func (c *client) Body(text string) { c.send(kindBody, 0, c.id, []byte(text)) }

// Answer implements decidetest.Client.
func (c *client) Answer() decidetest.Answer {
	c.t.Helper()
	var in received
	select {
	case in = <-c.got:
	case <-time.After(time.Minute):
		c.t.Fatal("no answer within a minute")
	}
	p := payload{rest: in.payload}
	var a decidetest.Answer
	switch in.kind {
	case kindWait:
		return decidetest.Answer{Wait: time.Duration(p.uint32()) * time.Millisecond}
	case kindReply:
		a.Kind, a.Status = decide.Reply, p.uint16()
		n, details := p.uint16(), p.uint16()
		p.uint16()
		a.Set = p.several(n)
		a.Details, a.Body = string(p.take(details)), p.rest
	case kindGo:
		a.Kind = decide.Go
		set, remove, values := p.uint16(), p.uint16(), p.uint16()
		p.uint16()
		a.Set = p.several(set)
		for range remove {
			a.Remove = append(a.Remove, string(p.take(p.uint16())))
		}
		a.Other = map[string]string{}
		for _, v := range p.several(values) {
			switch v.Name {
			case headers.MetadataTenant:
				a.Metadata.Tenant = v.Value
			case headers.MetadataKey:
				a.Metadata.Key = v.Value
			default:
				a.Other[v.Name] = v.Value
			}
		}
		if in.flags&flagBody != 0 {
			a.Body = p.rest
		} else if len(p.rest) > 0 {
			c.t.Errorf("%d bytes too many", len(p.rest))
		}
	default:
		c.t.Fatalf("a frame of type %d", in.kind)
	}
	if p.bad {
		c.t.Errorf("malformed: %v", in)
	}
	return a
}

// several reads n pairs.
func (p *payload) several(n int) (all []decide.Header) {
	one := payload{rest: binary.LittleEndian.AppendUint16(nil, uint16(n))}
	one.rest = append(append(one.rest, 0, 0), p.rest...)
	one.pairs(func(name string, value []byte) { all = append(all, decide.Header{Name: name, Value: string(value)}) })
	p.bad, p.rest = p.bad || one.bad, one.rest
	return all
}

// Finish implements decidetest.Client.
func (c *client) Finish() { c.Leave() }

// Leave implements decidetest.Client.
func (c *client) Leave() {
	c.mu.Lock()
	delete(c.clients, c.id)
	c.mu.Unlock()
	var b []byte
	for range 9 {
		b = binary.LittleEndian.AppendUint64(b, 0)
	}
	c.send(kindEnd, 0, c.id, append(b, list()...))
}

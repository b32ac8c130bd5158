package upstream

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// nameServer is a DNS server on UDP that knows one name.
type nameServer struct {
	name string
	conn net.PacketConn

	mu sync.Mutex
	// code is the answer's, and addresses are the records of the name. Guarded by mu.
	code      dnsmessage.RCode
	addresses []string
	// silent says that it answers nothing. Guarded by mu.
	silent bool
}

// startNameServer starts a server that knows the addresses of the name, and returns a resolver that
// asks it.
func startNameServer(t *testing.T, name string, addresses ...string) (*nameServer, *net.Resolver) {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &nameServer{name: name + ".", conn: conn, addresses: addresses}
	t.Cleanup(func() { conn.Close() })
	go s.serve()
	return s, &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

func (s *nameServer) set(code dnsmessage.RCode, addresses ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.code, s.addresses = code, addresses
}

func (s *nameServer) setSilent(silent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent = silent
}

func (s *nameServer) isSilent() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.silent
}

func (s *nameServer) serve() {
	packet := make([]byte, 1500)
	for {
		n, from, err := s.conn.ReadFrom(packet)
		if err != nil {
			return
		}
		var message dnsmessage.Message
		if message.Unpack(packet[:n]) != nil || len(message.Questions) != 1 {
			continue
		}
		answer := s.answer(message)
		if text, err := answer.Pack(); err == nil && !s.isSilent() {
			s.conn.WriteTo(text, from) //nolint:errcheck // the client asks again
		}
	}
}

// answer returns the answer to a question. Names that it does not know do not exist.
func (s *nameServer) answer(m dnsmessage.Message) dnsmessage.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	m.Response, m.Additionals = true, nil
	q := m.Questions[0]
	m.RCode = s.code
	if q.Name.String() != s.name {
		m.RCode = dnsmessage.RCodeNameError
		return m
	}
	for _, text := range s.addresses {
		ip := net.ParseIP(text)
		header := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 1}
		switch v4 := ip.To4(); {
		case q.Type == dnsmessage.TypeA && v4 != nil:
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.AResource{A: [4]byte(v4)}})
		case q.Type == dnsmessage.TypeAAAA && v4 == nil:
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.AAAAResource{AAAA: [16]byte(ip)}})
		}
	}
	return m
}

// startAt starts servers on one port of each address that list the model chat. seen gets what each
// request was sent to.
func startAt(t *testing.T, secure bool, seen func(r *http.Request), addresses ...string) (port, ca string) {
	t.Helper()
	listeners, port := testutil.ListenAt(t, addresses...)
	for _, listener := range listeners {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			seen(r)
			io.WriteString(w, `{"data":[{"id":"chat"}]}`)
		}))
		s.Listener.Close()
		if s.Listener = listener; secure {
			s.StartTLS()
			ca = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
		} else {
			s.Start()
		}
		t.Cleanup(s.Close)
	}
	return port, ca
}

// TestU5_OneServerPerAddress: with resolve: all, each address of a host name is a server of its
// own, for discovered and named models. The addresses are followed; those of a name server that
// does not answer are kept.
func TestU5_OneServerPerAddress(t *testing.T) {
	names, resolver := startNameServer(t, "engines.test", "127.0.0.3", "127.0.0.2", "::1", "127.0.0.3")
	port, _ := startAt(t, false, func(r *http.Request) {
		if host, _, _ := net.SplitHostPort(r.Host); host != "engines.test" {
			t.Errorf("asked as %s", r.Host)
		}
	}, "127.0.0.2", "127.0.0.3", "127.0.0.4")
	url := "http://engines.test:" + port
	fleet := engines.NewFleet()
	l := New(Config{Fleet: fleet, Log: zap.NewNop(), Timeout: testutil.Patience, Resolver: resolver})
	t.Cleanup(l.Client.CloseIdleConnections)
	desired := Desired{Discover: discover(url), Models: []Model{{Model: engines.Model{Name: "mine"}, URLs: []string{url}}},
		Settings: map[string]Settings{url: {ResolveAll: true, Slots: 7}}}
	l.Set(desired)
	id := func(address string) string { return "engines.test:" + port + "@" + address }
	expect := func(want states) {
		t.Helper()
		l.CheckOnce(t.Context())
		all := map[string]states{"mine": want}
		discovered := maps.Clone(want) // A server that was never reached lists nothing.
		maps.DeleteFunc(discovered, func(_ string, s engines.State) bool { return s != engines.Ready })
		if len(discovered) > 0 {
			all["chat"] = discovered
		}
		expectStates(t, fleet, all)
	}
	both := states{id("127.0.0.2"): engines.Ready, id("127.0.0.3"): engines.Ready}
	expect(both)
	for _, r := range fleet.Snapshot().Models["mine"].Replicas {
		if want := fmt.Sprintf("%s:%s", r.ID[len(r.ID)-9:], port); r.Address.String() != want || r.Host != "engines.test:"+port || r.Slots != 7 {
			t.Errorf("%+v, want address %s", r, want)
		}
	}
	l.Set(desired) // The same configuration again.
	expectStates(t, fleet, map[string]states{"chat": both, "mine": both})

	names.set(dnsmessage.RCodeSuccess, "127.0.0.3", "127.0.0.4", "127.0.0.5") // Nothing listens at the last one.
	expect(states{id("127.0.0.3"): engines.Ready, id("127.0.0.4"): engines.Ready, id("127.0.0.5"): engines.Failed})
	if f := l.Faults()[url+" at 127.0.0.5"]; f.Reason == "" {
		t.Errorf("faults: %v", l.Faults())
	}
	names.set(dnsmessage.RCodeServerFailure)
	expect(states{id("127.0.0.3"): engines.Ready, id("127.0.0.4"): engines.Ready, id("127.0.0.5"): engines.Failed})
	names.set(dnsmessage.RCodeNameError)
	expect(states{"engines.test:" + port: engines.Failed})
	if f := l.Faults()[url]; f.Reason == "" {
		t.Errorf("faults: %v", l.Faults())
	}
	names.set(dnsmessage.RCodeSuccess, "127.0.0.4")
	expect(states{id("127.0.0.4"): engines.Ready})

	names.set(dnsmessage.RCodeSuccess, "127.0.0.4", "127.0.0.3")
	desired.Settings = nil // The first address is the server again.
	l.Set(desired)
	expect(states{"engines.test:" + port: engines.Ready})
	if r := fleet.Snapshot().Models["mine"].Replicas[0]; r.Address.String() != "127.0.0.3:"+port {
		t.Errorf("%+v", r)
	}
}

// TestU5_NameOfServersWithTLS: each address is called by TLS for the host name, and all of them are
// one group for Envoy.
func TestU5_NameOfServersWithTLS(t *testing.T) {
	_, resolver := startNameServer(t, "example.com", "127.0.0.2", "127.0.0.3")
	var mu sync.Mutex
	var seen []string
	port, ca := startAt(t, true, func(r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, r.TLS.ServerName+" "+r.Host+" "+r.Header.Get("Authorization"))
	}, "127.0.0.2", "127.0.0.3")
	url := "https://example.com:" + port + "/api"
	fleet := engines.NewFleet()
	l := New(Config{Fleet: fleet, Log: zap.NewNop(), Timeout: testutil.Patience, Resolver: resolver})
	l.Set(Desired{Discover: discover(url), Access: map[string]Access{url: {CA: ca, Headers: bearer("k")}}, Settings: map[string]Settings{url: {ResolveAll: true}}})
	l.CheckOnce(t.Context())
	for _, r := range fleet.Snapshot().Models["chat"].Replicas {
		if r.State != engines.Ready || r.Group() != "example.com:"+port+"/api" || r.Transport.TLS.ServerName != "example.com" {
			t.Errorf("%+v", r)
		}
	}
	want := "example.com example.com:" + port + " Bearer k"
	if len(seen) != 2 || slices.ContainsFunc(seen, func(s string) bool { return s != want }) {
		t.Errorf("seen %q, want %q", seen, want)
	}
}

// TestU5_AllAddressesChange: the models of a name stay known while its new servers are checked.
func TestU5_AllAddressesChange(t *testing.T) {
	names, resolver := startNameServer(t, "engines.test", "127.0.0.2")
	asked, answer := make(chan struct{}, 1), make(chan struct{})
	port, _ := startAt(t, false, func(r *http.Request) {
		if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && strings.HasPrefix(local.String(), "127.0.0.4:") {
			select {
			case asked <- struct{}{}:
			default:
			}
			<-answer
		}
	}, "127.0.0.2", "127.0.0.4")
	url := "http://engines.test:" + port
	fleet := engines.NewFleet()
	l := New(Config{Fleet: fleet, Log: zap.NewNop(), Timeout: testutil.Patience, Resolver: resolver})
	t.Cleanup(l.Client.CloseIdleConnections)
	l.Set(Desired{Discover: discover(url), Settings: map[string]Settings{url: {ResolveAll: true}}})
	l.CheckOnce(t.Context())
	names.set(dnsmessage.RCodeSuccess, "127.0.0.4")
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.CheckOnce(t.Context())
	}()
	<-asked
	if during := fleetStates(fleet); len(during["chat"]) != 1 {
		t.Errorf("while the new server is checked: %v", during)
	}
	close(answer)
	<-done
	if after := fleetStates(fleet)["chat"]; len(after) != 1 || !slices.Contains(slices.Collect(maps.Values(after)), engines.Ready) {
		t.Errorf("after its check: %v", after)
	}
}

// TestU5_NoNameServerAnswers: servers whose addresses are known stay, however many they are.
func TestU5_NoNameServerAnswers(t *testing.T) {
	names, resolver := startNameServer(t, "engines.test", "127.0.0.2")
	one, _ := startAt(t, false, func(*http.Request) {}, "127.0.0.2")
	two, _ := startAt(t, false, func(*http.Request) {}, "127.0.0.2")
	fleet := engines.NewFleet()
	l := New(Config{Fleet: fleet, Log: zap.NewNop(), Timeout: 2 * time.Second, Resolver: resolver})
	t.Cleanup(l.Client.CloseIdleConnections)
	l.Set(Desired{Discover: discover("http://engines.test:"+one, "http://engines.test:"+two)})
	l.CheckOnce(t.Context())
	names.set(dnsmessage.RCodeServerFailure)
	for _, silent := range []bool{false, true} {
		names.setSilent(silent)
		l.CheckOnce(t.Context())
		for id, state := range fleetStates(fleet)["chat"] {
			if state != engines.Ready {
				t.Errorf("silent %v: %s is %s: %v", silent, id, state, l.Faults())
			}
		}
	}
	names.setSilent(false)
	names.set(dnsmessage.RCodeNameError)
	// The first look-ups may be those that have waited for the silent server.
	for range 10 {
		if l.CheckOnce(t.Context()); len(l.Faults()) > 0 {
			return
		}
	}
	t.Error("a name that does not exist any more is no fault")
}

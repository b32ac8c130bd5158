package realtime

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/memory"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/relay"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

func TestHandshake(t *testing.T) {
	good := http.Header{
		"Connection": {"keep-alive, Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"},
		"Sec-Websocket-Key": {"dGhlIHNhbXBsZSBub25jZQ=="}, "X-Sluice-Tenant": {"acme"},
	}
	for name, test := range map[string]struct {
		method  string
		header  http.Header
		origins bool
		status  int
		code    string
	}{
		"no upgrade":      {"GET", http.Header{"Connection": {"close"}}, false, 426, "invalid_request"},
		"post":            {"POST", nil, false, 405, "invalid_request"},
		"version":         {"GET", http.Header{"Sec-Websocket-Version": {"8"}}, false, 400, "invalid_request"},
		"key":             {"GET", http.Header{"Sec-Websocket-Key": {"short"}}, false, 400, "invalid_request"},
		"tenant":          {"GET", http.Header{"X-Sluice-Tenant": {"other"}}, false, 401, "invalid_api_key"},
		"no tenant":       {"GET", http.Header{"X-Sluice-Tenant": {}}, false, 401, "invalid_api_key"},
		"removed key":     {"GET", http.Header{"X-Sluice-Key": {"removed"}}, false, 401, "invalid_api_key"},
		"foreign origin":  {"GET", http.Header{"Origin": {"https://evil.example"}}, true, 403, "invalid_request"},
		"listed origin":   {"GET", http.Header{"Origin": {"https://listed.example"}}, true, 101, ""},
		"null origin":     {"GET", http.Header{"Origin": {"null"}}, true, 403, "invalid_request"},
		"good":            {"GET", nil, true, 101, ""},
		"keys, no origin": {"GET", http.Header{"Origin": {"https://app.example"}}, false, 101, ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGateway(t, func(h *Handler) {
				if test.origins {
					h.Allows = func(origin string) bool { return origin == "https://listed.example" }
				}
				h.Watch = func(_, key string) func() bool { return func() bool { return key != "removed" } }
			})
			r, err := http.NewRequest(test.method, g.url, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, header := range []http.Header{good, test.header} {
				for key, values := range header {
					r.Header[key] = values
				}
			}
			transport := &http.Transport{DisableKeepAlives: true}
			response, err := transport.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			if response.StatusCode != test.status {
				t.Fatalf("status %d, want %d", response.StatusCode, test.status)
			}
			if test.code == "" {
				return
			}
			var body struct{ Error struct{ Code string } }
			data, _ := io.ReadAll(response.Body)
			if json.Unmarshal(data, &body) != nil || body.Error.Code != test.code || response.Header.Get(headers.Source) != headers.SourceGateway {
				t.Errorf("got %s %v", data, response.Header)
			}
		})
	}
}

func TestOriginOfThePageItself(t *testing.T) {
	g := newGateway(t, func(h *Handler) { h.Allows = func(string) bool { return false } })
	header := handshake()
	header.Set("Origin", strings.TrimSuffix(g.url, "/v1/realtime"))
	g.dialWith(t, g.url, &websocket.DialOptions{HTTPHeader: header})
}

func TestSubprotocol(t *testing.T) {
	g := newGateway(t, nil)
	for want, offered := range map[string][]string{"realtime": {"openai-insecure-api-key.sk-1", "realtime"}, "": {"openai-insecure-api-key.sk-1"}} {
		c := g.dialWith(t, g.url, &websocket.DialOptions{HTTPHeader: handshake(), Subprotocols: offered})
		if got := c.conn.Subprotocol(); got != want {
			t.Errorf("%v: %q, want %q", offered, got, want)
		}
	}
}

func TestFrames(t *testing.T) {
	g := newGateway(t, func(h *Handler) { h.Limits.Message = 1000 })
	c := g.dial(t)
	c.send(hello + strings.Repeat(" ", 1000-len(hello)))
	r := g.engine.next(t)
	c.send(strings.Repeat(" ", 1001))
	if code := c.closed(); code != websocket.StatusMessageTooBig {
		t.Errorf("a large message: %d", code)
	}
	r.left()
	c = g.dial(t)
	c.conn.Write(context.Background(), websocket.MessageBinary, []byte(hello))
	if code := c.closed(); code != websocket.StatusUnsupportedData {
		t.Errorf("a binary message: %d", code)
	}
}

// TestTheClientLeaves: the engine is free at once, also when the turn is held up.
func TestTheClientLeaves(t *testing.T) {
	for name, leave := range map[string]func(c *client){
		"closes": func(c *client) { c.conn.Close(websocket.StatusNormalClosure, "bye") },
		"breaks": func(c *client) { c.conn.CloseNow() },
	} {
		t.Run(name, func(t *testing.T) {
			g := newGateway(t, nil)
			c := g.dial(t)
			c.send(`{"type":"start","model":"m","messages":[{}],"credit":0}`)
			r := g.engine.next(t)
			held := r.event(chunk(`{"content":"a"}`))
			leave(c)
			var fault *openai.Error
			if err := r.left(); errors.As(err, &fault) {
				t.Errorf("cause %v is not the client's leaving", err)
			}
			if err := within(t, held); err == nil {
				t.Error("the event that waited was sent")
			}
		})
	}
}

// TestAClientThatDoesNotRead: it is given up.
func TestAClientThatDoesNotRead(t *testing.T) {
	t.Parallel() // its close frame has 5 s
	g := newGateway(t, func(h *Handler) { h.Limits.Write = 200 * time.Millisecond })
	c := g.dial(t)
	c.send(hello)
	r := g.engine.next(t)
	word := strings.Repeat("x", 1<<20)
	for i := 0; r.ctx.Err() == nil && i < 256; i++ {
		select {
		case <-r.event(chunk(`{"content":"` + word + `"}`)):
		case <-r.ctx.Done(): // it may have come between two events
		}
	}
	var fault *openai.Error
	if err := r.left(); !errors.As(err, &fault) || fault.Code != openai.CodeClientTooSlow {
		t.Errorf("cause %v", err)
	}
}

// TestTooSlowIsSaid: as above, but the client reads on.
func TestTooSlowIsSaid(t *testing.T) {
	g := newGateway(t, func(h *Handler) { h.Limits.Write = 200 * time.Millisecond })
	c := g.dial(t)
	c.send(hello)
	r := g.engine.next(t)
	word := strings.Repeat("x", 1<<20)
	for r.ctx.Err() == nil {
		select {
		case <-r.event(chunk(`{"content":"` + word + `"}`)):
		case <-r.ctx.Done():
		case <-time.After(patience):
			t.Fatal("it is not given up")
		}
	}
	if code := c.closed(); code != websocket.StatusPolicyViolation {
		t.Errorf("closed with %d", code)
	}
}

// TestADeadPeer is one that answers no ping: the library answers only while the client reads.
func TestADeadPeer(t *testing.T) {
	g := newGateway(t, func(h *Handler) { h.Heartbeat, h.Limits.Write = always(50*time.Millisecond), 100*time.Millisecond })
	c := g.dial(t)
	c.send(hello)
	r := g.engine.next(t)
	var dead *closeReason
	if err := r.left(); !errors.As(err, &dead) || dead != closeNoPong {
		t.Errorf("cause %v", err)
	}
}

// TestALivingPeer answers pings and says nothing else.
func TestALivingPeer(t *testing.T) {
	var pings atomic.Int32
	g := newGateway(t, func(h *Handler) { h.Heartbeat = always(20 * time.Millisecond) })
	several := make(chan struct{})
	c := g.dialWith(t, g.url, &websocket.DialOptions{HTTPHeader: handshake(), OnPingReceived: func(context.Context, []byte) bool {
		if pings.Add(1) == 5 {
			close(several)
		}
		return true
	}})
	c.send(hello)
	r := g.engine.next(t)
	got := make(chan error, 1)
	go func() {
		_, err := c.read()
		got <- err
	}()
	within(t, several)
	r.say("still there")
	if err := within(t, got); err != nil {
		t.Error(err)
	}
}

// heldPings is a listener whose connections hold a ping of the gateway until a channel is closed.
type heldPings struct {
	net.Listener
	began   chan struct{}
	release <-chan struct{}
}

func (l *heldPings) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return &heldPing{Conn: c, of: l, closed: make(chan struct{})}, err
}

// heldPing is a connection of heldPings.
type heldPing struct {
	net.Conn
	of     *heldPings
	once   sync.Once
	closed chan struct{}
}

func (c *heldPing) Write(b []byte) (int, error) {
	if b[0] == 0x89 { // the first byte of a ping
		close(c.of.began)
		select {
		case <-c.of.release:
		case <-c.closed:
		}
	}
	return c.Conn.Write(b)
}

func (c *heldPing) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// TestS9_AStopWaitsForAPing: a socket that is stopped while the gateway pings its client is closed
// with the code of the reason.
func TestS9_AStopWaitsForAPing(t *testing.T) {
	g := newGateway(t, func(h *Handler) { h.Heartbeat = always(20 * time.Millisecond) })
	release := make(chan struct{})
	server := httptest.NewUnstartedServer(g.Handler)
	held := &heldPings{Listener: server.Listener, began: make(chan struct{}), release: release}
	server.Listener = held
	server.Start()
	t.Cleanup(server.Close)
	c := g.dialWith(t, server.URL+"/v1/realtime", nil)
	within(t, held.began)
	var stopped context.Context
	g.each(func(s *session) { stopped = s.socket.ctx })
	go g.Close(t.Context())
	within(t, stopped.Done())
	time.AfterFunc(50*time.Millisecond, func() { close(release) }) // a connection that is dropped is closed by then
	if code := c.closed(); code != websocket.StatusGoingAway {
		t.Errorf("closed with %d", code)
	}
}

func TestTooManySockets(t *testing.T) {
	g := newGateway(t, func(h *Handler) { h.Limits.SocketsPerTenant = 1 })
	first := g.dial(t)
	if code := g.dial(t).closed(); code != websocket.StatusTryAgainLater {
		t.Errorf("closed with %d", code)
	}
	first.send(hello)
	g.engine.next(t).finish("stop")
	first.final("stop")
	first.conn.Close(websocket.StatusNormalClosure, "")
	for deadline := time.Now().Add(patience); ; { // there is room again, once the server has seen that it is closed
		c := g.dial(t)
		c.conn.Write(context.Background(), websocket.MessageText, []byte(`{}`))
		m, err := c.read()
		if m.Type == "error" {
			return
		}
		if websocket.CloseStatus(err) != websocket.StatusTryAgainLater || time.Now().After(deadline) {
			t.Fatalf("got %s %v", m.raw, err)
		}
	}
}

// TestX7_IdleSockets shows that a socket without a turn and without a message is closed, and that
// one that is used stays.
func TestX7_IdleSockets(t *testing.T) {
	g := newGateway(t, func(h *Handler) { h.Limits.Idle = 50 * time.Millisecond })
	idle, used := g.dial(t), g.dial(t)
	used.send(hello)
	turn := g.engine.next(t)
	if code := idle.closed(); code != statusIdle {
		t.Errorf("closed with %d", code)
	}
	turn.finish("stop")
	used.final("stop")
	if code := used.closed(); code != statusIdle {
		t.Errorf("closed with %d", code)
	}
}

// TestX7_SocketsOfTenant shows that a tenant has its own number of sockets, that others are not
// affected, and that both are counted.
func TestX7_SocketsOfTenant(t *testing.T) {
	b := memory.NewBudget(1 << 20)
	g := newGateway(t, func(h *Handler) {
		h.Memory = b
		h.TenantSockets = func(name string) int { return map[string]int{"acme": 2}[name] }
	})
	first := g.dial(t)
	g.dial(t)
	if code := g.dial(t).closed(); code != websocket.StatusTryAgainLater {
		t.Errorf("closed with %d", code)
	}
	if s := g.Handler.Sockets(); s.Open < 2 || s.Limit != 10_000 || s.Tenant != "acme" || s.Refused != 1 {
		t.Errorf("%+v", s)
	}
	if !b.Reserve(memory.Requests, 1<<20-100) {
		t.Fatal("the budget is full")
	}
	first.send(hello)
	first.fault("gateway_unavailable")
	b.Release(memory.Requests, 1<<20-100)
	first.send(hello)
	g.engine.next(t).finish("stop")
	first.final("stop")
	if b.Used(memory.Requests) == 0 {
		t.Error("the conversation is not counted")
	}
	first.conn.Close(websocket.StatusNormalClosure, "")
	testutil.Eventually(t, "no memory is in use", func() bool { return b.Total() == 0 })
}

func TestATenantThatIsRemoved(t *testing.T) {
	var removed atomic.Bool
	g := newGateway(t, func(h *Handler) {
		h.Tenants = func(string, string) (*authz.Tenant, bool) { return &authz.Tenant{Name: "acme"}, !removed.Load() }
	})
	c := g.dial(t)
	c.send(hello)
	g.engine.next(t).finish("stop")
	c.final("stop")
	removed.Store(true)
	c.send(hello)
	if code := c.closed(); code != websocket.StatusPolicyViolation {
		t.Errorf("closed with %d", code)
	}
	g.engine.none(t)
}

func TestCloseLetsTurnsEnd(t *testing.T) {
	g := newGateway(t, nil)
	idle, busy := g.dial(t), g.dial(t)
	busy.send(hello)
	r := g.engine.next(t)
	idleGone := make(chan websocket.StatusCode, 1)
	go func() {
		_, err := idle.read()
		idleGone <- websocket.CloseStatus(err)
	}()
	closed := make(chan struct{})
	go func() {
		g.Close(context.Background())
		close(closed)
	}()
	if code := within(t, idleGone); code != websocket.StatusGoingAway {
		t.Errorf("idle socket: %d", code)
	}
	_, response, err := websocket.Dial(context.Background(), g.url, &websocket.DialOptions{HTTPHeader: handshake()})
	if err == nil || response.StatusCode != 503 || response.Header.Get("retry-after") == "" {
		t.Errorf("a new socket: %v %v", response, err)
	}
	r.delta(`{"tool_calls":[{"index":0,"id":"c0","function":{"name":"f","arguments":"{}"}}]}`)
	busy.expect("tool_call")
	busy.send(`{"type":"tool_cancel","tool_call_id":"c0"}`)
	busy.send(`{"type":"?"}`)
	busy.fault("invalid_request")
	r.finish("tool_calls")
	busy.expect("tool_call")
	busy.final("tool_calls")
	busy.fault("gateway_unavailable") // the next turn does not begin
	if code := busy.closed(); code != websocket.StatusGoingAway {
		t.Errorf("busy socket: %d", code)
	}
	within(t, closed)
	g.engine.none(t)
}

func TestCloseEndsTurnsThatTakeTooLong(t *testing.T) {
	g := newGateway(t, nil)
	c := g.dial(t)
	c.send(hello)
	r := g.engine.next(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	closed := make(chan struct{})
	go func() {
		g.Close(ctx)
		close(closed)
	}()
	if m := c.fault("gateway_unavailable"); m.RequestID != "abc" || !*m.Error.Retryable {
		t.Errorf("got %s", m.raw)
	}
	if code := c.closed(); code != websocket.StatusGoingAway {
		t.Errorf("closed with %d", code)
	}
	within(t, closed)
	r.left()
}

// TestManySockets: turns on many sockets at once do not meet.
func TestManySockets(t *testing.T) {
	h := &Handler{Heartbeat: always(time.Minute), Generator: echo{}, Tenants: func(string, string) (*authz.Tenant, bool) {
		return &authz.Tenant{Name: "acme"}, true
	}}
	g := newGateway(t, func(to *Handler) { to.Generator, to.Tenants = h.Generator, h.Tenants })
	done := make(chan error, 20)
	for i := range cap(done) {
		c := g.dial(t)
		go func() { done <- c.converse(string(rune('a' + i))) }()
	}
	for range cap(done) {
		if err := within(t, done); err != nil {
			t.Error(err)
		}
	}
}

// echo says the model's name, thrice.
type echo struct{}

func (echo) Generate(_ context.Context, c *relay.Call, sink relay.Sink) {
	for range 3 {
		sink.Event([]byte("data: "+chunk(`{"content":"`+c.Scan.Model+`"}`)+"\n\n"), 0)
	}
	sink.Finish(relay.Result{Finish: "stop"})
}

func (c *client) converse(model string) error {
	for range 10 {
		c.conn.Write(context.Background(), websocket.MessageText, []byte(`{"type":"start","model":"`+model+`","messages":[{}]}`))
		text := ""
		for {
			m, err := c.read()
			if err != nil {
				return err
			}
			if m.Type == "final" {
				break
			}
			text += m.Delta
		}
		if text != model+model+model {
			return errors.New("got " + text)
		}
	}
	return nil
}

// TestX7_SettingsAreCounted shows that what a socket keeps without a turn is counted too:
// parameters, and the settings of OpenAI's protocol.
func TestX7_SettingsAreCounted(t *testing.T) {
	large := strings.Repeat("x", 100_000)
	for _, message := range []string{
		`{"type":"update","params":{"user":"` + large + `"}}`,
		`{"type":"session.update","session":{"instructions":"` + large + `"}}`,
		`{"type":"session.update","session":{"tools":[{"type":"function","name":"f","description":"` + large + `"}]}}`,
	} {
		b := memory.NewBudget(1 << 20)
		g := newGateway(t, func(h *Handler) { h.Memory = b })
		c := g.dial(t)
		c.send(message)
		testutil.Eventually(t, "the message is counted: "+message[:30], func() bool { return b.Used(memory.Requests) >= int64(len(large)) })
		if !b.Reserve(memory.Requests, b.LimitOf(memory.Requests)-b.Used(memory.Requests)) {
			t.Fatal("the budget is full")
		}
		c.send(strings.ReplaceAll(message, large, large+large))
		for {
			m, err := c.read()
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(m.raw, "gateway_unavailable") {
				break
			}
			if m.Type == "session.updated" && strings.Contains(m.raw, large+large) {
				t.Fatalf("%.50s was accepted", message)
			}
		}
	}
}

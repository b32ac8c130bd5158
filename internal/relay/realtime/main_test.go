package realtime

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"go.uber.org/goleak"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/relay"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must come.
const patience = testutil.Patience

// engine is a Generator whose calls a test takes through their lives.
type engine struct{ calls chan *running }

// running is a call at work. Its steps are done by the goroutine that Generate was called from.
type running struct {
	t    testing.TB
	ctx  context.Context
	call *relay.Call
	sink relay.Sink

	steps chan func()
	over  bool
}

func (e *engine) Generate(ctx context.Context, c *relay.Call, sink relay.Sink) {
	r := &running{ctx: ctx, call: c, sink: sink, steps: make(chan func(), 16)}
	e.calls <- r
	for !r.over {
		select {
		case step := <-r.steps:
			step()
		case <-ctx.Done():
			return
		}
	}
}

func (e *engine) next(t *testing.T) *running {
	t.Helper()
	select {
	case r := <-e.calls:
		r.t = t
		return r
	case <-time.After(patience):
		t.Fatal("no call came")
	}
	return nil
}

// none says that no call has come.
func (e *engine) none(t *testing.T) {
	t.Helper()
	select {
	case r := <-e.calls:
		t.Fatalf("a call came: %s", r.call.Body)
	default:
	}
}

// later has the sink hear something, and does not wait.
func (r *running) later(hear func(relay.Sink) error) <-chan error {
	err := make(chan error, 1)
	r.steps <- func() { err <- hear(r.sink) }
	return err
}

func (r *running) event(data string) <-chan error {
	return r.later(func(s relay.Sink) error { return s.Event([]byte("data: "+data+"\n\n"), 0) })
}

func (r *running) say(words ...string) {
	r.t.Helper()
	for _, word := range words {
		r.delta(`{"content":` + string(openai.Encode(word)) + `}`)
	}
}

func (r *running) delta(delta string) {
	r.t.Helper()
	if err := within(r.t, r.event(chunk(delta))); err != nil {
		r.t.Fatalf("%s: %v", delta, err)
	}
}

func chunk(delta string) string {
	return `{"object":"chat.completion.chunk","choices":[{"index":0,"delta":` + delta + `,"finish_reason":null}]}`
}

func (r *running) end(result relay.Result) {
	r.steps <- func() {
		r.sink.Finish(result)
		r.over = true
	}
}

func (r *running) finish(reason string) {
	r.end(relay.Result{Finish: reason, Usage: relay.Usage{Prompt: 7, Completion: 3, Cached: 2, Known: true}})
}

// left waits for the call's context to end.
func (r *running) left() error {
	r.t.Helper()
	within(r.t, r.ctx.Done())
	return context.Cause(r.ctx)
}

func within[T any](t testing.TB, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatal("nothing happens")
	}
	panic("unreachable")
}

// gateway is a Handler behind a server.
type gateway struct {
	*Handler
	engine *engine
	url    string
}

func newGateway(t testing.TB, change func(*Handler)) *gateway {
	t.Helper()
	e := &engine{calls: make(chan *running, 16)}
	acme := &authz.Tenant{Name: "acme", Models: []string{"*"}}
	h := &Handler{Generator: e, Heartbeat: always(time.Minute), Tenants: func(name, _ string) (*authz.Tenant, bool) { return acme, name == "acme" }}
	if change != nil {
		change(h)
	}
	server := httptest.NewServer(h)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		h.Close(ctx)
		server.Close()
	})
	return &gateway{Handler: h, engine: e, url: server.URL + "/v1/realtime"}
}

// handshake is what Envoy sends on.
func handshake() http.Header {
	return http.Header{http.CanonicalHeaderKey(headers.Tenant): {"acme"}, http.CanonicalHeaderKey(headers.RequestID): {"r1"}}
}

// always returns a function that returns the value.
func always[T any](value T) func() T { return func() T { return value } }

func (g *gateway) dial(t testing.TB) *client {
	t.Helper()
	return g.dialWith(t, g.url, nil)
}

func (g *gateway) dialWith(t testing.TB, url string, o *websocket.DialOptions) *client {
	t.Helper()
	if o == nil {
		o = &websocket.DialOptions{HTTPHeader: handshake()}
	}
	conn, _, err := websocket.Dial(context.Background(), url, o)
	if err != nil {
		t.Fatal(err)
	}
	conn.SetReadLimit(-1)
	t.Cleanup(func() { conn.CloseNow() })
	return &client{t: t, conn: conn}
}

type client struct {
	t    testing.TB
	conn *websocket.Conn
}

// said is a message from the server.
type said struct {
	Type      string  `json:"type"`
	RequestID string  `json:"request_id"`
	Delta     string  `json:"delta"`
	Kind      string  `json:"kind"`
	Finish    *string `json:"finish_reason"`
	ID        string  `json:"id"`
	Index     int     `json:"index"`
	Name      string  `json:"name"`
	Arguments string  `json:"arguments"`
	Done      bool    `json:"done"`
	Phase     string  `json:"phase"`
	Error     struct {
		Code      string  `json:"code"`
		Type      string  `json:"type"`
		Message   string  `json:"message"`
		Param     *string `json:"param"`
		Retryable *bool   `json:"retryable"`
	} `json:"error"`
	raw string
}

func (c *client) send(message string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := c.conn.Write(ctx, websocket.MessageText, []byte(message)); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) read() (said, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	kind, data, err := c.conn.Read(ctx)
	if err != nil {
		return said{}, err
	}
	if kind != websocket.MessageText {
		return said{}, errors.New("not a text message")
	}
	m := said{raw: string(data)}
	d := json.NewDecoder(strings.NewReader(m.raw))
	return m, d.Decode(&m)
}

// expect is the next message, which must be of this type.
func (c *client) expect(kind string) said {
	c.t.Helper()
	m, err := c.read()
	if err != nil {
		c.t.Fatalf("instead of %s: %v", kind, err)
	}
	if m.Type != kind {
		c.t.Fatalf("got %s, want %s", m.raw, kind)
	}
	return m
}

func (c *client) tokens(words ...string) {
	c.t.Helper()
	for _, word := range words {
		if m := c.expect("token"); m.Delta != word {
			c.t.Fatalf("got %s, want %q", m.raw, word)
		}
	}
}

func (c *client) final(reason string) said {
	c.t.Helper()
	m := c.expect("final")
	if m.Finish == nil || *m.Finish != reason {
		c.t.Fatalf("got %s, want %s", m.raw, reason)
	}
	return m
}

// fault is the next message, which must be an error of this code.
func (c *client) fault(code string) said {
	c.t.Helper()
	m := c.expect("error")
	if m.Error.Code != code || m.Error.Message == "" || m.Error.Type == "" || m.Error.Retryable == nil {
		c.t.Fatalf("got %s, want %s", m.raw, code)
	}
	return m
}

// closed reads until the socket is closed, and says how.
func (c *client) closed() websocket.StatusCode {
	c.t.Helper()
	for {
		if _, err := c.read(); err != nil {
			return websocket.CloseStatus(err)
		}
	}
}

// body is the request that the call is made of.
func (r *running) body() (b struct {
	Model      string            `json:"model"`
	Messages   []json.RawMessage `json:"messages"`
	Tools      json.RawMessage   `json:"tools"`
	ToolChoice json.RawMessage   `json:"tool_choice"`
	Heat       *float64          `json:"temperature"`
}) {
	r.t.Helper()
	if err := json.Unmarshal(r.call.Body, &b); err != nil {
		r.t.Fatal(err)
	}
	return b
}

// conversation is what the engine was told was said, one message a line.
func (r *running) conversation() string {
	r.t.Helper()
	var lines []string
	for _, m := range r.body().Messages {
		lines = append(lines, string(m))
	}
	return strings.Join(lines, "\n")
}

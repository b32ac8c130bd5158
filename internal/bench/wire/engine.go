// Package wire has clients and engines that speak just enough HTTP/1.1 over raw TCP. Command
// internal/bench uses them, because they cost little beside the proxies that it measures. The
// answers are made in advance, and the engines read nothing of a request but its length.
package wire

import (
	"bufio"
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync/atomic"
	"time"
)

// Plan is how engines answer requests that are not GET requests.
type Plan struct {
	// Events is the number of tokens of each stream. 0: each answer is one JSON object.
	Events int
	// Pause is the time between two events of a stream. 0: the engine writes them one after the
	// other, each by a call of its own.
	Pause time.Duration
	// Stagger is the number of streams that begin in the middle, at random, so that the streams of
	// a measurement do not all end at the same time.
	Stagger int
}

// Engines are servers on ports of the loopback interface with one plan for all of them.
type Engines struct {
	listeners []net.Listener
	plan      atomic.Pointer[running]
}

// running is a plan that is carried out.
type running struct {
	Plan
	// sent is the number of events so far, begun the number of streams.
	sent, begun atomic.Int64
	// hurry tells that streams end at their next event but the first.
	hurry atomic.Bool
}

// Start starts n engines with the zero Plan. They serve until Close.
func Start(n int) (*Engines, error) {
	e := &Engines{}
	e.Begin(Plan{})
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			e.Close()
			return nil, err
		}
		e.listeners = append(e.listeners, l)
		go e.accept(l)
	}
	return e, nil
}

// Addresses returns the host:port of each engine.
func (e *Engines) Addresses() []string {
	var all []string
	for _, l := range e.listeners {
		all = append(all, l.Addr().String())
	}
	return all
}

// Close stops the engines. A connection that is open ends with its peer.
func (e *Engines) Close() {
	for _, l := range e.listeners {
		l.Close()
	}
}

// Begin sets the plan of all requests that arrive from now on.
func (e *Engines) Begin(p Plan) { e.plan.Store(&running{Plan: p}) }

// Sent returns the number of events that the engines have sent since Begin.
func (e *Engines) Sent() int64 { return e.plan.Load().sent.Load() }

// Hurry makes streams end at their next event but the first.
func (e *Engines) Hurry() { e.plan.Load().hurry.Store(true) }

func (e *Engines) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return // the listener is closed
		}
		go e.serve(c)
	}
}

// serve answers the requests of a connection until it breaks.
func (e *Engines) serve(c net.Conn) {
	defer c.Close()
	in := bufio.NewReaderSize(c, 64<<10)
	for {
		get, err := readRequest(in)
		if err != nil {
			return
		}
		p := e.plan.Load()
		switch {
		case get:
			_, err = c.Write(modelsAnswer)
		case p.Events == 0:
			_, err = c.Write(chatAnswer)
		default:
			err = p.stream(c)
		}
		if err != nil {
			return
		}
	}
}

// stream writes a whole stream.
func (p *running) stream(c net.Conn) error {
	events := p.Events
	if p.begun.Add(1) <= int64(p.Stagger) {
		events = 1 + rand.IntN(events) //nolint:gosec // the length of a made-up stream
	}
	next := time.Now()
	for i := range events {
		if i > 0 && p.Pause > 0 {
			next = next.Add(p.Pause)
			time.Sleep(time.Until(next))
		}
		if i > 0 && p.hurry.Load() {
			break
		}
		text := eventChunk
		if i == 0 {
			text = firstChunk
		}
		if _, err := c.Write(text); err != nil {
			return err
		}
		p.sent.Add(1)
	}
	if p.Pause > 0 {
		time.Sleep(p.Pause)
	}
	_, err := c.Write(lastChunk)
	return err
}

// readRequest reads a request with its body. get tells that its method is GET.
func readRequest(in *bufio.Reader) (get bool, err error) {
	line, err := in.ReadSlice('\n')
	if err != nil {
		return false, err
	}
	get = bytes.HasPrefix(line, []byte("GET "))
	length := 0
	for {
		if line, err = in.ReadSlice('\n'); err != nil {
			return get, err
		}
		name, value, found := bytes.Cut(bytes.TrimRight(line, "\r\n"), []byte(":"))
		switch {
		case !found:
			return get, discardBody(in, length)
		case bytes.EqualFold(name, []byte("content-length")):
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return get, err
			}
		case bytes.EqualFold(name, []byte("transfer-encoding")):
			length = -1
		}
	}
}

// discardBody reads a body of this length. -1: the body comes in chunks.
func discardBody(in *bufio.Reader, length int) error {
	if length >= 0 {
		_, err := in.Discard(length)
		return err
	}
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return err
		}
		size, err := strconv.ParseInt(string(bytes.TrimRight(line, "\r\n")), 16, 32)
		if err != nil {
			return fmt.Errorf("a chunk of length %q: %w", line, err)
		}
		if _, err := in.Discard(int(size) + len("\r\n")); err != nil {
			return err
		}
		if size == 0 {
			return nil
		}
	}
}

const (
	object = `"id":"chatcmpl-0123456789abcdef","object":"chat.completion`
	usage  = `"usage":{"prompt_tokens":100,"completion_tokens":32,"total_tokens":132}`
	// streamHead is the beginning of the answer to a stream.
	streamHead = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
)

// The answers. Each stream has one event in each chunk, and ends with its usage and [DONE].
var (
	modelsAnswer = answer(`{"object":"list","data":[{"id":"limited"},{"id":"native"},{"id":"managed"}]}`)
	chatAnswer   = answer(`{` + object + `","created":1764000000,"model":"bench","choices":[{"index":0,"message":{"role":"assistant",` +
		`"content":"a short answer"},"finish_reason":"stop"}],` + usage + `}`)
	firstChunk = []byte(streamHead + chunk(event(`{"role":"assistant","content":"token"}`, "null")))
	eventChunk = []byte(chunk(event(`{"content":" token"}`, "null")))
	lastChunk  = []byte(chunk(event(`{}`, `"stop"`)+`data: {`+object+`.chunk","created":1764000000,"model":"bench","choices":[],`+usage+"}\n\n"+
		"data: [DONE]\n\n") + "0\r\n\r\n")
)

// answer returns a whole answer with this body.
func answer(body string) []byte {
	return fmt.Appendf(nil, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s", len(body), body)
}

func event(delta, finish string) string {
	return `data: {` + object + `.chunk","created":1764000000,"model":"bench","choices":[{"index":0,"delta":` + delta + `,"finish_reason":` + finish + "}]}\n\n"
}

// chunk returns a text as one chunk of HTTP/1.1.
func chunk(text string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(text), text) }

package streams

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// textEngine is an engine that streams what the header x-test-talk names. "words" and "tools" are
// streams of x-test-events chunks. "pages" is a stream of long chunks that cannot be merged.
type textEngine struct {
	url  string
	said sync.Map // kind → channel that is closed when the slow client's stream of that kind is over
}

func startTextEngine(t *testing.T) *textEngine {
	e := new(textEngine)
	e.url = harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if harness.ServeModelList(w, r, "m") {
			return
		}
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		kind := r.Header.Get("X-Test-Talk")
		n, _ := strconv.Atoi(r.Header.Get("X-Test-Events"))
		pause, _ := time.ParseDuration(r.Header.Get("X-Test-Pause"))
		if said, slow := e.said.Load(kind); slow && pause == 0 {
			defer close(said.(chan struct{}))
		}
		out := bufio.NewWriterSize(w, 16<<10)
		for i := range n {
			fmt.Fprintf(out, "data: %s\n\n", chunkTexts[kind](i))
			if pause > 0 {
				if out.Flush(); http.NewResponseController(w).Flush() != nil {
					return
				}
				time.Sleep(pause)
			}
			if r.Context().Err() != nil {
				return
			}
		}
		for index := range choices(kind) {
			fmt.Fprintf(out, `data: {"choices":[{"index":%d,"delta":{},"finish_reason":"stop"}]}`+"\n\n", index)
		}
		fmt.Fprint(out, "data: [DONE]\n\n")
		out.Flush() //nolint:errcheck // the gateway may have given it up
	})
	return e
}

// head is what makes a chunk as long as real ones are.
const head = `{"id":"chatcmpl-0123456789abcdef0123456789abcdef","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":`

func choices(kind string) int {
	if kind == "tools" {
		return 2
	}
	return 1
}

var chunkTexts = map[string]func(i int) string{
	"words": func(i int) string { return fmt.Sprintf(head+`[{"index":0,"delta":{"content":"w%d "}}]}`, i) },
	"pages": func(i int) string {
		return fmt.Sprintf(head+`[{"index":0,"delta":{"content":"p%d %s"}}]}`, i, strings.Repeat("x", 6<<10))
	},
	// Two choices in turn, each with two calls whose arguments come in pieces.
	"tools": func(i int) string {
		choice, call := i%2, i/2%2
		id := ""
		if i < 4 {
			id = fmt.Sprintf(`"id":"call-%d-%d","type":"function",`, choice, call)
		}
		return fmt.Sprintf(head+`[{"index":%d,"delta":{"tool_calls":[{"index":%d,%s"function":{"arguments":"a%d,"}}]}}]}`, choice, call, id, i)
	},
}

// receivedText is what a client has put together: the text of each choice, and its calls in the
// order in which they began.
type receivedText struct {
	texts  map[string]*strings.Builder
	order  []string
	finish int
}

func (h *receivedText) add(key, text string) {
	if h.texts[key] == nil {
		h.texts[key] = new(strings.Builder)
		h.order = append(h.order, key)
	}
	h.texts[key].WriteString(text)
}

// put adds the data of one chunk, as a client does.
func (h *receivedText) put(t *testing.T, data string) {
	t.Helper()
	var c struct {
		Choices []struct {
			Index int
			Delta struct {
				Content string
				Calls   []struct {
					Index    int
					ID       string
					Function struct{ Arguments string }
				} `json:"tool_calls"`
			}
			Finish string `json:"finish_reason"`
		}
	}
	if err := json.Unmarshal([]byte(data), &c); err != nil {
		t.Fatalf("%q: %v", data, err)
	}
	if h.texts == nil {
		h.texts = map[string]*strings.Builder{}
	}
	for _, choice := range c.Choices {
		if choice.Delta.Content != "" {
			h.add(strconv.Itoa(choice.Index), choice.Delta.Content)
		}
		for _, call := range choice.Delta.Calls {
			h.add(fmt.Sprint(choice.Index, "/", call.Index), call.ID+call.Function.Arguments)
		}
		if choice.Finish != "" {
			h.finish++
		}
	}
}

// same returns an error that names the first difference from want.
func (h *receivedText) same(want *receivedText) error {
	if got, want := fmt.Sprint(h.order), fmt.Sprint(want.order); got != want {
		return fmt.Errorf("heard %s, said %s", got, want)
	}
	for key, text := range want.texts {
		if h.texts[key].String() != text.String() {
			return fmt.Errorf("%s: heard %d bytes, said %d", key, h.texts[key].Len(), text.Len())
		}
	}
	if h.finish != want.finish {
		return fmt.Errorf("%d choices finished, of %d", h.finish, want.finish)
	}
	return nil
}

// expectedText returns the text that the engine sends for such a request.
func expectedText(t *testing.T, kind string, n int) *receivedText {
	h := &receivedText{}
	for i := range n {
		h.put(t, chunkTexts[kind](i))
	}
	h.finish = choices(kind)
	return h
}

// narrowClient returns a client with a small socket buffer. The buffer is large enough for fast
// reads.
func narrowClient(t *testing.T) *http.Client {
	transport := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, address)
		if err == nil {
			err = c.(*net.TCPConn).SetReadBuffer(128 << 10)
		}
		return c, err
	}, ReadBufferSize: 1 << 10}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// slowReader reads 1 kB of a stream each second, until it is told to read at full speed.
type slowReader struct {
	io.Reader
	until <-chan struct{}
}

func (s slowReader) Read(b []byte) (int, error) {
	select {
	case <-s.until:
		return s.Reader.Read(b)
	default:
	}
	select {
	case <-s.until:
	case <-time.After(time.Second):
	}
	return s.Reader.Read(b[:min(len(b), 1000)])
}

func openText(ctx context.Context, g *harness.Gateway, c *http.Client, headers ...string) (*http.Response, error) {
	body := `{"model":"m","stream":true,"n":2,"messages":[{"role":"user","content":"talk"}]}`
	if headers[1] != "tools" {
		body = strings.Replace(body, `"n":2,`, "", 1)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.URL+harness.ChatPath, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	r, err := c.Do(req)
	if err == nil && r.StatusCode != 200 {
		return nil, errors.New(r.Status)
	}
	return r, err
}

// A client that reads 1 kB a second gets merged events while its engine goes on, and all of them.
// One for which too much waits is told so, and its engine is free. Others on the same replica lose
// nothing, and the gateway stays small.
func TestE2E_S3_S16_SlowClients(t *testing.T) {
	t.Parallel()
	e := startTextEngine(t)
	g := harness.Start(t, fmt.Sprintf(`
models:
  - name: m
    launcher: upstream
    upstreams: [%q]
    admission: {max_concurrent_requests: 100, max_per_replica: 100}
    stream: {mode: managed}
`, e.url))
	before := residentBytes(g, "VmRSS")
	var fast sync.WaitGroup
	for range 50 {
		fast.Go(func() { fastClient(g, t) })
	}
	for kind, n := range map[string]int{"words": 60_000, "tools": 60_000} {
		slowButKeepsUp(g, t, e, kind, n)
	}
	fast.Wait()
	tooSlow(g, t)
	harness.Eventually(t, "the stream that was given up is counted", func() error {
		if n := g.Metric(`stream_disconnects_total{cause="slow_client"}`); n != 1 {
			return fmt.Errorf("%v times", n)
		}
		return nil
	})
	if grown := (residentBytes(g, "VmHWM") - before) / 1e6; grown > 80 {
		t.Errorf("the gateway grew by %.1f MB", grown)
	} else {
		t.Logf("the gateway grew by %.1f MB", grown)
	}
	g.AwaitIdle("m")
}

// fastClient reads a whole stream at the pace of its engine.
func fastClient(g *harness.Gateway, t *testing.T) {
	const n = 400
	r, err := openText(context.Background(), g, harness.Client, "X-Test-Talk", "words", "X-Test-Events", strconv.Itoa(n), "X-Test-Pause", "5ms")
	if err != nil {
		t.Error(err)
		return
	}
	defer r.Body.Close()
	all, err := harness.ReadEvents(r.Body)
	if err != nil || len(all) == 0 || all[len(all)-1].Data != "[DONE]" {
		t.Errorf("a fast client's stream of %d events ended with %v", len(all), err)
		return
	}
	var got receivedText
	for _, e := range all[:len(all)-1] {
		if e.Data != "" {
			got.put(t, e.Data)
		}
	}
	if err := got.same(expectedText(t, "words", n)); err != nil {
		t.Error("a fast client: ", err)
	}
}

// slowButKeepsUp reads slowly until the engine has said everything, and the rest then.
func slowButKeepsUp(g *harness.Gateway, t *testing.T, e *textEngine, kind string, n int) {
	t.Helper()
	said := make(chan struct{})
	e.said.Store(kind, said)
	r, err := openText(context.Background(), g, narrowClient(t), "X-Test-Talk", kind, "X-Test-Events", strconv.Itoa(n))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	all, err := harness.ReadEvents(slowReader{r.Body, said})
	if err != nil || len(all) == 0 || all[len(all)-1].Data != "[DONE]" {
		t.Fatalf("%s: %d events, then %v; the last %+v", kind, len(all), err, all[max(0, len(all)-1):])
	}
	var got receivedText
	for _, e := range all[:len(all)-1] {
		if e.Data != "" {
			got.put(t, e.Data)
		}
	}
	if err := got.same(expectedText(t, kind, n)); err != nil {
		t.Errorf("%s: %v", kind, err)
	}
	if len(all) > n*9/10 { // how many are, depends on how far behind the client is
		t.Errorf("%s: %d events for %d: hardly any was merged", kind, len(all), n)
	}
	t.Logf("%s: %d events for %d", kind, len(all), n)
}

// tooSlow reads slowly what cannot be merged, until the engine is free.
func tooSlow(g *harness.Gateway, t *testing.T) {
	t.Helper()
	r, err := openText(context.Background(), g, narrowClient(t), "X-Test-Talk", "pages", "X-Test-Events", "20000")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	freed := make(chan struct{})
	go func() {
		defer close(freed)
		for end := time.Now().Add(90 * time.Second); time.Now().Before(end); { // not awaitIdle: this goroutine may not end the test
			var list struct{ Models []harness.Model }
			if err := g.TryGet("/api/v1/models", &list); err != nil || list.Models[0].InFlight == 0 {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
	all, err := harness.ReadEvents(slowReader{r.Body, freed})
	if n := g.Model("m").InFlight; n != 0 {
		t.Errorf("%d are still in flight", n)
	}
	if err != nil || len(all) == 0 {
		t.Fatalf("%d events, then %v", len(all), err)
	}
	last := all[len(all)-1]
	if last.Data == "[DONE]" {
		t.Fatal("a stream of which much was lost ended well")
	}
	if e := last.Chunk(t).Error; e == nil || e.Code != "client_too_slow" || !e.Retryable || e.RetryAfter == 0 {
		t.Errorf("the last event is %.300s", last.Data)
	}
	if len(all) > 10_000 {
		t.Errorf("%d events came through", len(all))
	}
}

package relay

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/memory"
	"github.com/sluice-gateway/sluice/internal/request"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// awaitMemory waits until nothing of the budget is in use.
func (h *harness) awaitMemory(b *memory.Budget) {
	h.t.Helper()
	testutil.Eventually(h.t, "no memory is in use", func() bool { return b.Total() == 0 })
}

// endlessAnswer is an engine whose JSON never ends. It records the most that was in use.
func endlessAnswer(b *memory.Budget, most *atomic.Int64) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("content-type", "application/json")
		io.WriteString(w, `{"choices":[{"message":{"content":"`)
		for r.Context().Err() == nil {
			if _, err := w.Write(bytes.Repeat([]byte("x"), 64<<10)); err != nil {
				return
			}
			for n := b.Total(); n > most.Load(); {
				most.Store(n)
			}
		}
	})
}

// TestX7_EndlessAnswers shows that endless answers of named requests are bounded each and in all,
// and that everything is given back.
func TestX7_EndlessAnswers(t *testing.T) {
	b, most := memory.NewBudget(24<<20), new(atomic.Int64)
	h := newHarness(t, options{handler: endlessAnswer(b, most), memory: b, maxAnswer: 8 << 20, policy: Policy{Resume: 10 * time.Millisecond}})
	whole := strings.Replace(hello, `"stream":true,`, "", 1)
	var all sync.WaitGroup
	for i := range 10 {
		all.Go(func() {
			status, text := h.sendAndRead(whole, fmt.Sprint("id: r", i))
			if status != 502 && status != 503 || !strings.Contains(text, "larger than") && !strings.Contains(text, "no memory left") {
				t.Errorf("%d %s", status, text)
			}
		})
	}
	all.Wait()
	h.awaitMemory(b)
	if most.Load() > 24<<20 || most.Load() < 8<<20 {
		t.Errorf("%d bytes were in use", most.Load())
	}
}

// TestX7_BodiesWait shows that a request whose body does not fit waits, and is then refused so that
// its client tries again.
func TestX7_BodiesWait(t *testing.T) {
	b := memory.NewBudget(4 << 20)
	h := newHarness(t, options{memory: b})
	if !b.Reserve(memory.Requests, 4<<20-10) {
		t.Fatal("the budget is full")
	}
	r := h.send(hello)
	text, _ := io.ReadAll(r.Body)
	r.Body.Close()
	if r.StatusCode != 503 || r.Header.Get("retry-after") == "" || !strings.Contains(string(text), "no memory left") {
		t.Errorf("%d %v %s", r.StatusCode, r.Header, text)
	}
	b.Release(memory.Requests, 4<<20-10)
	if status, text := h.sendAndRead(hello); status != 200 || endingOf(text) != "whole" {
		t.Errorf("%d %s", status, text)
	}
	h.awaitMemory(b)
}

// TestX7_ReplaysGiveWay shows that the events for clients that come back use no more than their
// share, and that the streams themselves go on without them.
func TestX7_ReplaysGiveWay(t *testing.T) {
	// A slow reader has room for a whole stream beside the share of the replays, which four
	// streams would exceed.
	b := memory.NewBudget(3 << 20)
	text := strings.Repeat("y", 4000)
	events := []string{roleEvent}
	for range 100 {
		events = append(events, tokenEvent(text))
	}
	h := newHarness(t, options{handler: engineThatSends(append(events, finishEvent("", "stop"), doneEvent)...), memory: b, policy: Policy{Resume: time.Hour}})
	for i := range 4 {
		_, all := h.sendAndRead(hello, fmt.Sprint("id: s", i))
		if words, marks := contentOf(all); len(words) != 100*4000 || marks != 1 {
			t.Errorf("%d bytes, %d end markers", len(words), marks)
		}
	}
	if used := b.Used(memory.Replays); used == 0 || used > b.LimitOf(memory.Replays) || b.Refused(memory.Replays) == 0 {
		t.Errorf("%d bytes are kept, %d reservations were refused", used, b.Refused(memory.Replays))
	}
}

// TestX7_NothingIsLeft shows that each way a call can end gives back what it has reserved.
func TestX7_NothingIsLeft(t *testing.T) {
	whole := strings.Replace(hello, `"stream":true,`, "", 1)
	refusing := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, strings.Repeat("no ", 9000), 500) })
	answering := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("content-type", "application/json")
		io.WriteString(w, `{"choices":[{"message":{"content":"`+strings.Repeat("x", 100_000)+`"}}]}`)
	})
	for name, o := range map[string]options{
		"refusals": {handler: refusing, replicas: 3},
		"answers":  {handler: answering},
		"no JSON":  {handler: engineThatSends("{")},
		"hangs":    {handler: engineThatHangs(roleEvent)},
		"blocked":  {handler: answering, rules: literalRule("xxx")},
	} {
		b := memory.NewBudget(64 << 20)
		o.memory, o.policy = b, Policy{Resume: time.Millisecond}
		h := newHarness(t, o)
		for i, more := range []string{"", "id: a", "id: a", "id: b"} {
			body := []string{hello, whole}[i%2]
			if name == "hangs" {
				body = helloWith(`"timeout_ms":50`)
			}
			if more == "" {
				h.sendAndRead(body)
				continue
			}
			h.sendAndRead(body, more)
		}
		h.awaitMemory(b)
		h.waitIdle()
	}
}

// TestX7_ForwardedBodiesAreCounted shows that a body that another gateway or process has forwarded
// is counted as any other.
func TestX7_ForwardedBodiesAreCounted(t *testing.T) {
	b := memory.NewBudget(4 << 20)
	h := newHarness(t, options{handler: engineThatHangs(), memory: b})
	forward := func(ctx context.Context) int {
		request := httptest.NewRequestWithContext(ctx, http.MethodPost, "/v1/chat/completions", strings.NewReader(hello))
		request.Header.Set("content-type", "application/json")
		request.Header.Set(headers.Tenant, "acme")
		w := httptest.NewRecorder()
		h.peerHandler().ServeHTTP(w, request)
		return w.Code
	}
	ctx, leave := context.WithCancel(t.Context())
	var client sync.WaitGroup
	client.Go(func() { forward(ctx) })
	for h.dispatcher.Load("m-0") == 0 {
		time.Sleep(time.Millisecond)
	}
	if used := b.Used(memory.Requests); used < int64(len(hello)) {
		t.Errorf("%d bytes are counted", used)
	}
	leave()
	client.Wait()
	h.awaitMemory(b)
	if !b.Reserve(memory.Requests, 4<<20-10) {
		t.Fatal("the budget is full")
	}
	ctx, leave = context.WithTimeout(t.Context(), testutil.Patience)
	defer leave()
	if status := forward(ctx); status != 503 {
		t.Errorf("without memory: %d", status)
	}
	b.Release(memory.Requests, 4<<20-10)
}

// TestX7_RefusedCallsHoldNoMemory: a call that is refused after its body was reserved gives the
// memory back.
func TestX7_RefusedCallsHoldNoMemory(t *testing.T) {
	b := memory.NewBudget(4 << 20)
	h := newHarness(t, options{memory: b, policy: Policy{Resume: time.Minute}})
	if status, text := h.sendAndRead(hello, "id: r1", "last-event-id: x"); status != 400 || !strings.Contains(text, "Last-Event-ID") {
		t.Errorf("%d %s", status, text)
	}
	h.awaitMemory(b)
}

// TestX7_StoredUsageInLittleMemory: an answer with a stored response that is too large, or for
// which there is no memory, tells no usage. Its client gets all of it. The memory is given back.
func TestX7_StoredUsageInLittleMemory(t *testing.T) {
	t.Parallel()
	const head, tail = `{"id":"resp_1","object":"response","status":"completed","text":"`, `","usage":{"input_tokens":10,"output_tokens":3,"total_tokens":13}}`
	for name, c := range map[string]struct {
		length, most int
		taken        int64
		status       int
		told         bool
	}{
		"it fits":          {100_000, 1 << 20, 0, 200, true},
		"just too large":   {100_000, 100_000 + len(head) + len(tail) - 1, 0, 200, false},
		"as large as may":  {100_000, 100_000 + len(head) + len(tail), 0, 200, true},
		"no memory":        {100_000, 1 << 20, 1 << 20, 200, false},
		"none for a copy":  {100_000, 1 << 20, 1<<20 - 90_000, 200, false},
		"an error's usage": {100, 1 << 20, 0, 404, false},
	} {
		b := memory.NewBudget(1 << 20)
		if c.taken = min(c.taken, b.LimitOf(memory.Answers)); !b.Reserve(memory.Answers, c.taken) {
			t.Fatal("the budget is full")
		}
		r := &Relay{config: Config{Memory: b, MaxAnswer: int64(c.most)}}
		whole, told := head+strings.Repeat("x", c.length)+tail, []request.Usage(nil)
		body, release := r.readUsage(&http.Response{StatusCode: c.status, Header: http.Header{"Content-Type": {"application/json"}},
			Body: io.NopCloser(strings.NewReader(whole))}, func(u request.Usage) { told = append(told, u) })
		got := new(strings.Builder)
		if _, err := io.CopyBuffer(got, struct{ io.Reader }{body}, make([]byte, 4096)); err != nil || got.String() != whole {
			t.Errorf("%s: %d bytes of %d came, %v", name, got.Len(), len(whole), err)
		}
		held := b.Total() - c.taken
		if c.told != (len(told) == 1 && told[0].Known && told[0].Prompt == 10 && told[0].Completion == 3) || (held > 0) != c.told {
			t.Errorf("%s: told %+v, and %d bytes are held", name, told, held)
		}
		if release(); b.Total() != c.taken {
			t.Errorf("%s: %d bytes are not given back", name, b.Total()-c.taken)
		}
	}
}

package streams

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// resume resumes a stream after the given event.
func resume(g *harness.Gateway, id, after string) *harness.Answer {
	g.T.Helper()
	return g.Fetch("/v1/streams/"+id, "Last-Event-ID: "+after)
}

const resumable = `
models:
  - name: m
    engine: sim
    launcher: local
    variables: {prefill_rate: 0, token_interval: 5ms}
    stream: {resume: 10m}
`

// A start that is repeated joins the stream that runs, or replays the one that has ended. There is
// one generation.
func TestE2E_S6_RepeatedStartJoins(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, resumable)
	body := withFields(harness.ChatBody("m", true, 60, "once"), `"request_id":"one"`)
	var bodies [4][]byte
	var asking sync.WaitGroup
	for i := range bodies {
		asking.Go(func() {
			time.Sleep(time.Duration(i) * 40 * time.Millisecond) // in the middle of it
			a, err := g.TryPost(context.Background(), harness.ChatPath, body)
			if err != nil {
				t.Error(err)
				return
			}
			bodies[i] = a.Content
		})
	}
	asking.Wait()
	if t.Failed() {
		return
	}
	for i, b := range bodies {
		if !bytes.Equal(plainStream(b), plainStream(bodies[0])) || harness.CheckWholeStream(b) != nil || !bytes.HasPrefix(plainStream(b), []byte("id: 0\n")) {
			t.Errorf("%d. has\n%s\nthe first\n%s", i, b, bodies[0])
		}
	}
	late := g.Post(harness.ChatPath, body) // it has ended by now
	if !bytes.Equal(plainStream(late.Content), plainStream(bodies[0])) {
		t.Errorf("replayed:\n%s", late.Content)
	}
	if n := g.Generations("m-0"); n != 1 {
		t.Errorf("%d generations", n)
	}
	if a := g.Post(harness.ChatPath, strings.Replace(body, "once", "twice", 1)); a.StatusCode != 409 || a.Code() != "request_id_conflict" {
		t.Errorf("another body: %s", a)
	}
	if a := g.Post(harness.ChatPath, withFields(harness.ChatBody("m", true, 5, "other"), `"request_id":"two"`)); a.StatusCode != 200 {
		t.Errorf("another id: %s", a)
	}
	// A call that does not stream is joined too.
	whole := withFields(harness.ChatBody("m", false, 60, "whole"), `"request_id":"three"`)
	var answers [3]*harness.Answer
	for i := range answers {
		asking.Go(func() { answers[i] = g.Post(harness.ChatPath, whole) })
	}
	asking.Wait()
	for _, a := range answers {
		if a.StatusCode != 200 || !bytes.Equal(a.Content, answers[0].Content) || !strings.Contains(a.Header.Get("Content-Type"), "application/json") {
			t.Errorf("%s, the first %s", a, answers[0])
		}
	}
	if n := g.Generations("m-0"); n != 3 {
		t.Errorf("%d generations", n)
	}
	g.AwaitIdle("m")
}

// plainStream returns a numbered stream without its heartbeats.
func plainStream(b []byte) []byte {
	var out []byte
	for _, e := range bytes.SplitAfter(b, []byte("\n\n")) {
		if !bytes.HasPrefix(e, []byte(":")) {
			out = append(out, e...)
		}
	}
	return out
}

// A stream whose connection breaks off anywhere goes on where it was, byte for byte, while the
// engine never notices.
func TestE2E_S7_ResumeIsByteIdentical(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, strings.Replace(resumable, "5ms", "2ms", 1))
	cuts := 100
	if n, err := strconv.Atoi(os.Getenv("SLUICE_STREAM_RUNS")); err == nil {
		cuts = n / 10
	}
	var cutting sync.WaitGroup
	for w := range 4 {
		cutting.Go(func() {
			random := rand.New(rand.NewPCG(11, uint64(w)))
			for i := range cuts / 4 {
				id := fmt.Sprintf("c %d/%d", w, i) // has to be escaped in a path
				got, err := cutAndResume(g, id, random)
				if err != nil {
					t.Errorf("%s: %v", id, err)
					return
				}
				whole := g.Fetch("/v1/streams/" + escape(id))
				if !bytes.Equal(got, plainStream(whole.Content)) || harness.CheckWholeStream(got) != nil {
					t.Errorf("%s:\n%s\nwas\n%s", id, got, whole.Content)
					return
				}
			}
		})
	}
	cutting.Wait()
	g.AwaitIdle("m")
	if n := g.Generations("m-0"); n != min(cuts, 256) { // more it does not remember
		t.Errorf("%d generations for %d streams", n, cuts)
	}
	if a := g.Fetch("/v1/streams/nobody"); a.StatusCode != 404 || a.Code() != "stream_not_found" {
		t.Errorf("an unknown id: %s", a)
	}
}

func escape(id string) string {
	return strings.ReplaceAll(strings.ReplaceAll(id, " ", "%20"), "/", "%2F")
}

// cutAndResume reads a stream over several connections. It closes each connection at a random byte
// and resumes the stream on the next.
func cutAndResume(g *harness.Gateway, id string, random *rand.Rand) ([]byte, error) {
	body := withFields(harness.ChatBody("m", true, 40, id), fmt.Sprintf(`"request_id":%q`, id))
	r, err := g.Open(context.Background(), harness.ChatPath, body)
	if err != nil {
		return nil, err
	}
	var all []byte
	last := "-1"
	for {
		part, _ := io.ReadAll(io.LimitReader(r.Body, int64(random.IntN(4000))))
		r.Body.Close()
		if cut := bytes.LastIndex(part, []byte("\n\n")); cut >= 0 { // a client keeps whole events only
			events := plainStream(part[:cut+2])
			all = append(all, events...)
			if at := bytes.LastIndex(events, []byte("id: ")); at >= 0 {
				last, _, _ = strings.Cut(string(events[at+len("id: "):]), "\n")
			}
		}
		if bytes.HasSuffix(all, []byte("data: [DONE]\n\n")) {
			return all, nil
		}
		req, err := http.NewRequest(http.MethodGet, g.URL+"/v1/streams/"+escape(id), nil)
		if err != nil {
			return nil, err
		}
		req.Header.Set("Last-Event-ID", last)
		if r, err = harness.Client.Do(req); err != nil {
			return nil, err
		}
		if r.StatusCode != 200 {
			b, _ := io.ReadAll(r.Body)
			return nil, fmt.Errorf("after %s: %s %s", last, r.Status, b)
		}
	}
}

// A cancel stops the engine at once. Without one a named stream goes on for its grace when its
// client leaves, and no longer.
func TestE2E_S4_S7_CancelAndGrace(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, strings.Replace(resumable, "resume: 10m", "resume: 5s", 1))
	open := func(id string) *http.Response {
		r, err := g.Open(context.Background(), harness.ChatPath, withFields(harness.ChatBody("m", true, 100000, id), `"request_id":"`+id+`"`))
		if err != nil {
			t.Fatal(err)
		}
		io.ReadFull(r.Body, make([]byte, 500))
		return r
	}
	cancelled := open("a")
	if a := g.Post("/v1/streams/a/cancel", ""); a.StatusCode != 200 || string(a.Content) != `{"ok":true}` {
		t.Errorf("cancel: %s", a)
	}
	all, err := harness.ReadEvents(cancelled.Body)
	if err != nil || !strings.Contains(all[len(all)-1].Data, `"code":"cancelled"`) {
		t.Errorf("the client of a cancelled stream: %v %v", err, all[len(all)-1:])
	}
	g.AwaitIdle("m")
	if a := g.Post("/v1/streams/nobody/cancel", ""); a.StatusCode != 404 {
		t.Errorf("cancel of nothing: %s", a)
	}
	if a := g.Fetch("/v1/streams/a/cancel"); a.StatusCode != 405 {
		t.Errorf("GET of a cancel: %s", a)
	}
	left := open("b")
	left.Body.Close()
	if a := g.Model("m"); a.InFlight != 1 {
		t.Errorf("a moment after its client has left: %+v", a)
	}
	g.AwaitIdle("m")
	// A client that comes back within the grace saves it.
	back := open("c")
	back.Body.Close()
	req, _ := http.NewRequest(http.MethodGet, g.URL+"/v1/streams/c?after=0", nil)
	again, err := harness.Client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Body.Close()
	first := make([]byte, 6)
	if _, err := io.ReadFull(again.Body, first); err != nil || string(first) != "id: 1\n" {
		t.Errorf("%q: %v", first, err)
	}
	later := open("d") // its grace ends after that of the other one
	later.Body.Close()
	g.AwaitModel("m", "the stream that was left later has ended", func(m harness.Model) bool { return m.InFlight <= 1 })
	if a := g.Post("/v1/streams/c/cancel", ""); a.StatusCode != 200 {
		t.Errorf("cancel of the one that was saved: %s", a)
	}
	if rest, err := io.ReadAll(again.Body); err != nil || !bytes.Contains(rest, []byte(`"code":"cancelled"`)) {
		t.Errorf("the stream that was saved ended before its cancel: %v, %s", err, rest[max(0, len(rest)-300):])
	}
	g.AwaitIdle("m")
	var list struct{ Requests []map[string]any }
	if err := json.Unmarshal([]byte(g.AdminText("/api/v1/requests?limit=20")), &list); err != nil || len(list.Requests) == 0 {
		t.Errorf("%v", err)
	}
	harness.Eventually(t, "the cancelled stream is in the metrics", func() error { // the other one's client had left
		if n := g.Metric(`stream_disconnects_total{cause="cancelled"}`); n != 1 {
			return fmt.Errorf("%v are", n)
		}
		return nil
	})
}

// A tenant's request ids are its own.
func TestE2E_S6_RequestIDsOfTenantsDoNotMeet(t *testing.T) {
	t.Parallel()
	keys, text := harness.TenantKeys("acme", "rival")
	g := harness.Start(t, "\nauth: {mode: keys}\n"+text+resumable)
	body := withFields(harness.ChatBody("m", true, 400, "mine"), `"request_id":"x"`)
	r, err := g.Open(context.Background(), harness.ChatPath, body, "Authorization: Bearer "+keys["acme"])
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	io.ReadFull(r.Body, make([]byte, 300))
	if a := g.Fetch("/v1/streams/x", "Authorization: Bearer "+keys["rival"]); a.StatusCode != 404 {
		t.Errorf("another tenant reads the stream: %s", a)
	}
	req, _ := http.NewRequest(http.MethodPost, g.URL+"/v1/streams/x/cancel", nil)
	req.Header.Set("Authorization", "Bearer "+keys["rival"])
	if a := g.Do(harness.Client, req); a.StatusCode != 404 {
		t.Errorf("another tenant cancels the stream: %s", a)
	}
	if a := g.Fetch("/v1/streams/x"); a.StatusCode != 401 {
		t.Errorf("without a key: %s", a)
	}
	if a := g.Fetch("/v1/streams/x", "Authorization: Bearer "+keys["acme"], "x-sluice-tenant: rival"); a.StatusCode != 200 {
		t.Errorf("its own: %s", a)
	}
	g.AwaitIdle("m")
}

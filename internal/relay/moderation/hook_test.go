package moderation_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/relay/moderation"
)

// service is a hook that blocks text with "bad" in it, and notes what it is asked.
type service struct {
	*httptest.Server
	mu    sync.Mutex
	asked []string
}

func newService(t *testing.T) *service {
	s := &service{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		s.asked = append(s.asked, string(body))
		s.mu.Unlock()
		action := "allow"
		if strings.Contains(string(body), "bad") {
			action = "block"
		}
		json.NewEncoder(w).Encode(map[string]string{"action": action})
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *service) rule() moderation.Rule {
	return moderation.Rule{Name: "hook", Window: 4, Hook: &moderation.Hook{URL: s.URL, Every: 8, Client: s.Client(), Timeout: time.Minute}}
}

func TestHook(t *testing.T) {
	s := newService(t)
	r := newRelay(s.rule())
	r.filter.Model = "m"
	r.see(t, content("0123"), content("456"), content("789"), content("é"), content("ab"), content("cdef"), content("g")).end(t)
	want := []string{
		`{"model":"m","text":"0123456789","choice":0,"final":false}`,
		`{"model":"m","text":"6789éabcdef","choice":0,"final":false}`,
		`{"model":"m","text":"cdefg","choice":0,"final":true}`,
	}
	if d := cmp.Diff(want, s.asked); d != "" {
		t.Error(d)
	}
	if r.last.Action != moderation.Pass || len(r.sent) != 7 {
		t.Errorf("%d sent, %+v", len(r.sent), r.last)
	}
}

// The window begins with a whole rune.
func TestHookWindow(t *testing.T) {
	s := newService(t)
	newRelay(s.rule()).see(t, content("0123456é9é"), content("12345678"))
	if got := s.asked[len(s.asked)-1]; !strings.Contains(got, `"text":"9é12345678"`) && !strings.Contains(got, `"text":"é9é12345678"`) {
		t.Errorf("asked %s", got)
	}
}

func TestHookBlocks(t *testing.T) {
	s := newService(t)
	r := newRelay(s.rule()).see(t, content("0123"), chunk(1, "content", "b"), content("4 bad 56"))
	if len(r.sent) != 3 || !r.blocked() || r.last.Rule != "hook" {
		t.Errorf("%d sent, %+v", len(r.sent), r.last)
	}
	r = newRelay(s.rule()).see(t, chunk(2, "content", "bad")).end(t)
	if d := cmp.Diff(moderation.Verdict{Ended: true, Rule: "hook", Choice: 2}, r.last); d != "" {
		t.Errorf("at the end: %s", d)
	}
}

// Each text is asked about for itself.
func TestHookTexts(t *testing.T) {
	s := newService(t)
	newRelay(s.rule()).see(t, chunk(0, "content", "a"), chunk(0, "reasoning", "b"), chunk(1, "content", "c")).end(t)
	if len(s.asked) != 3 {
		t.Errorf("asked %s", s.asked)
	}
}

func TestHookBody(t *testing.T) {
	s := newService(t)
	body := `{"model":"m","choices":[{"message":{"content":"fine"},"finish_reason":"stop"},{"message":{"content":"a bad one"},"finish_reason":"stop"}]}`
	got, v := moderation.New([]moderation.Rule{s.rule()}).CheckAnswer(t.Context(), "m", []byte(body))
	want := `{"model":"m","choices":[{"message":{"content":"fine"},"finish_reason":"stop"},{"message":{"content":""},"finish_reason":"content_filter"}]}`
	if string(got) != want || v.Rule != "hook" || v.Choice != 1 {
		t.Errorf("%s, %+v", got, v)
	}
	if len(s.asked) != 2 || !strings.Contains(strings.Join(s.asked, ""), `{"model":"m","text":"fine","choice":0,"final":true}`) {
		t.Errorf("asked %s", s.asked)
	}
}

// A hook that gives no answer passes or blocks, as it was said, and its error tells neither the
// text nor the address.
func TestHookFails(t *testing.T) {
	stop := make(chan struct{})
	other := newService(t)
	answers := map[string]http.HandlerFunc{
		"status":  func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) },
		"garbage": func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html>") },
		"action":  func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"action":"maybe"}`) },
		"cut":     func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"slow":    func(_ http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body); <-stop },
		"redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
		},
		"endless": func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 1<<16)); err != nil {
					return
				}
			}
		},
	}
	for name, answer := range answers {
		server := httptest.NewServer(answer)
		for _, open := range []bool{false, true} {
			hook := &moderation.Hook{URL: server.URL + "/?key=hidden", FailOpen: open, Client: server.Client(), Timeout: 200 * time.Millisecond}
			r := newRelay(moderation.Rule{Name: "hook", Hook: hook}).see(t, content("private")).end(t)
			if r.blocked() == open || r.last.Err == nil {
				t.Errorf("%s, open %v: %+v", name, open, r.last)
			} else if text := r.last.Err.Error(); strings.Contains(text, "private") || strings.Contains(text, "hidden") || strings.Contains(text, server.URL) {
				t.Errorf("%s: the error says %q", name, text)
			}
		}
		if name == "slow" {
			close(stop)
		}
		server.Close()
	}
	if len(other.asked) != 0 {
		t.Error("a redirect was followed")
	}
}

// A client that leaves ends the wait for an answer.
func TestHookLeft(t *testing.T) {
	asked, stop := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		close(asked)
		<-stop
	}))
	defer server.Close()
	defer close(stop)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-asked; cancel() }()
	hook := &moderation.Hook{URL: server.URL, Every: 1, Timeout: time.Hour, Client: server.Client()}
	filter := moderation.New([]moderation.Rule{{Hook: hook}}).NewFilter()
	if v := filter.Check(ctx, []byte(content("x"))); v.Err == nil {
		t.Errorf("%+v", v)
	}
}

// What is kept for hooks does not grow, and nothing is lost of it.
func TestHookMemory(t *testing.T) {
	s := newService(t)
	rule := s.rule()
	rule.Window, rule.Hook.Every = 100, 500
	r := newRelay(rule)
	var text strings.Builder
	for i := range 5000 {
		part := string(rune('a' + i%26))
		text.WriteString(part)
		r.see(t, content(part))
	}
	all := ""
	for i, asked := range s.asked {
		var q struct{ Text string }
		json.Unmarshal([]byte(asked), &q)
		if i > 0 {
			if len(q.Text) != 600 || !strings.HasSuffix(all, q.Text[:100]) {
				t.Fatalf("question %d has %d bytes", i, len(q.Text))
			}
			q.Text = q.Text[100:]
		}
		all += q.Text
	}
	if all != text.String() {
		t.Errorf("%d bytes were asked about, of %d", len(all), text.Len())
	}
}

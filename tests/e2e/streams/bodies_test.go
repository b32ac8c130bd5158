package streams

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// digests starts an upstream that answers every request with the SHA-256 of its body.
func digests(t *testing.T) string {
	return harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if harness.ServeModelList(w, r, "m") {
			return
		}
		h := sha256.New()
		io.Copy(h, r.Body)
		fmt.Fprint(w, hex.EncodeToString(h.Sum(nil)))
	})
}

func TestE2E_T5_BodiesArriveByteForByte(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, "upstreams: ["+digests(t)+"]\n")
	random := rand.New(rand.NewPCG(1, 2))
	sizes := []int{1, 100, 5000, 64 << 10, 1 << 20, 5 << 20, 30 << 20}
	for i := range 60 {
		sizes = append(sizes, random.IntN(20000)+i)
	}
	for _, size := range sizes {
		body := oddJSON(random, size)
		a, err := g.TryPost(context.Background(), "/v1/chat/completions", body)
		if err != nil {
			t.Fatal(err)
		}
		want := sha256.Sum256([]byte(body))
		if a.StatusCode != 200 || string(a.Content) != hex.EncodeToString(want[:]) {
			t.Fatalf("%d bytes: %s", len(body), a)
		}
	}
}

// oddJSON returns a valid chat body of about that size with everything that a re-encoding would
// change: spacing, escapes, number forms, key order, text beyond ASCII.
func oddJSON(random *rand.Rand, size int) string {
	var b strings.Builder
	space := func() { b.WriteString([]string{"", " ", "\n\t", "\r\n  "}[random.IntN(4)]) }
	b.WriteString("{")
	space()
	b.WriteString(`"messages"`)
	space()
	b.WriteString(`:[{"role":"user","content":"`)
	pieces := []string{"plain words ", `\u00e9\n\/`, "žluťoučký ", "日本語", "🙂", `\ud83d\ude00`, `\"quoted\"`, "\u2028", "\x7f"}
	for b.Len() < size {
		b.WriteString(pieces[random.IntN(len(pieces))])
	}
	b.WriteString(`"}],`)
	space()
	b.WriteString(`"temperature":1.00e+0,"model":"\u006d",`)
	space()
	b.WriteString(`"x":{"a":[1,-0,1E2,null,true],"a":2}}`)
	space()
	return b.String()
}

func TestE2E_T5_OwnOptionsAreRemovedAndNothingElse(t *testing.T) {
	t.Parallel()
	bodies := make(chan string, 1)
	g := harness.Start(t, "upstreams: ["+harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if harness.ServeModelList(w, r, "m") {
			return
		}
		b, _ := io.ReadAll(r.Body)
		bodies <- string(b)
		json.NewEncoder(w).Encode(map[string]any{"headers": r.Header, "length": r.ContentLength})
	})+"]\n")
	a := g.Post("/v1/chat/completions", `{"model":"m", "request_id":"r-1", "timeout_ms": 60000, "x": [1 , 2] ,"max_duration_ms":600000}`,
		"Authorization: Bearer hush", "X-Api-Key: hush")
	if got := harness.Receive(t, bodies, "the engine gets a body"); got != `{"model":"m", "x": [1 , 2] }` && got != `{"model":"m", "x": [1 , 2]}` {
		t.Errorf("the engine got %s", got)
	}
	if a.StatusCode != 200 || strings.Contains(string(a.Content), "hush") {
		t.Errorf("keys must not reach the engine: %s", a)
	}
	if strings.Contains(strings.ToLower(string(a.Content)), `"x-sluice`) {
		t.Errorf("internal headers reached the engine: %s", a)
	}
}

func TestE2E_S1_StreamHeaders(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, harness.OneSim)
	a := g.Post("/v1/chat/completions", harness.ChatBody("chat", true, 5, "hello"), "Accept-Encoding: gzip, br")
	if err := harness.CheckWholeStream(a.Content); err != nil || a.StatusCode != 200 {
		t.Fatalf("%v: %s", err, a)
	}
	for name, want := range map[string]string{
		"Content-Type": "text/event-stream", "Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no", "Content-Encoding": "",
	} {
		if got := a.Header.Get(name); !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	plain := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 5, "hello"))
	if plain.Header.Get("X-Accel-Buffering") != "" {
		t.Error("an answer that is no stream has the headers of one")
	}
}

// An alias is a name of ours, and the engine is asked by its own; an adapter is a name of the
// engine's.
func TestE2E_N3_T5_AdaptersAreAskedForByTheirNames(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, `models:
  - name: base
    aliases: [nickname]
    adapters: [org/sql-lora]
    launcher: upstream
    upstreams: [`+harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if !harness.ServeModelList(w, r, "base") {
			io.Copy(w, r.Body)
		}
	})+"]\n")
	for name, asked := range map[string]string{"base": "base", "nickname": "base", "org/sql-lora": "org/sql-lora"} {
		a := g.Post("/v1/chat/completions", harness.ChatBody(name, false, 1, "Hello"))
		if want := harness.ChatBody(asked, false, 1, "Hello"); a.StatusCode != 200 || string(a.Content) != want {
			t.Errorf("%s: %s", name, a)
		}
	}
	if list := string(g.Fetch("/v1/models").Content); !strings.Contains(list, `"id":"org/sql-lora"`) || strings.Contains(list, "nickname") {
		t.Error(list)
	}
	if card := string(g.Fetch("/v1/models/org/sql-lora").Content); !strings.Contains(card, `"id":"org/sql-lora"`) {
		t.Error(card)
	}
}

package xds

import (
	"fmt"
	"maps"
	"math"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai/sse"
	"github.com/sluice-gateway/sluice/internal/testutil/answers"
)

// The reader inside Envoy finds what the relay finds in the same stream, and changes nothing.
func TestR3_ReaderOfStreams(t *testing.T) {
	t.Parallel()
	g := newGateway(t, Config{Listen: "127.0.0.1:0"}, nil)
	all := answers.Events()
	maps.Copy(all, answers.Reasons())
	g.settle(t, "m", replica("m-0", costlyEngine(t, all)))
	for name, c := range all {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := g.readOf(t, c, name)
			if found := fmt.Sprintf("%d %d %s", got.tokens, got.ended, got.finish); found != c.Want {
				t.Errorf("read %q, want %q", found, c.Want)
			}
			body := strings.Join(c.Pieces, "")
			if got.bytes != len(body) {
				t.Errorf("%d bytes of %d", got.bytes, len(body))
			}
			if gaps := max(0, got.tokens-1); got.gaps() != gaps {
				t.Errorf("%v: %d gaps, want %d", got.classes, got.gaps(), gaps)
			}
			if tracked := tracked(body); c.ContentType == answers.SSE && name != "messages" && tracked != int64(got.tokens) {
				t.Errorf("the relay finds %d tokens, Envoy %d", tracked, got.tokens)
			}
		})
	}
}

// The comments of the reader are no part of the listener, which another comment would replace.
func TestTheReaderHasNoComments(t *testing.T) {
	t.Parallel()
	code := streamReader().DefaultSourceCode.GetInlineString()
	if !strings.Contains(code, "function envoy_on_response(") || strings.Contains(code, "--") {
		t.Errorf("%s", code)
	}
}

// tracked returns how many tokens the relay finds in a stream.
func tracked(body string) int64 {
	var tracker sse.Tracker
	var scanner sse.Scanner
	scanner.Feed([]byte(body))
	scanner.End()
	for scanner.Next() {
		tracker.See(scanner.Event())
	}
	return tracker.Tokens()
}

// reading is what Envoy has read of a response.
type reading struct {
	tokens, bytes, ended int
	finish               string
	classes              map[int]int
}

func (r reading) gaps() (all int) {
	for _, n := range r.classes {
		all += n
	}
	return all
}

// readOf gets a response and returns what Envoy has read of it.
func (g *gateway) readOf(t *testing.T, c answers.Answer, name string) (r reading) {
	t.Helper()
	a := g.reads(t, c, "x-test-cluster", "model/m", "x-test-response", name, "x-test-stream", "1", "x-test-tenant", "acme",
		"x-test-usage", headers.UsageOfOpenAI+headers.UsageAndStream)
	m := g.log.wait(t, a.Header.Get(headers.RequestID)).GetCommonProperties().GetMetadata()
	text := m.GetFilterMetadata()[headers.MetadataStream].GetFields()[headers.MetadataRead].GetStringValue()
	var first, last float64
	gaps := ""
	if n, err := fmt.Sscanf(text+" ", "%d %d %f %f %d %s %s", &r.tokens, &r.bytes, &first, &last, &r.ended, &r.finish, &gaps); n < 6 {
		t.Fatalf("%q: %v", text, err)
	}
	if first > last || r.tokens > 0 && time.Since(time.UnixMicro(int64(first))) > time.Minute {
		t.Errorf("first token at %f, last at %f", first, last)
	}
	r.classes = map[int]int{}
	for pair := range strings.SplitSeq(gaps, ",") {
		class, n, _ := strings.Cut(pair, ":")
		if class != "" {
			at, _ := strconv.Atoi(class)
			r.classes[at], _ = strconv.Atoi(n)
		}
	}
	return r
}

// A stall between two events is one gap. Envoy may have read the event before it late.
func TestR3_ReaderSeesAStall(t *testing.T) {
	t.Parallel()
	const stall = 2 * time.Second
	word := answers.Delta(`"content":"a"`, "")
	g := newGateway(t, Config{Listen: "127.0.0.1:0"}, nil)
	g.settle(t, "m", replica("m-0", serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", answers.SSE)
		for n := range 10 {
			if n == 5 {
				time.Sleep(stall)
			}
			fmt.Fprint(w, word)
			w.(http.Flusher).Flush()
		}
	})))
	got := g.readOf(t, answers.Answer{Pieces: []string{strings.Repeat(word, 10)}}, "")
	long := 0
	for class, n := range got.classes {
		if 10*math.Pow(1.02, float64(class)) >= float64(stall.Microseconds())/2 {
			long += n
		}
	}
	if got.tokens != 10 || got.gaps() != 9 || long == 0 { // a busy machine may have made others
		t.Errorf("%d tokens, %d gaps, %d of them like the stall: %v", got.tokens, got.gaps(), long, got.classes)
	}
}

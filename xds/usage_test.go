package xds

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	aidata "github.com/envoyproxy/go-control-plane/envoy/data/ai/v3"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/testutil/answers"
)

// costlyEngine answers as the header x-test-response asks.
func costlyEngine(t testing.TB, all map[string]answers.Answer) net.Addr {
	return serve(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) //nolint:errcheck // a test
		c := all[r.Header.Get("x-test-response")]
		w.Header().Set("Content-Type", c.ContentType)
		if c.Encoding != "" {
			w.Header().Set("Content-Encoding", c.Encoding)
		}
		if c.Trailed {
			w.Header().Set("Trailer", "x-test-trailer")
			defer w.Header().Set("x-test-trailer", "1")
		}
		if len(c.Pieces) == 1 {
			w.Header().Set("Content-Length", strconv.Itoa(len(c.Pieces[0])))
		}
		if c.Status != 0 {
			w.WriteHeader(c.Status)
		}
		for _, p := range c.Pieces {
			io.WriteString(w, p) //nolint:errcheck // the client sees
			if len(c.Pieces) > 1 {
				w.(http.Flusher).Flush()
			}
		}
		if c.Cut {
			panic(http.ErrAbortHandler)
		}
	})
}

// The access log has the usage of a response if ext_proc asked for it, and the response is what the
// engine sent.
func TestUsage(t *testing.T) {
	t.Parallel()
	g := newGateway(t, Config{Listen: "127.0.0.1:0"}, nil)
	for kind, all := range map[string]map[string]answers.Answer{"whole": answers.Whole(t), "stream": answers.Streams(t), "messages": answers.Messages()} {
		engine := costlyEngine(t, all)
		g.settle(t, kind, replica(kind+"-0", engine))
		for name, c := range all {
			t.Run(kind+"/"+name, func(t *testing.T) {
				t.Parallel()
				ask := []string{"x-test-cluster", "model/" + kind, "x-test-response", name, "Accept-Encoding", "identity", "x-test-tenant", "acme"}
				if kind == "stream" {
					ask = append(ask, "x-test-stream", "1")
				}
				plain := g.reads(t, c, ask...)
				checkUsage(t, g, plain, "")
				for _, also := range []string{"", "1", "read"} {
					usage := headers.UsageOfOpenAI
					if kind == "messages" {
						usage = headers.UsageOfMessages
					}
					if also == "read" {
						usage += headers.UsageAndStream
					}
					counted := g.reads(t, c, append(ask, "x-test-usage", usage, "x-test-observe", also)...)
					checkUsage(t, g, counted, c.Want)
					if d := cmp.Diff(lasting(plain.Header), lasting(counted.Header)); d != "" {
						t.Errorf("the headers have changed (-plain +counted):\n%s", d)
					}
				}
			})
		}
	}
}

// reads gets a response and checks that it is what the engine sent.
func (g *gateway) reads(t *testing.T, c answers.Answer, pairs ...string) answer {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+g.addr+chatPath, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(pairs); i += 2 {
		request.Header.Set(pairs[i], pairs[i+1])
	}
	response, err := g.client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if (err != nil) != c.Cut {
		t.Errorf("reading: %v", err)
	}
	if want := strings.Join(c.Pieces, ""); string(body) != want {
		t.Errorf("%d bytes have become %d others", len(want), len(body))
	}
	return answer{response, body}
}

// lasting returns the headers that are the same in every response.
func lasting(h http.Header) http.Header {
	h = h.Clone()
	h.Del("Date")
	h.Del(headers.RequestID)
	return h
}

func checkUsage(t *testing.T, g *gateway, a answer, want string) {
	t.Helper()
	m := g.log.wait(t, a.Header.Get(headers.RequestID)).GetCommonProperties().GetMetadata()
	var u aidata.TokenUsage
	if packed := m.GetTypedFilterMetadata()[headers.MetadataUsage]; packed != nil {
		if err := packed.UnmarshalTo(&u); err != nil {
			t.Fatal(err)
		}
	}
	got := ""
	if u.GetExtractionStatus() == aidata.TokenUsage_COMPLETE && u.GetInputTokens() != nil {
		got = fmt.Sprint(u.GetInputTokens().GetValue(), u.GetOutputTokens().GetValue())
	}
	if total := u.GetProviderTotalTokens(); u.GetExtractionStatus() == aidata.TokenUsage_COMPLETE && u.GetInputTokens() == nil && u.GetOutputTokens().GetValue() == 0 && total != nil {
		got = fmt.Sprint(total.GetValue(), -1)
	}
	if got != want {
		t.Errorf("usage %q, want %q: %v", got, want, &u)
	}
	if m.GetFilterMetadata()[headers.Metadata].GetFields()[headers.MetadataTenant].GetStringValue() != "acme" {
		t.Errorf("the dynamic metadata became %v", m)
	}
}

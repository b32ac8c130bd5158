package news

import (
	"context"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// pemOf returns the certificate of a test server.
func pemOf(s *httptest.Server) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
}

// FuzzPage: no page of metrics makes the reader panic, or yields numbers that are not finite.
func FuzzPage(f *testing.F) {
	pages, err := filepath.Glob("testdata/*.prom")
	if err != nil || len(pages) == 0 {
		f.Fatal(pages, err)
	}
	for _, name := range pages {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(data))
	}
	b := newBook(Known{Engines: catalogue()})
	f.Fuzz(func(t *testing.T, text string) {
		p, err := readPage(strings.NewReader(text), b.wanted)
		if err != nil {
			return
		}
		b.recognise("/metrics", p)
		for _, recipe := range b.known {
			for _, figure := range recipe.figures {
				for _, place := range figure {
					if v, n := p.sum(place); n == 1 && !finite(v) {
						t.Errorf("%v: %v", place, v)
					}
				}
			}
		}
	})
}

// longPage returns the metrics of vLLM with as many other lines as make it that long.
func longPage(tb testing.TB, size int) string {
	vllm, err := os.ReadFile("testdata/vllm-0.32.prom")
	if err != nil {
		tb.Fatal(err)
	}
	text := vllm
	for i := 0; len(text) < size; i++ {
		text = fmt.Appendf(text, `vllm:e2e_request_latency_seconds_bucket{engine="0",le="%d.0",model_name="chat"} 12345.0`+"\n", i)
	}
	return string(text)
}

// BenchmarkPage reads a page as vLLM has it, and one of nearly the greatest size.
func BenchmarkPage(b *testing.B) {
	book := newBook(Known{Engines: catalogue()})
	for _, size := range []int{60 << 10, 1000 << 10} {
		text := longPage(b, size)
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := readPage(strings.NewReader(text), book.wanted); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkAsk asks a server with a page of 60 KiB over TCP. A thousand replicas are 500 questions
// a second.
func BenchmarkAsk(b *testing.B) {
	text := []byte(longPage(b, 60<<10))
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Write(text) //nolint:errcheck // the client sees it
	}))
	defer s.Close()
	r := New(Config{Fleet: engines.NewFleet(), Timeout: testutil.Patience})
	r.Set(Known{Engines: catalogue()})
	a := &asked{replica: engines.Replica{Launcher: engines.Upstream, Address: addressOf(s)}, client: engines.NewClient(nil), news: silence()}
	defer a.client.CloseIdleConnections()
	b.ReportAllocs()
	for b.Loop() {
		if r.ask(context.Background(), a); a.news.Fault != "" {
			b.Fatal(a.news.Fault)
		}
	}
}

package xds

import (
	"context"
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

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/testutil/answers"
)

// The streams of BenchmarkStreamReader.
const (
	benchStreams, benchEvents = 64, 200
	benchPause                = 5 * time.Millisecond
)

// readerVariants are the ways in which streams are read: one in share of them, or none if it is 0.
var readerVariants = []struct {
	name, usage string
	share       int
}{
	{"unread", "", 0},
	{"1-of-64", headers.UsageOfOpenAI + headers.UsageAndStream, 64},
	{"usage-alone", headers.UsageOfOpenAI, 1},
	{"all", headers.UsageOfOpenAI + headers.UsageAndStream, 1},
}

// BenchmarkStreamReader measures the processor time of Envoy for an event of a stream. It has
// streams that nobody reads, streams of which one in 64 is read, and streams that all are read, for
// their usage alone or for everything. Each round measures all of them one after the other, in a
// random order.
func BenchmarkStreamReader(b *testing.B) {
	g := newGateway(b, Config{Listen: "127.0.0.1:0"}, nil)
	g.client.Transport.(*http.Transport).MaxIdleConnsPerHost = benchStreams
	g.settle(b, "m", replica("m-0", serve(b, wordEngine)))
	cost := make([]time.Duration, len(readerVariants))
	g.runStreams(b, readerVariants[3].usage, 1) // warms up
	rounds := 0
	for b.Loop() {
		for _, i := range rand.Perm(len(readerVariants)) {
			before := g.processorTime(b)
			g.runStreams(b, readerVariants[i].usage, readerVariants[i].share)
			cost[i] += g.processorTime(b) - before
		}
		rounds++
	}
	for i, v := range readerVariants {
		b.ReportMetric(float64(cost[i].Microseconds())/float64(rounds*benchStreams*benchEvents), v.name+"-µs/event")
		b.ReportMetric(float64(cost[i])/float64(cost[0]), v.name+"/unread")
	}
}

// wordEngine streams a chat as vLLM does, at a steady pace.
func wordEngine(w http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body) //nolint:errcheck // a benchmark
	w.Header().Set("Content-Type", answers.SSE)
	for n := range benchEvents {
		fmt.Fprintf(w, `data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,"model":"m",`+
			`"choices":[{"index":0,"delta":{"content":" word%d"},"logprobs":null,"finish_reason":null}]}`+"\n\n", n)
		w.(http.Flusher).Flush()
		time.Sleep(benchPause)
	}
	io.WriteString(w, answers.LastChunk+answers.DoneChunk) //nolint:errcheck // a benchmark
}

// runStreams carries benchStreams streams at once. One in share of them is read as usage says; 0:
// none is.
func (g *gateway) runStreams(b *testing.B, usage string, share int) {
	var all sync.WaitGroup
	for n := range benchStreams {
		all.Go(func() {
			request, err := http.NewRequestWithContext(context.Background(), http.MethodPost, "http://"+g.addr+chatPath, strings.NewReader("{}"))
			if err != nil {
				b.Error(err)
				return
			}
			request.Header.Set("x-test-cluster", "model/m")
			request.Header.Set("x-test-stream", "1")
			if share > 0 && n%share == 0 {
				request.Header.Set("x-test-usage", usage)
			}
			response, err := g.client.Do(request)
			if err != nil {
				b.Error(err)
				return
			}
			defer response.Body.Close()
			if _, err := io.Copy(io.Discard, response.Body); err != nil || response.StatusCode != http.StatusOK {
				b.Error(response.Status, err)
			}
		})
	}
	all.Wait()
}

// processorTime returns the processor time that Envoy has used, to a hundredth of a second.
func (e *envoyProcess) processorTime(b *testing.B) time.Duration {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", e.pid))
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), ") ") // the name may have spaces
	fields := strings.Fields(rest)
	ticks := 0
	for _, field := range fields[11:13] { // user and system time
		n, err := strconv.Atoi(field)
		if err != nil {
			b.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

package sse_test

import (
	"bytes"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/openai/sse"
)

// chunk200 is a usual chunk of about 200 bytes.
const chunk200 = `data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,"model":"llama-3-8b",` +
	`"choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]}` + "\n\n"

// pass reads a chunk of bytes as a relay does: events, and what they carry.
func pass(s *sse.Scanner, tr *sse.Tracker, chunk []byte) (bytes int) {
	s.Feed(chunk)
	for s.Next() {
		tr.See(s.Event())
		bytes += len(s.Event().Raw)
	}
	return bytes
}

func BenchmarkEvent(b *testing.B) {
	b.SetBytes(int64(len(chunk200)))
	b.ReportAllocs()
	var s sse.Scanner
	var tr sse.Tracker
	chunk := []byte(chunk200)
	for b.Loop() {
		pass(&s, &tr, chunk)
	}
}

// BenchmarkScanner is without the look inside.
func BenchmarkScanner(b *testing.B) {
	b.SetBytes(int64(len(chunk200)))
	b.ReportAllocs()
	var s sse.Scanner
	chunk := []byte(chunk200)
	for b.Loop() {
		s.Feed(chunk)
		for s.Next() {
			_ = s.Event()
		}
	}
}

// BenchmarkSplit has each event in two chunks.
func BenchmarkSplit(b *testing.B) {
	b.SetBytes(int64(len(chunk200)))
	b.ReportAllocs()
	var s sse.Scanner
	var tr sse.Tracker
	chunk := []byte(chunk200)
	for b.Loop() {
		pass(&s, &tr, chunk[:100])
		pass(&s, &tr, chunk[100:])
	}
}

func BenchmarkLargeEvent(b *testing.B) {
	event := []byte(`data: {"text":"` + strings.Repeat("long text ", 100_000) + "\"}\n\n")
	b.SetBytes(int64(len(event)))
	b.ReportAllocs()
	var s sse.Scanner
	var tr sse.Tracker
	for b.Loop() {
		for i := 0; i < len(event); i += 16 << 10 {
			pass(&s, &tr, event[i:min(i+16<<10, len(event))])
		}
	}
}

func TestNoAllocations(t *testing.T) {
	var s sse.Scanner
	var tr sse.Tracker
	whole := []byte(chunk200 + chunk200)
	allocs := testing.AllocsPerRun(100, func() {
		pass(&s, &tr, whole)
		pass(&s, &tr, whole[:77])
		pass(&s, &tr, whole[77:len(chunk200)])
	})
	if allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}

func TestMegabyteEvent(t *testing.T) {
	event := "data: " + strings.Repeat("x", 1<<20) + "\n\n"
	var s sse.Scanner
	events := scan(t, &s, split(event+chunk200, 4000)...)
	if len(events) != 2 || string(events[0].Raw) != event || string(events[1].Raw) != chunk200 {
		t.Fatalf("%d events", len(events))
	}
	if s.Buffered() > 64<<10 {
		t.Errorf("%d bytes are kept after a large event", s.Buffered())
	}
}

// As much as goes through in 2 s, at most 2 GiB, leaves nothing behind.
func TestNoGrowth(t *testing.T) {
	chunk := bytes.Repeat([]byte(chunk200), 300)
	chunk = chunk[:len(chunk)-len(chunk200)/2] // so that each chunk ends in an event
	rest := []byte(chunk200)[len(chunk200)-len(chunk200)/2:]
	var s sse.Scanner
	var tr sse.Tracker
	pass(&s, &tr, chunk)
	pass(&s, &tr, rest)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	total := 0
	for end := time.Now().Add(2 * time.Second); total < 2<<30 && time.Now().Before(end); {
		total += pass(&s, &tr, chunk) + pass(&s, &tr, rest)
	}
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 1<<20 {
		t.Errorf("%d bytes allocated for %d MiB", grown, total>>20)
	}
	if want := int64(total / len(chunk200)); tr.Tokens() < want {
		t.Errorf("%d tokens of %d seen", tr.Tokens(), want)
	}
	t.Logf("%d MiB", total>>20)
}

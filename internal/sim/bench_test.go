package sim

import (
	"testing"
	"time"
)

// BenchmarkStream measures one streamed chat of 64 tokens over loopback, including the work of the
// client.
func BenchmarkStream(b *testing.B) {
	s := newServer(b, Config{})
	body := chatBody("Tell me a story about the sea", `,"stream":true,"ignore_eos":true,"max_tokens":64`)
	b.ReportAllocs()
	for b.Loop() {
		events, err := s.events("/v1/chat/completions", body)
		if err != nil || len(events) != 67 {
			b.Fatal(len(events), err)
		}
	}
}

// BenchmarkStep measures one step of 2,000 decoding sequences.
func BenchmarkStep(b *testing.B) {
	e := New(Config{MaxNumSeqs: 2000, TokenInterval: time.Hour, CacheTokens: -1})
	list := make([]*sequence, 2000)
	for i := range list {
		list[i] = &sequence{limit: 1 << 40, changed: make(chan struct{}, 1)}
	}
	e.scheduler.submit(list)
	defer e.scheduler.cancel(list)
	for b.Loop() {
		e.scheduler.mu.Lock()
		e.scheduler.stepLocked(e.scheduler.nextStepAt)
		e.scheduler.mu.Unlock()
	}
}

// BenchmarkPrompt measures the counting and hashing of 100 kB of prose.
func BenchmarkPrompt(b *testing.B) {
	text := ""
	for len(text) < 100_000 {
		text += fillerText
	}
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		textPrompt(text)
	}
}

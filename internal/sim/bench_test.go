package sim

import (
	"testing"
	"time"
)

// BenchmarkStream is one streamed chat of 64 tokens over loopback, the client's work included.
func BenchmarkStream(b *testing.B) {
	s := serve(b, Config{})
	body := chatBody("Tell me a story about the sea", `,"stream":true,"ignore_eos":true,"max_tokens":64`)
	b.ReportAllocs()
	for b.Loop() {
		events, err := s.events("/v1/chat/completions", body)
		if err != nil || len(events) != 67 {
			b.Fatal(len(events), err)
		}
	}
}

// BenchmarkStep is one token for each of 2,000 sequences.
func BenchmarkStep(b *testing.B) {
	e := New(Config{MaxNumSeqs: 2000, TokenInterval: time.Hour})
	list := make([]*sequence, 2000)
	for i := range list {
		list[i] = &sequence{limit: 1 << 40, bell: make(chan struct{}, 1)}
	}
	e.batch.submit(list)
	defer e.batch.leave(list)
	for b.Loop() {
		e.batch.mu.Lock()
		e.batch.stepLocked(e.batch.nextStep)
		e.batch.mu.Unlock()
	}
}

// BenchmarkPrompt counts and hashes 100 kB of prose.
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

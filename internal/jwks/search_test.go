package jwks

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

// Made-up tokens cause few readings and wait little. Without such tokens, the first token of a new
// key is accepted at once. After many of them it is accepted a moment later.
func TestO12_MadeUpTokens(t *testing.T) {
	t.Parallel()
	one, stranger := ecKey(t, "one"), ecKey(t, "stranger")
	var p provider
	p.publish(one)
	v := start(t, &p, nil)
	eventually(t, v, sign(t, one, jose.ES256, nil))
	verify := func(token string) (time.Duration, error) {
		begin := time.Now()
		_, err := v.Verify(token, nil)
		return time.Since(begin), err
	}
	other := map[string]any{"iss": "https://other.example"}
	before := p.reads.Load()
	if took, err := verify(sign(t, stranger, jose.ES256, other)); !errors.Is(err, ErrInvalid) || p.reads.Load() != before {
		t.Errorf("a token of another provider took %v and %d readings: %v", took, p.reads.Load()-before, err)
	}
	made := sign(t, stranger, jose.ES256, nil)
	if _, err := verify(made); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	before = p.reads.Load()
	for range 100 {
		if took, err := verify(made); !errors.Is(err, ErrInvalid) || took > 500*time.Millisecond {
			t.Fatalf("the id is known to be missing, and its token took %v: %v", took, err)
		}
	}
	if n := p.reads.Load() - before; n != 0 {
		t.Errorf("%d readings for an id that was just missing", n)
	}
	two := ecKey(t, "two")
	p.publish(one, two)
	if _, err := verify(sign(t, two, jose.ES256, nil)); err != nil {
		t.Errorf("a key that is new: %v", err)
	}
	v.mu.Lock()
	v.search.spent = time.Now().Add(maxReadings * readingEvery) // as after a flood
	v.mu.Unlock()
	before = p.reads.Load()
	for i := range 100 {
		stranger.KeyID = fmt.Sprint("made-up", i)
		if took, err := verify(sign(t, stranger, jose.ES256, nil)); !errors.Is(err, ErrNoKeys) || took > 500*time.Millisecond {
			t.Fatalf("a token of a flood took %v: %v", took, err)
		}
	}
	if n := p.reads.Load() - before; n != 0 {
		t.Errorf("%d readings during a flood", n)
	}
	v.mu.Lock()
	v.search.spent = v.search.spent.Add(-readingEvery)
	v.mu.Unlock()
	three := ecKey(t, "three")
	p.publish(one, three)
	if _, err := verify(sign(t, three, jose.ES256, nil)); err != nil {
		t.Errorf("a key that is new, after a flood: %v", err)
	}
}

// The ids that are remembered as missing are bounded.
func TestO12_MissingIDsAreBounded(t *testing.T) {
	var s search
	now := time.Now()
	for i := range 2 * maxMissing {
		s.miss(fmt.Sprint(i), now)
	}
	if len(s.missing) != maxMissing || !s.isMissing("0", now) || s.isMissing("0", now.Add(missingFor)) {
		t.Errorf("%d ids", len(s.missing))
	}
	if s.miss("new", now.Add(missingFor)); len(s.missing) != 1 {
		t.Errorf("%d ids, want the new one", len(s.missing))
	}
}

// A configuration that is there before Run costs one reading.
func TestO12_TheFirstReadingIsOne(t *testing.T) {
	t.Parallel()
	var p provider
	p.publish(ecKey(t, "one"))
	server := httptest.NewServer(&p)
	defer server.Close()
	v := New(nil)
	v.Set(&Config{URL: server.URL, Refresh: time.Hour})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- v.Run(ctx) }()
	testutil.Eventually(t, "the keys are read", func() bool { return p.reads.Load() > 0 })
	time.Sleep(300 * time.Millisecond) // that nothing more is read shows only in time
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if n := p.reads.Load(); n != 1 {
		t.Errorf("%d readings, want 1", n)
	}
}

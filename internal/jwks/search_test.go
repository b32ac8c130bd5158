package jwks

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
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
	verify := func(token string) error {
		_, err := v.Verify(token, nil)
		return err
	}
	// atOnce fails unless 100 tokens get the error, some of them at once. A busy machine may hold
	// others up.
	atOnce := func(what string, want error, token func(i int) string) {
		t.Helper()
		soonest := time.Hour
		for i := range 100 {
			next := token(i)
			begin := time.Now()
			err := verify(next)
			soonest = min(soonest, time.Since(begin))
			if !errors.Is(err, want) || i > 4 && soonest > 500*time.Millisecond {
				t.Fatalf("%s: token %d: %v; the soonest answer took %v", what, i, err, soonest)
			}
		}
	}
	other := map[string]any{"iss": "https://other.example"}
	before := p.reads.Load()
	if err := verify(sign(t, stranger, jose.ES256, other)); !errors.Is(err, ErrInvalid) || p.reads.Load() != before {
		t.Errorf("a token of another provider took %d readings: %v", p.reads.Load()-before, err)
	}
	made := sign(t, stranger, jose.ES256, nil)
	testutil.Eventually(t, "the keys are read, and the token's is not among them", func() bool { return errors.Is(verify(made), ErrInvalid) })
	before = p.reads.Load()
	atOnce("an id that is known to be missing", ErrInvalid, func(int) string { return made })
	if n := p.reads.Load() - before; n != 0 {
		t.Errorf("%d readings for an id that was just missing", n)
	}
	two := ecKey(t, "two")
	p.publish(one, two)
	accepts(t, v, sign(t, two, jose.ES256, nil)) // a key that is new
	v.mu.Lock()
	v.search.spent = time.Now().Add(maxReadings * readingEvery) // as after a flood
	v.mu.Unlock()
	before = p.reads.Load()
	atOnce("a flood", ErrNoKeys, func(i int) string {
		stranger.KeyID = fmt.Sprint("made-up", i)
		return sign(t, stranger, jose.ES256, nil)
	})
	if n := p.reads.Load() - before; n != 0 {
		t.Errorf("%d readings during a flood", n)
	}
	v.mu.Lock()
	v.search.spent = v.search.spent.Add(-readingEvery)
	v.mu.Unlock()
	three := ecKey(t, "three")
	p.publish(one, three)
	accepts(t, v, sign(t, three, jose.ES256, nil)) // a key that is new, after a flood
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

// A token that does not name its key has it tried among few keys only, because each try takes time
// also for made-up tokens. A token that names its key is accepted whatever their number, if that
// key has a name, too.
func TestO12_ATokenTriesFewKeys(t *testing.T) {
	t.Parallel()
	var all []jose.JSONWebKey
	for i := range maxTried + 1 {
		all = append(all, ecKey(t, fmt.Sprint(i)))
	}
	last := all[maxTried-1]
	unnamed := last
	unnamed.KeyID = ""
	var p provider
	p.publish(all[:maxTried]...)
	v := start(t, &p, nil)
	accepts(t, v, sign(t, unnamed, jose.ES256, nil))
	p.publish(all...)
	v.reread(t.Context())
	reads := p.reads.Load()
	other := sign(t, unnamed, jose.ES256, map[string]any{"jti": "another token"})
	if _, err := v.Verify(other, nil); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "kid") || p.reads.Load() != reads {
		t.Errorf("a token of one of many keys, without its name: %v after %d readings", err, p.reads.Load()-reads)
	}
	accepts(t, v, sign(t, last, jose.ES256, nil))

	nameless := slices.Clone(all)
	for i := range nameless {
		nameless[i].KeyID = ""
	}
	p.publish(nameless...)
	v.reread(t.Context())
	if _, err := v.Verify(sign(t, last, jose.ES256, map[string]any{"jti": "named in vain"}), nil); !errors.Is(err, ErrInvalid) ||
		!strings.Contains(err.Error(), "its key") {
		t.Errorf("a token that names its key where no key has a name: %v", err)
	}
	named := ecKey(t, "named")
	p.publish(append(nameless, named)...)
	accepts(t, v, sign(t, named, jose.ES256, nil)) // whatever the others are, and although the key is new
	reads = p.reads.Load()
	for i := range 3 {
		v.Verify(sign(t, last, jose.ES256, map[string]any{"jti": fmt.Sprint(i)}), nil)
	}
	if n := p.reads.Load() - reads; n > 1 {
		t.Errorf("%d readings for a name that no key has", n)
	}
}

package jwks

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
	"go.uber.org/zap"
)

const (
	// maxSetSize is the size of the largest key set that is read.
	maxSetSize = 1 << 20
	// fetchTimeout bounds the reading of the keys.
	fetchTimeout = 5 * time.Second
	// pause is the shortest time between two readings that tokens cause, so that made-up tokens
	// cannot flood the provider.
	pause = time.Second
	// patience is how long a token waits for a reading, with the pause before it. Envoy waits 2 s
	// for the answer.
	patience = 1500 * time.Millisecond
	// maxWaiting is the number of tokens that wait at once, so that made-up tokens hold no more.
	maxWaiting = 256
	// retry is the interval of readings while they fail, and that of a file.
	retry = time.Second
	// maxRedirects is the number of redirects that a reading follows.
	maxRedirects = 5
	// minRSABits is the size of the smallest RSA key that is used.
	minRSABits = 2048
)

// Verifier verifies tokens. Its methods are safe for concurrent use. The zero value refuses every
// token. Run must run for the keys to be read.
type Verifier struct {
	// Log is where faults go; nil: nowhere.
	Log *zap.Logger

	policy atomic.Pointer[policy]
	// kick wakes Run.
	kick chan struct{}

	mu sync.Mutex
	// running is closed when the reading that runs has ended; nil: none runs. read is when the last
	// one has ended, fault why it failed. Guarded by mu.
	running chan struct{}
	read    time.Time
	fault   error
	// next is the reading that tokens wait for and that has not begun; nil: no token waits. waiting
	// is the number of tokens that wait for next or for one before. Guarded by mu.
	next    *reading
	waiting int
	// search bounds the readings that tokens cause. Guarded by mu.
	search search
}

// reading is one reading of the keys that tokens wait for.
type reading struct {
	done chan struct{}
	// fault is why there are no keys. It is read after done was closed.
	fault error
}

// policy is a configuration with the keys that were read for it. It is immutable but for seen.
type policy struct {
	config Config
	// keys is nil before the first reading.
	keys *keySet
	seen *seen
	// seenBefore has the tokens that were verified under the configuration before, and
	// tenantClaimBefore is its claim. Watch needs them for a token that was verified just before
	// this configuration came.
	seenBefore        *seen
	tenantClaimBefore string
}

// verified returns a token that was verified under this configuration or the one before, and the
// claim that has named its tenant.
func (p *policy) verified(digest [sha256.Size]byte) (e entry, tenantClaim string, ok bool) {
	if e, ok = p.seen.get(digest); ok || p.seenBefore == nil {
		return e, p.config.TenantClaim, ok
	}
	e, ok = p.seenBefore.get(digest)
	return e, p.tenantClaimBefore, ok
}

// keySet is the signing keys of a provider. It is immutable.
type keySet struct {
	keys   []publicKey
	prints map[string]bool
}

// New returns a Verifier without a configuration.
func New(log *zap.Logger) *Verifier { return &Verifier{Log: log, kick: make(chan struct{}, 1)} }

// Set replaces the configuration. nil: no token is accepted any more. The keys of another place are
// forgotten.
func (v *Verifier) Set(c *Config) {
	v.mu.Lock()
	defer v.mu.Unlock()
	old := v.policy.Load()
	switch {
	case c == nil:
		v.policy.Store(nil)
		v.fault = nil
		return
	case old != nil && old.config.equal(*c):
		return
	}
	next := &policy{config: *c, seen: newSeen()}
	if old != nil {
		next.seenBefore, next.tenantClaimBefore = old.seen, old.config.TenantClaim
		if old.config.URL == c.URL && old.config.File == c.File {
			next.keys = old.keys
		}
	}
	v.policy.Store(next)
	v.read = time.Time{}
	v.search.reset()
	v.wake()
}

// wake makes Run read the keys. It never blocks.
func (v *Verifier) wake() {
	select {
	case v.kick <- struct{}{}:
	default:
	}
}

// Fault returns whether the gateway has keys of before, and why the keys could not be read the last
// time. nil: they could be read.
func (v *Verifier) Fault() (known bool, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	p := v.policy.Load()
	return p != nil && p.keys != nil, v.fault
}

// Run reads the keys at once, at the interval of the configuration and after Set, until ctx ends.
func (v *Verifier) Run(ctx context.Context) error {
	for {
		select {
		case <-v.kick: // the reading that follows does what Set asks for
		default:
		}
		wait := time.Hour
		if p := v.policy.Load(); p != nil {
			v.reread(ctx)
			wait = p.config.Refresh
			if _, err := v.Fault(); err != nil || p.config.File != "" {
				wait = retry
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-v.kick:
		case <-time.After(wait):
		}
	}
}

// renew waits until the keys were read by a reading that has begun after the call, which comes a
// pause after the one before. The error says that there was no reading in time, or that the reading
// has failed. It is errUnsigned if the provider was just found to have no key of this id.
// renew calls onBlock before it waits, unless that is nil.
func (v *Verifier) renew(id string, onBlock func()) error {
	r, err := v.join(id)
	if err != nil {
		return err
	}
	defer v.leave()
	if onBlock != nil {
		onBlock()
	}
	select {
	case <-r.done:
		return r.fault
	case <-time.After(patience):
		return ErrNoKeys
	}
}

// join returns the next reading for a token with this id of a key, and starts one if there is none.
// It returns errUnsigned if the provider was just found to have no such key. It returns ErrNoKeys
// if the last reading has just failed, too many tokens wait, or the bucket of readings is empty.
func (v *Verifier) join(id string) (*reading, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	if v.search.isMissing(id, now) {
		return nil, errUnsigned
	}
	early := pause - now.Sub(v.read)
	if v.waiting == maxWaiting || v.running == nil && v.fault != nil && early > 0 {
		return nil, ErrNoKeys
	}
	if v.next == nil {
		early = max(early, v.search.wait(now))
		if early > patience {
			return nil, ErrNoKeys
		}
		v.search.spend(now)
		v.next = &reading{done: make(chan struct{})}
		go v.readFor(v.next, early)
	}
	v.waiting++
	return v.next, nil
}

// missed remembers that the keys that were just read have not signed a token with this id of a key.
func (v *Verifier) missed(id string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.search.miss(id, time.Now())
}

func (v *Verifier) leave() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.waiting--
}

// readFor reads the keys for the tokens that wait, after a pause. A reading that is under way has
// begun before they came, so another one follows it.
func (v *Verifier) readFor(r *reading, early time.Duration) {
	select {
	case <-r.done: // Run has read them
		return
	case <-time.After(early):
	}
	for {
		v.reread(context.Background())
		select {
		case <-r.done:
			return
		default:
		}
	}
}

// reread reads the keys, or waits for a reading that runs.
func (v *Verifier) reread(ctx context.Context) {
	v.mu.Lock()
	if running := v.running; running != nil {
		v.mu.Unlock()
		<-running
		return
	}
	p, done, next := v.policy.Load(), make(chan struct{}), v.next
	v.next = nil
	if p == nil {
		v.mu.Unlock()
		next.end(ErrNoKeys)
		return
	}
	v.running = done
	v.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	keys, err := load(ctx, p.config)
	v.mu.Lock()
	defer v.mu.Unlock()
	defer close(done)
	v.running, v.read = nil, time.Now()
	next.end(v.setLocked(p, keys, err, ctx.Err() == context.Canceled))
}

// setLocked uses what was read for a policy. It returns an error if the keys in force are not
// those. v.mu must be held.
func (v *Verifier) setLocked(p *policy, keys *keySet, err error, stopped bool) error {
	if now := v.policy.Load(); now == nil || !now.config.equal(p.config) {
		v.read = time.Time{}
		v.wake() // Run may have waited for this reading in place of one of the new place
		return ErrNoKeys
	}
	if err != nil && !stopped && v.fault == nil && v.Log != nil {
		v.Log.Error("signing keys of the identity provider not read", zap.Error(err))
	}
	if v.fault = err; err != nil {
		return ErrNoKeys
	}
	if !keys.same(p.keys) {
		next := *p
		next.keys = keys
		v.policy.Store(&next)
		v.search.reset()
	}
	return nil
}

// end tells the tokens that wait for a reading that it has ended. nil: none waits.
func (r *reading) end(fault error) {
	if r != nil {
		r.fault = fault
		close(r.done)
	}
}

// load reads the keys of a configuration.
func load(ctx context.Context, c Config) (*keySet, error) {
	if c.File != "" {
		f, err := os.Open(c.File)
		if err != nil {
			return nil, err
		}
		defer f.Close() //nolint:errcheck // the file is only read
		return parse(f)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL, nil)
	if err != nil {
		return nil, err
	}
	answer, err := (&http.Client{CheckRedirect: checkRedirect}).Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close() //nolint:errcheck // the answer is only read
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", c.URL, answer.Status)
	}
	return parse(answer.Body)
}

// checkRedirect refuses a redirect that leaves TLS: whoever is between could give the gateway keys
// of his own.
func checkRedirect(next *http.Request, before []*http.Request) error {
	if before[len(before)-1].URL.Scheme == "https" && next.URL.Scheme != "https" {
		return fmt.Errorf("%s redirects to %s, which is not https", before[len(before)-1].URL.Redacted(), next.URL.Redacted())
	}
	if len(before) > maxRedirects {
		return fmt.Errorf("more than %d redirects", maxRedirects)
	}
	return nil
}

// ReadFile reads a file with keys. The error says why it cannot be used.
func ReadFile(path string) error {
	_, err := load(context.Background(), Config{File: path})
	return err
}

// ReadURL reads the keys that a provider publishes. The error says why they cannot be used.
func ReadURL(ctx context.Context, url string) error {
	_, err := load(ctx, Config{URL: url})
	return err
}

// parse reads a key set. It leaves out keys that sign no tokens of the accepted kinds. A set
// without any key is an error.
func parse(r io.Reader) (*keySet, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxSetSize+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxSetSize {
		return nil, errors.New("the key set is larger than 1 MiB")
	}
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(text, &set); err != nil {
		return nil, fmt.Errorf("the key set is not JSON: %w", err)
	}
	all := &keySet{prints: map[string]bool{}}
	for _, raw := range set.Keys {
		var key jose.JSONWebKey
		if key.UnmarshalJSON(raw) != nil || !signs(key) {
			continue
		}
		sum, err := key.Thumbprint(crypto.SHA256)
		if err != nil {
			continue
		}
		print := hex.EncodeToString(sum)
		all.keys, all.prints[print] = append(all.keys, publicKey{key, print}), true
	}
	if len(all.keys) == 0 {
		return nil, errors.New("the key set has no key for RS256, ES256 or EdDSA")
	}
	return all, nil
}

// signs reports whether a key is public and signs tokens of the accepted kinds.
func signs(k jose.JSONWebKey) bool {
	if k.Use != "" && k.Use != "sig" {
		return false
	}
	switch key := k.Key.(type) {
	case *rsa.PublicKey:
		return key.N.BitLen() >= minRSABits
	case *ecdsa.PublicKey:
		return key.Curve == elliptic.P256()
	case ed25519.PublicKey:
		return true
	}
	return false
}

// find returns the keys that may have signed a token with this id of a key: those with the id, and
// others. If the id is empty, all keys are others. Else these are the keys without any id.
func (s *keySet) find(id string) (named, others []publicKey) {
	if s == nil {
		return nil, nil
	}
	if id == "" {
		return nil, s.keys
	}
	for _, k := range s.keys {
		switch k.key.KeyID {
		case id:
			named = append(named, k)
		case "":
			others = append(others, k)
		}
	}
	return named, others
}

// has reports whether the set still has a key.
func (s *keySet) has(print string) bool { return s != nil && s.prints[print] }

// same reports whether two sets have the same keys with the same ids.
func (s *keySet) same(o *keySet) bool {
	if o == nil || len(s.keys) != len(o.keys) {
		return false
	}
	for i := range s.keys {
		if s.keys[i].print != o.keys[i].print || s.keys[i].key.KeyID != o.keys[i].key.KeyID {
			return false
		}
	}
	return true
}

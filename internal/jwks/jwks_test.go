package jwks

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"go.uber.org/goleak"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// provider is an identity provider that publishes the public halves of its keys.
type provider struct {
	keys  atomic.Pointer[[]jose.JSONWebKey]
	reads atomic.Int64
}

func (p *provider) publish(keys ...jose.JSONWebKey) { p.keys.Store(&keys) }

func (p *provider) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	p.reads.Add(1)
	var set jose.JSONWebKeySet
	if keys := p.keys.Load(); keys != nil {
		for _, k := range *keys {
			set.Keys = append(set.Keys, k.Public())
		}
	}
	json.NewEncoder(w).Encode(set) //nolint:errcheck // a test server
}

func newKey(t *testing.T, id string, private crypto.Signer) jose.JSONWebKey {
	t.Helper()
	return jose.JSONWebKey{Key: private, KeyID: id, Use: "sig"}
}

func ecKey(t *testing.T, id string) jose.JSONWebKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return newKey(t, id, k)
}

// sign signs claims; changes replace those of a good token.
func sign(t *testing.T, k jose.JSONWebKey, alg jose.SignatureAlgorithm, changes map[string]any) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: k}, nil)
	if err != nil {
		t.Fatal(err)
	}
	claims := map[string]any{"iss": "https://login.example", "aud": []string{"sluice", "other"}, "exp": time.Now().Add(time.Hour).Unix(), "tenant": "acme"}
	for name, value := range changes {
		if claims[name] = value; value == nil {
			delete(claims, name)
		}
	}
	text, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// start runs a verifier of the provider until the test ends.
func start(t *testing.T, p *provider, change func(*Config)) *Verifier {
	t.Helper()
	server := httptest.NewServer(p)
	c := Config{URL: server.URL, Issuer: "https://login.example", Audiences: []string{"sluice"}, TenantClaim: "tenant", Refresh: time.Hour}
	if change != nil {
		change(&c)
	}
	v := New(nil)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- v.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		<-done
		http.DefaultClient.CloseIdleConnections()
		server.Close()
	})
	v.Set(&c)
	return v
}

// eventually waits until a token is accepted.
func eventually(t *testing.T, v *Verifier, token string) {
	t.Helper()
	testutil.EventuallyNil(t, "the token is accepted", func() error { _, err := v.Verify(token, nil); return err })
}

// accepts fails unless a token is accepted. A call may end without the keys if it has waited for
// them as long as it may, which happens on a busy machine.
func accepts(t *testing.T, v *Verifier, token string) {
	t.Helper()
	testutil.EventuallyNil(t, "the keys are read", func() error {
		began := time.Now()
		_, err := v.Verify(token, nil)
		if waited := time.Since(began); err != nil && (!errors.Is(err, ErrNoKeys) || waited < patience) {
			t.Fatalf("after %v: %v", waited, err)
		}
		return err
	})
}

func TestO12_WhichTokensAreAccepted(t *testing.T) {
	big, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	_, edwards, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ec, rs, ed := ecKey(t, "ec"), newKey(t, "rs", big), newKey(t, "ed", edwards)
	var p provider
	p.publish(ec, rs, ed)
	v := start(t, &p, nil)
	symmetric := jose.JSONWebKey{Key: []byte("0123456789abcdef0123456789abcdef"), KeyID: "ec"}
	ago := func(d time.Duration) int64 { return time.Now().Add(-d).Unix() }
	for name, c := range map[string]struct {
		token string
		want  error
	}{
		"ES256":                {sign(t, ec, jose.ES256, nil), nil},
		"RS256":                {sign(t, rs, jose.RS256, nil), nil},
		"EdDSA":                {sign(t, ed, jose.EdDSA, nil), nil},
		"one audience":         {sign(t, ec, jose.ES256, map[string]any{"aud": "sluice"}), nil},
		"a little too old":     {sign(t, ec, jose.ES256, map[string]any{"exp": ago(5 * time.Second)}), nil},
		"expired":              {sign(t, ec, jose.ES256, map[string]any{"exp": ago(time.Hour)}), ErrExpired},
		"without an end":       {sign(t, ec, jose.ES256, map[string]any{"exp": nil}), ErrInvalid},
		"not yet":              {sign(t, ec, jose.ES256, map[string]any{"nbf": ago(-time.Hour)}), ErrInvalid},
		"another issuer":       {sign(t, ec, jose.ES256, map[string]any{"iss": "https://evil.example"}), ErrInvalid},
		"another audience":     {sign(t, ec, jose.ES256, map[string]any{"aud": "bank"}), ErrInvalid},
		"no audience":          {sign(t, ec, jose.ES256, map[string]any{"aud": nil}), ErrInvalid},
		"PS256":                {sign(t, rs, jose.PS256, nil), ErrInvalid},
		"symmetric":            {sign(t, symmetric, jose.HS256, nil), ErrInvalid},
		"another's key":        {sign(t, ecKey(t, "ec"), jose.ES256, nil), ErrInvalid},
		"no signature":         {"eyJhbGciOiJub25lIn0.e30.", ErrInvalid},
		"a key of the gateway": {"sk-sluice-abc", ErrInvalid},
		"nothing":              {"", ErrInvalid},
	} {
		got, err := v.Verify(c.token, nil)
		if !errors.Is(err, c.want) || c.want == nil && (err != nil || got.Tenant != "acme") {
			t.Errorf("%s: %+v, %v; want %v", name, got, err, c.want)
		}
		if valid := v.Watch(sha256.Sum256([]byte(c.token)))(); valid != (c.want == nil) {
			t.Errorf("%s: valid %v", name, valid)
		}
	}
	if got, err := v.Verify(sign(t, ec, jose.ES256, map[string]any{"tenant": nil}), nil); err != nil || got.Tenant != "" {
		t.Errorf("without a tenant: %+v, %v", got, err)
	}
}

// A token of a new key is accepted at once, and one of a key that the provider has withdrawn is
// refused after the next reading.
func TestO12_KeysAreRotated(t *testing.T) {
	one, two := ecKey(t, "one"), ecKey(t, "two")
	var p provider
	p.publish(one)
	v := start(t, &p, nil)
	old := sign(t, one, jose.ES256, nil)
	if _, err := v.Verify(old, nil); err != nil {
		t.Fatal(err)
	}
	p.publish(one, two)
	// A reading that began before the new key was published may still be under way, and its result
	// holds for a pause. Afterwards a token of the new key is accepted without any other cause.
	eventually(t, v, sign(t, two, jose.ES256, nil))
	if _, err := v.Verify(old, nil); err != nil {
		t.Errorf("a token of the old key, which is still published: %v", err)
	}
	p.publish(two)
	v.reread(t.Context())
	if _, err := v.Verify(old, nil); !errors.Is(err, ErrInvalid) || v.Watch(sha256.Sum256([]byte(old)))() {
		t.Errorf("a token of a withdrawn key: %v", err)
	}
	reads, began := p.reads.Load(), time.Now()
	made := sign(t, ecKey(t, "made up"), jose.ES256, nil)
	var all sync.WaitGroup
	for range maxWaiting + 100 {
		all.Go(func() {
			if _, err := v.Verify(made, nil); !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrNoKeys) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n, pauses := p.reads.Load()-reads, int64(time.Since(began)/pause); n > 2+pauses {
		t.Errorf("made-up tokens caused %d readings in the time of %d pauses", n, pauses)
	}
}

// At most maxWaiting tokens wait for a reading.
func TestO12_FewTokensWait(t *testing.T) {
	var p provider
	p.publish(ecKey(t, "one"))
	v := start(t, &p, nil)
	v.reread(t.Context())
	longAgo := func(waiting int) {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.read, v.waiting = time.Time{}, waiting
	}
	longAgo(maxWaiting - 1)
	first, err := v.join("two")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.join("two"); !errors.Is(err, ErrNoKeys) {
		t.Errorf("beside %d others: %v", maxWaiting, err)
	}
	<-first.done
	longAgo(maxWaiting)
	v.leave()
	next, err := v.join("two")
	if err != nil {
		t.Fatalf("after one has left: %v", err)
	}
	<-next.done
}

// A key that is published just after a reading fails no token: the token waits until the keys are
// read again. While they cannot be read, or the provider is slow, nobody knows whether the token is
// good.
func TestO12_KeysThatAreNew(t *testing.T) {
	t.Parallel()
	one, two, three := ecKey(t, "one"), ecKey(t, "two"), ecKey(t, "three")
	var p provider
	var slow atomic.Bool
	answer := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if slow.Load() {
			<-answer
		}
		p.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	p.publish(one)
	v := start(t, &p, func(c *Config) { c.URL = server.URL })
	eventually(t, v, sign(t, one, jose.ES256, nil))
	for _, key := range []jose.JSONWebKey{two, three} { // the second comes within the pause
		p.publish(one, key)
		accepts(t, v, sign(t, key, jose.ES256, nil))
	}
	slow.Store(true)
	p.publish(one, two)
	if _, err := v.Verify(sign(t, two, jose.ES256, nil), nil); !errors.Is(err, ErrNoKeys) {
		t.Errorf("a slow provider: %v, want ErrNoKeys", err)
	}
	close(answer)
	eventually(t, v, sign(t, two, jose.ES256, nil))
	p.publish() // not a set
	v.reread(t.Context())
	if _, err := v.Verify(sign(t, three, jose.ES256, nil), nil); !errors.Is(err, ErrNoKeys) {
		t.Errorf("a reading that has failed: %v, want ErrNoKeys", err)
	}
}

// A provider may rotate its keys without another id, or have keys without ids.
func TestO12_KeysAreRotatedUnderOneID(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"same", ""} {
		var p provider
		p.publish(ecKey(t, id))
		v := start(t, &p, nil)
		eventually(t, v, sign(t, (*p.keys.Load())[0], jose.ES256, nil))
		next := ecKey(t, id)
		p.publish(next)
		eventually(t, v, sign(t, next, jose.ES256, nil))
	}
}

// The id of a key only helps to find it. A provider may publish a key without the id that its
// tokens have.
func TestO12_KeysWithoutAnID(t *testing.T) {
	t.Parallel()
	key := ecKey(t, "one")
	bare := key
	bare.KeyID = ""
	var p provider
	p.publish(ecKey(t, "two"), bare)
	v := start(t, &p, nil)
	accepts(t, v, sign(t, key, jose.ES256, nil))
	p.publish(ecKey(t, "two"), ecKey(t, ""))
	v.reread(t.Context())
	if _, err := v.Verify(sign(t, key, jose.ES256, nil), nil); !errors.Is(err, ErrInvalid) {
		t.Errorf("a token of none of the keys: %v", err)
	}
}

func TestO12_KeysThatCannotBeRead(t *testing.T) {
	key := ecKey(t, "one")
	var p provider
	v := start(t, &p, nil)
	if _, err := v.Verify(sign(t, key, jose.ES256, nil), nil); !errors.Is(err, ErrNoKeys) {
		t.Fatalf("an empty set: %v", err)
	}
	if known, err := v.Fault(); err == nil || known {
		t.Errorf("fault %v, known %v", err, known)
	}
	p.publish(key)
	eventually(t, v, sign(t, key, jose.ES256, nil))
	p.publish() // the keys of before stay
	v.reread(t.Context())
	if _, err := v.Verify(sign(t, key, jose.ES256, nil), nil); err != nil {
		t.Error(err)
	}
	if known, err := v.Fault(); err == nil || !known {
		t.Errorf("fault %v, known %v", err, known)
	}
	v.Set(nil)
	if _, err := v.Verify(sign(t, key, jose.ES256, nil), nil); !errors.Is(err, ErrNoKeys) {
		t.Errorf("without a configuration: %v", err)
	}
}

func TestO12_KeysOfAFile(t *testing.T) {
	key, file := ecKey(t, ""), filepath.Join(t.TempDir(), "jwks.json")
	text, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{key.Public()}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	var p provider
	v := start(t, &p, func(c *Config) { c.URL, c.File = "", file })
	accepts(t, v, sign(t, key, jose.ES256, nil))
	if n := p.reads.Load(); n != 0 {
		t.Errorf("the provider was asked %d times", n)
	}
	for name, bad := range map[string]string{"no JSON": "x", "no keys": `{"keys":[]}`, "a secret": `{"keys":[{"kty":"oct","k":"AAAA"}]}`} {
		if err := os.WriteFile(file, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if ReadFile(file) == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// The memory of tokens is bounded, and a token in use stays.
func TestO12_SeenTokensAreBounded(t *testing.T) {
	s := newSeen()
	used := sha256.Sum256([]byte("used"))
	s.put(used, entry{})
	for i := range 5 * seenTokens {
		s.put(sha256.Sum256(fmt.Append(nil, i)), entry{})
		if _, ok := s.get(used); !ok {
			t.Fatalf("forgotten after %d tokens", i)
		}
	}
	n := 0
	for _, g := range []*generation{s.newer.Load(), s.older.Load()} {
		g.entries.Range(func(any, any) bool { n++; return true })
	}
	if n > 2*seenTokens+2 {
		t.Errorf("%d tokens are kept", n)
	}
}

// A reload ends the use of tokens while a request waits for the keys of the provider. The request
// is refused.
func TestO12_TokensEndWhileARequestWaits(t *testing.T) {
	reading, answer := make(chan struct{}, 8), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		reading <- struct{}{}
		<-answer
	}))
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		server.Close()
	})
	v := New(nil)
	v.Set(&Config{URL: server.URL, Issuer: "https://login.example", TenantClaim: "tenant", Refresh: time.Hour})
	token, refused := sign(t, ecKey(t, "ec"), jose.ES256, nil), make(chan error, 1)
	go func() {
		defer func() {
			if fault := recover(); fault != nil {
				refused <- fmt.Errorf("panic: %v", fault)
			}
		}()
		_, err := v.Verify(token, nil)
		refused <- err
	}()
	<-reading
	v.Set(nil)
	close(answer)
	if err := <-refused; !errors.Is(err, ErrNoKeys) {
		t.Error(err)
	}
}

// A reload names another place while a token has the keys of the old one read. Those of the new
// place are read as soon as that has ended.
func TestO12_AnotherPlaceDuringAReading(t *testing.T) {
	var p, next provider
	key := ecKey(t, "ec")
	p.publish(key)
	next.publish(key)
	var hangs atomic.Bool
	reading, answer := make(chan struct{}, 8), make(chan struct{})
	old := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if hangs.Load() {
			reading <- struct{}{}
			<-answer
		}
		p.ServeHTTP(w, r)
	}))
	t.Cleanup(old.Close)
	server := httptest.NewServer(&next)
	t.Cleanup(server.Close)
	var c Config
	v := start(t, &p, func(own *Config) { own.URL = old.URL; c = *own })
	eventually(t, v, sign(t, key, jose.ES256, nil))
	time.Sleep(100 * time.Millisecond) // Run has read all that it was told to
	hangs.Store(true)
	v.mu.Lock()
	v.read = time.Time{} // long ago
	v.mu.Unlock()
	go v.Verify(sign(t, ecKey(t, "unknown"), jose.ES256, nil), nil) //nolint:errcheck // it only has the keys read
	<-reading
	c.URL = server.URL
	v.Set(&c)
	time.Sleep(100 * time.Millisecond) // Run waits for the old reading
	close(answer)
	testutil.Eventually(t, "the keys of the new place are read", func() bool { known, _ := v.Fault(); return known })
}

// A claim that the gateway does not use may have any type. One that it uses and that has another
// type has the token refused by its name, and costs the provider no reading.
func TestO12_ClaimsOfOtherTypes(t *testing.T) {
	t.Parallel()
	key := ecKey(t, "a")
	var p provider
	p.publish(key)
	v := start(t, &p, nil)
	eventually(t, v, sign(t, key, jose.ES256, nil))
	v.mu.Lock()
	v.read = time.Time{} // long ago
	v.mu.Unlock()
	blocked := 0
	onBlock := func() { blocked++ }
	for name, value := range map[string]any{"sub": 42, "jti": []int{1}, "tenants": nil} {
		if i, err := v.Verify(sign(t, key, jose.ES256, map[string]any{name: value}), onBlock); err != nil || i.Tenant != "acme" {
			t.Errorf("%s: %v: %+v, %v", name, value, i, err)
		}
	}
	for name, value := range map[string]any{"exp": "soon", "nbf": true, "iat": "x", "iss": 7, "aud": 7} {
		_, err := v.Verify(sign(t, key, jose.ES256, map[string]any{name: value}), onBlock)
		if !errors.Is(err, ErrInvalid) || errors.Is(err, errUnsigned) {
			t.Errorf("%s: %v: %v", name, value, err)
		}
	}
	if blocked > 0 {
		t.Errorf("the keys were read again %d times", blocked)
	}
}

// A reload between the check of a token and its handshake ends no socket whose token is still good,
// also when the keys are read again.
func TestO12_WatchedAfterAReload(t *testing.T) {
	t.Parallel()
	key := ecKey(t, "a")
	var p provider
	p.publish(key)
	var c Config
	v := start(t, &p, func(own *Config) { c = *own })
	for _, set := range []struct {
		change func(*Config)
		want   bool
	}{
		{func(c *Config) { c.Refresh = time.Minute }, true},
		{func(c *Config) { c.Audiences = []string{"new"} }, false},
		{func(c *Config) { c.TenantClaim = "team" }, false}, // the token may name another tenant there
	} {
		v.Set(&c)
		token := sign(t, key, jose.ES256, nil)
		eventually(t, v, token)
		next := c
		set.change(&next)
		v.Set(&next)
		if valid := v.Watch(sha256.Sum256([]byte(token)))(); valid != set.want {
			t.Errorf("%+v: valid %v", next, valid)
		}
		p.publish(key, ecKey(t, "b"))
		v.reread(t.Context())
		if valid := v.Watch(sha256.Sum256([]byte(token)))(); valid != set.want {
			t.Errorf("%+v, and other keys: valid %v", next, valid)
		}
		p.publish(key)
		v.reread(t.Context())
	}
}

// A token that is watched stays good whatever other tokens come, and while each new configuration
// and key set would accept it.
func TestO12_WatchedTokens(t *testing.T) {
	t.Parallel()
	key := ecKey(t, "a")
	var p provider
	p.publish(key)
	var c Config
	v := start(t, &p, func(own *Config) { c = *own })
	token := sign(t, key, jose.ES256, nil)
	eventually(t, v, token)
	short := sign(t, key, jose.ES256, map[string]any{"exp": time.Now().Add(-skew + 2*time.Second).Unix()})
	if _, err := v.Verify(short, nil); err != nil {
		t.Fatal(err)
	}
	valid, ends, unknown := v.Watch(sha256.Sum256([]byte(token))), v.Watch(sha256.Sum256([]byte(short))), v.Watch(sha256.Sum256([]byte("another")))
	seen := v.policy.Load().seen
	for i := range 3 * seenTokens {
		seen.put(sha256.Sum256(fmt.Append(nil, i)), entry{})
	}
	if !valid() || unknown() {
		t.Errorf("after other tokens: %v, one that was never verified: %v", valid(), unknown())
	}
	for i, set := range []struct {
		change func(*Config)
		want   bool
	}{
		{func(c *Config) { c.Audiences = []string{"new", "other"} }, true},
		{func(c *Config) { c.Audiences = nil }, true},
		{func(c *Config) { c.Refresh = time.Minute }, true},
		{func(c *Config) { c.Audiences = []string{"new"} }, false},
		{func(c *Config) { c.Issuer = "https://evil.example" }, false},
		{func(c *Config) { c.TenantClaim = "team" }, false}, // the token may name another tenant there
		{func(*Config) {}, true},
	} {
		next := c
		set.change(&next)
		v.Set(&next)
		if valid() != set.want {
			t.Errorf("configuration %d: valid %v", i, !set.want)
		}
	}
	v.Set(nil)
	if valid() {
		t.Error("valid without a configuration")
	}
	v.Set(&c)
	eventually(t, v, token)
	testutil.Eventually(t, "a token has expired", func() bool { return !ends() })
	if !valid() {
		t.Error("the token is not good any more")
	}
	p.publish(ecKey(t, "b"))
	v.reread(t.Context())
	if valid() {
		t.Error("valid although its key was withdrawn")
	}
}

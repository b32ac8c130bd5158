package routing

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// keyring is a server that several keys may use. It counts its answers by key and path of the API.
type keyring struct {
	URL string

	mu sync.Mutex
	// status is what the server answers to chats with a key; 0 is 200. 401 is its answer to all
	// requests with the key. Guarded by mu.
	status map[string]int
	// served counts the chats by key and path, and refused those with status; guarded by mu
	served  map[string]int
	refused int
}

func startKeyring(t *testing.T) *keyring {
	k := &keyring{status: map[string]int{}, served: map[string]int{}}
	k.URL = harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		key, hasKey := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer sk-secret-")
		k.mu.Lock()
		defer k.mu.Unlock()
		status := k.status[key]
		switch {
		case !hasKey || status == http.StatusUnauthorized:
			w.WriteHeader(http.StatusUnauthorized)
		case strings.HasSuffix(r.URL.Path, "/models"):
			io.WriteString(w, `{"data":[{"id":"m"}]}`)
		case status != 0:
			k.refused++
			w.Header().Set("Retry-After", "10")
			w.WriteHeader(status)
		default:
			api, _, _ := strings.Cut(r.URL.Path, "/chat")
			k.served[key+api]++
			answer(w, string(body))
		}
	})
	return k
}

// setStatus sets what the server answers to chats with a key, and forgets what it has served.
func (k *keyring) setStatus(key string, status int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.status[key], k.served = status, map[string]int{}
}

// counts returns the chats that were served with each key at each path since the last setStatus.
func (k *keyring) counts() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return fmt.Sprint(k.served)
}

// startKeyed starts a gateway whose model m has two keys at one server.
func startKeyed(t *testing.T) (k *keyring, g *harness.Gateway) {
	t.Parallel()
	k = startKeyring(t)
	g = harness.Start(t, fmt.Sprintf(`
models:
  - name: m
    launcher: upstream
    upstreams:
      - {url: %[1]s, api_key_env: SLUICE_TEST_KEY_A}
      - {url: %[1]s, api_key_env: SLUICE_TEST_KEY_B}
    routing: {strategy: round_robin}
    admission: {max_per_replica: 8}
`, k.URL), "SLUICE_TEST_KEY_A=sk-secret-a", "SLUICE_TEST_KEY_B=sk-secret-b")
	return k, g
}

// awaitStates waits until the servers of the keys A and B have these states.
func (k *keyring) awaitStates(g *harness.Gateway, a, b string) {
	g.T.Helper()
	id := strings.TrimPrefix(k.URL, "http://")
	harness.Eventually(g.T, "the servers are "+a+" and "+b, func() error {
		all := g.Replicas()
		if all[id].State != a || all[id+"#SLUICE_TEST_KEY_B"].State != b {
			return fmt.Errorf("%+v", all)
		}
		return nil
	})
}

// awaitServed waits until n requests of this body are served as wanted: by these keys, paths and
// numbers.
func (k *keyring) awaitServed(g *harness.Gateway, n int, body, want string) {
	g.T.Helper()
	harness.Eventually(g.T, "requests are served by "+want, func() error {
		k.setStatus("", 0)
		for range n {
			if a := g.Post(harness.ChatPath, body); a.StatusCode != 200 {
				return fmt.Errorf("%s", a)
			}
		}
		if served := k.counts(); served != want {
			return fmt.Errorf("served by %s", served)
		}
		return nil
	})
}

// TestE2E_T6_TwoKeysAtOneServer: a model uses both keys of one server. A key that the server
// refuses gets no more requests, and those of the other key go on. A reload that adds a server
// changes no name, and no key is shown.
func TestE2E_T6_TwoKeysAtOneServer(t *testing.T) {
	k, g := startKeyed(t)
	id := strings.TrimPrefix(k.URL, "http://")
	for _, body := range []string{ways["native"], ways["native stream"], ways["managed stream"]} {
		k.awaitServed(g, 20, body, "map[a/v1:10 b/v1:10]")
	}
	by := map[string]int{}
	for range 10 {
		by[g.Post(harness.ChatPath, ways["native"]).Header.Get("X-Sluice-Replica")]++
	}
	if by[id] != 5 || by[id+"#SLUICE_TEST_KEY_B"] != 5 {
		t.Errorf("the answers are of %v", by)
	}

	k.setStatus("b", http.StatusUnauthorized)
	k.awaitStates(g, "ready", "failed")
	k.awaitServed(g, 20, ways["native"], "map[a/v1:20]")
	all, err := g.Conditions(condition.UpstreamUnreachable)
	if c := all[k.URL+"#SLUICE_TEST_KEY_B"]; err != nil || len(all) != 1 || !strings.Contains(c.Message, "answered 401: check the key") {
		t.Errorf("conditions: %+v, %v", all, err)
	}

	k.setStatus("b", 0)
	g.Configure(fmt.Sprintf(`
models:
  - name: m
    launcher: upstream
    upstreams:
      - {url: %[1]s, api_key_env: SLUICE_TEST_KEY_A}
      - {url: %[1]s, api_key_env: SLUICE_TEST_KEY_B}
      - {url: %[1]s, api_key_env: SLUICE_TEST_KEY_A, api_path: /v2}
    routing: {strategy: round_robin}
    admission: {max_per_replica: 8}
`, k.URL))
	k.awaitServed(g, 30, ways["native"], "map[a/v1:10 a/v2:10 b/v1:10]")
	k.awaitStates(g, "ready", "ready")
	if r := g.Replicas(); r[id+"#SLUICE_TEST_KEY_A"].State != "ready" || len(r) != 3 {
		t.Errorf("replicas: %+v", r)
	}
	checkSecretKept(g, "sk-secret")
}

// TestE2E_T6_ALimitedKeyRests: a key's limit refuses a request, and its client repeats it with
// success. The key that is limited rests, and the other one takes the request.
func TestE2E_T6_ALimitedKeyRests(t *testing.T) {
	k, g := startKeyed(t)
	k.awaitServed(g, 10, ways["native"], "map[a/v1:5 b/v1:5]")
	k.setStatus("a", http.StatusTooManyRequests)
	refused := 0
	for range 10 {
		a := g.Post(harness.ChatPath, ways["native"])
		if a.StatusCode == http.StatusTooManyRequests {
			refused++
			a = g.Post(harness.ChatPath, ways["native"])
		}
		if a.StatusCode != 200 {
			t.Fatal(a)
		}
	}
	if refused == 0 || k.counts() != "map[b/v1:10]" {
		t.Errorf("the limited key has refused %d requests, served: %s", refused, k.counts())
	}
}

// TestE2E_R9_T6_TheRelayGoesToTheOtherKey: a managed request that a key's limit refuses is served
// by the other key of the server, and its client does not notice.
func TestE2E_R9_T6_TheRelayGoesToTheOtherKey(t *testing.T) {
	k, g := startKeyed(t)
	k.awaitServed(g, 10, ways["managed stream"], "map[a/v1:5 b/v1:5]")
	k.setStatus("a", http.StatusTooManyRequests)
	for range 10 {
		a := g.Post(harness.ChatPath, ways["managed stream"])
		if by := a.Header.Get("X-Sluice-Replica"); a.StatusCode != 200 || !strings.HasSuffix(by, "#SLUICE_TEST_KEY_B") {
			t.Fatalf("%s by %s", a, by)
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if served := fmt.Sprint(k.served); k.refused == 0 || served != "map[b/v1:10]" {
		t.Errorf("the limited key has refused %d requests, served: %s", k.refused, served)
	}
}

package routing

import (
	"cmp"
	"crypto/md5" //nolint:gosec // the ring is defined by it
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// ringOrder returns the order in which the ring has replicas for a key, by the definition. A
// virtual node is at the first 8 bytes of the MD5 of "id:index", a key at its XXH64. The first node
// at or after the key comes first.
func ringOrder(ids []string, virtualNodes int, key string) (order []string) {
	type node struct {
		at uint64
		id string
	}
	var ring []node
	for _, id := range ids {
		for i := range virtualNodes {
			sum := md5.Sum(fmt.Appendf(nil, "%s:%d", id, i)) //nolint:gosec // as above
			ring = append(ring, node{binary.BigEndian.Uint64(sum[:8]), id})
		}
	}
	slices.SortFunc(ring, func(a, b node) int { return cmp.Compare(a.at, b.at) })
	at := xxhash.Sum64String(key)
	first := 0
	for first < len(ring) && ring[first].at < at {
		first++
	}
	for i := range ring {
		if id := ring[(first+i)%len(ring)].id; !slices.Contains(order, id) {
			order = append(order, id)
		}
	}
	return order
}

// cacheKey returns the key of a chat whose system prompt and first user messages are the parts.
func cacheKey(parts ...string) string {
	var key []byte
	for _, part := range parts {
		key = append(binary.BigEndian.AppendUint64(key, uint64(len(part))), part...)
	}
	return string(key)
}

// chwblBody is a chat with a system prompt and these messages of the user.
func chwblBody(model, system string, user ...string) string {
	messages := []map[string]string{{"role": "system", "content": system}}
	for i, text := range user {
		if i > 0 {
			messages = append(messages, map[string]string{"role": "assistant", "content": "so"})
		}
		messages = append(messages, map[string]string{"role": "user", "content": text})
	}
	body, err := json.Marshal(map[string]any{"model": model, "stream": true, "messages": messages})
	if err != nil {
		panic(err)
	}
	return string(body)
}

// TestE2E_N7_TheRingByItsDefinition: the strategy chwbl sends each request where the definition of
// the ring says, with the three parameters of each model. A replica over its bound is passed over
// in the order of the ring.
func TestE2E_N7_TheRingByItsDefinition(t *testing.T) {
	t.Parallel()
	const replicas = 3
	var ids, urls []string
	held := map[string]*harness.HeldUpstream{}
	for range replicas {
		up := harness.StartHeldUpstream(t)
		ids, urls, held[up.ID()] = append(ids, up.ID()), append(urls, up.URL), up
	}
	const text = `
  - name: %s
    launcher: upstream
    upstreams: [%s]
    admission: {max_per_replica: 100}
    stream: {mode: native}
    routing: {strategy: chwbl, slow_start: 0s%s}
`
	models := []struct {
		name, fields    string
		nodes, messages int
		factor          float64
	}{
		{"usual", "", 100, 2, 1.25},
		{"few", ", virtual_nodes_per_replica: 3", 3, 2, 1.25},
		{"short", ", max_user_messages_for_cache: 1", 100, 1, 1.25},
		{"wide", ", load_factor: 2", 100, 2, 2},
	}
	config := "models:"
	for _, m := range models {
		config += fmt.Sprintf(text, m.name, strings.Join(urls, ", "), m.fields)
	}
	g := harness.Start(t, config)
	for _, m := range models {
		g.AwaitReadyReplicas(m.name, replicas) // a gateway is ready with one of the servers
		for i := range 20 {
			system, user := fmt.Sprint("system ", i%4), []string{fmt.Sprint("one ", i%2), fmt.Sprint("two ", i), fmt.Sprint("three ", i)}
			want := ringOrder(ids, m.nodes, cacheKey(append([]string{system}, user[:m.messages]...)...))[0]
			held[want].Release <- struct{}{}
			r := openChat(g, chwblBody(m.name, system, user...))
			if got := r.Header.Get("X-Sluice-Replica"); got != want {
				t.Fatalf("%s, request %d is at %q, the ring has it at %q", m.name, i, got, want)
			}
			io.Copy(io.Discard, r.Body)
			r.Body.Close()
			g.AwaitIdle(m.name)
		}
		// Streams with one key, which stay.
		var open []io.Closer
		user := []string{"one", "two"}
		order, loads := ringOrder(ids, m.nodes, cacheKey(append([]string{"hot"}, user[:m.messages]...)...)), map[string]int{}
		for n := range 12 {
			want := order[0] // all are over their bound
			for _, id := range order {
				if float64(loads[id]+1) <= float64(n+1)/replicas*m.factor {
					want = id
					break
				}
			}
			r := openChat(g, chwblBody(m.name, "hot", user...))
			open = append(open, r.Body)
			if got := r.Header.Get("X-Sluice-Replica"); got != want {
				t.Errorf("%s, stream %d with loads %v is at %q, want %q of %v", m.name, n, loads, got, want, order)
			}
			loads[want]++
		}
		for _, body := range open {
			body.Close()
		}
		g.AwaitIdle(m.name) // the models share their servers, and what runs on these
		for id, up := range held {
			harness.Eventually(t, "no request is left at "+id, func() error {
				if n := up.Running.Load(); n != 0 {
					return fmt.Errorf("%d are", n)
				}
				return nil
			})
		}
	}
}

// openChat asks for a stream. The caller closes its body.
func openChat(g *harness.Gateway, body string) *http.Response {
	g.T.Helper()
	r, err := g.Open(g.T.Context(), harness.ChatPath, body)
	if err != nil || r.StatusCode != http.StatusOK {
		g.T.Fatal(r, err)
	}
	return r
}

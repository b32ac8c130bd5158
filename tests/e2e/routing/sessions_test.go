package routing

import (
	"fmt"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// TestE2E_B2_SessionsStay: the requests of a session go to one replica, whatever their prompts, and
// different sessions go to all replicas.
func TestE2E_B2_SessionsStay(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, fmt.Sprintf(cachingSims, 4, 4, 1<<18))
	for _, way := range beginnings() {
		for _, by := range []string{"prompt_cache_key", "x-session-id"} {
			moved, at := 0, map[string]int{}
			for session := range 24 {
				homes := holdSession(g, way, by, session)
				at[homes[0]]++
				for n := 1; n < len(homes); n++ {
					if homes[n] != homes[n-1] {
						moved++
					}
				}
			}
			if moved > 0 || len(at) != 4 {
				t.Errorf("%s by %s: %d of 72 requests left the replica of their session; 24 sessions at %v", way.name, by, moved, at)
			}
		}
	}
}

// holdSession sends four requests of a session, whose prompts have nothing in common, and returns
// the replicas that served them.
func holdSession(g *harness.Gateway, way beginning, by string, session int) (homes []string) {
	g.T.Helper()
	name := fmt.Sprint(way.name, "-", by, "-", session)
	for n := range 4 {
		body := way.body(prose(fmt.Sprint("topic", session, "x", n), 20), prose("question", 8), n%2 == 0)
		var headers []string
		if by == "prompt_cache_key" {
			body[by] = name
		} else {
			headers = []string{by + ": " + name}
		}
		a, err := send(g, way.path, body, headers...)
		if err != nil {
			g.T.Fatal(err)
		}
		homes = append(homes, a.Header.Get("X-Sluice-Replica"))
	}
	return homes
}

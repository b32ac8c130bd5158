package lifecycle

import (
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// The WebSocket of a key that is removed after restarts is closed before its next turn, as without
// them. The process that carries the socket does not read the file any more.
func TestE2E_X20_ARemovedKeyIsRefusedAtTheOldProcess(t *testing.T) {
	t.Parallel()
	keys, tenants := harness.TenantKeys("acme", "other")
	g := harness.Start(t, "\nauth: {mode: keys}\n"+tenants+upgradeModels)
	l := &load{Gateway: g, tokens: 2, texts: map[string]string{}}
	removed, kept := g.Realtime(keys["acme"]), g.Realtime(keys["other"])
	for range 3 {
		for name, ws := range map[string]*websocket.Conn{"removed": removed, "kept": kept} {
			if _, err := l.turn(ws, func() {}); err != nil {
				t.Fatal(name, err)
			}
		}
		restart(g)
	}
	next, others := harness.TenantKeys("acme")
	g.Configure("\nauth: {mode: keys}\n" + others + strings.Join(strings.SplitAfter(tenants, "\n")[2:], "") + upgradeModels)
	if out, err := g.RunCommand("reload", "-c", g.Config); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if _, err := l.turn(removed, func() {}); websocket.CloseStatus(err) != websocket.StatusPolicyViolation {
		t.Errorf("the socket of a key that was removed: %v", err)
	}
	if _, err := l.turn(kept, func() {}); err != nil {
		t.Errorf("the socket of another key: %v", err)
	}
	if _, err := l.turn(g.Realtime(next["acme"]), func() {}); err != nil {
		t.Errorf("the socket of a new key: %v", err)
	}
}

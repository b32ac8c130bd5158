package gateway

import (
	"testing"

	"github.com/sluice-gateway/sluice/authz"
)

// TestX20_AKeyThatIsNotReadYetEndsNoSession: right after a restart the keys of run time may not be
// known. The sessions that the old process carries go on meanwhile.
func TestX20_AKeyThatIsNotReadYetEndsNoSession(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	g := newGateway(t, claimed(t, path), parse(t, path, "auth: {mode: keys}\ntenants: [{name: acme, models: [\"*\"]}]\n"))
	proof := g.auth.Proof(authz.Credentials{APIKey: authz.NewKey().Secret})
	for _, unread := range []bool{true, false} {
		g.auth.SetUnread(unread)
		if got := g.isValidKey("acme", proof); got != unread {
			t.Errorf("unread %t: the key is valid: %t", unread, got)
		}
	}
}

package gateway

import "testing"

// TestN4_GatewaysHaveIdentitiesOnRay: the identity of a gateway is the same after a restart, and
// another one for another state directory.
func TestN4_GatewaysHaveIdentitiesOnRay(t *testing.T) {
	t.Parallel()
	if a, b := rayIdentity("/one"), rayIdentity("/two"); a == b || a != rayIdentity("/one") {
		t.Errorf("the identities are %s and %s", a, b)
	}
}

package join

import (
	"crypto/x509"
	"testing"
	"time"
)

// A hardware clock with local time is up to 14 hours ahead until the network's time is known. What
// a gateway signs meanwhile is valid when its clock is right.
func TestX9_TheClockWasAheadWhenTheAuthorityWasMade(t *testing.T) {
	t.Parallel()
	a, err := openAuthority(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	key, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	der, err := a.signNode("n", &key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	node, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]*x509.Certificate{"authority": a.certificate, "node": node} {
		if before := time.Now().Add(-14 * time.Hour); isInvalidAt(c, before) {
			t.Errorf("the certificate of the %s is valid from %v, and not at %v", what, c.NotBefore, before)
		}
	}
}

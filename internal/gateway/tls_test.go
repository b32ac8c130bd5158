package gateway

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// The warning is about the certificate that Envoy serves, which is not the one of the files while
// Envoy refuses that.
func TestO12_TheWarningIsAboutTheCertificateInForce(t *testing.T) {
	t.Parallel()
	dir, now := t.TempDir(), time.Now()
	testutil.NewAuthority(t, "authority").Issue(t, dir, "server", "gateway.example") // ends in an hour
	chain, err := os.ReadFile(filepath.Join(dir, "server.crt"))
	if err != nil {
		t.Fatal(err)
	}
	read := now.Add(2 * certificateWarning)
	for served, warned := range map[string]bool{string(chain): true, "# a line\n" + string(chain): true, "": false, "no certificate": false} {
		all := shownCertificate{subject: "listen", end: endOf(served, read)}.conditions(nil, now)
		if (len(all) == 1) != warned || warned && (all[0].Reason != "EndsSoon" || all[0].Severity != condition.Warning) {
			t.Errorf("%.20q: %+v", served, all)
		}
	}
}

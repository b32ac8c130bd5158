// Package lifecycle tests starts, stops, crashes and restarts of gateways, and replicas that come
// and go with load, through a real Envoy and the built program. `make test` runs the tests. A
// test's name carries the ids of the requirements that it shows.
package lifecycle

import (
	"os"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

func TestMain(m *testing.M) {
	status := harness.Main(m)
	os.RemoveAll(shared.dir)
	os.Exit(status)
}

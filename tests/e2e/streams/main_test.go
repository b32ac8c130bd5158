// Package streams tests managed and native streams: their bytes, ends, resumption, figures, traces
// and slow clients, through a real Envoy and the built program. `make test` runs the tests. A
// test's name carries the ids of the requirements that it shows.
package streams

import (
	"os"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// Package clients tests what clients see: the official libraries, a browser, proxies on the way,
// keys and errors, through a real Envoy and the built program. `make test` runs the tests. A
// test's name carries the ids of the requirements that it shows.
package clients

import (
	"os"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// Package routing tests which replica or upstream serves a request, and what happens when that one
// fails, through a real Envoy and the built program. `make test` runs the tests. A test's name
// carries the ids of the requirements that it shows.
package routing

import (
	"os"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

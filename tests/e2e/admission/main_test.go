// Package admission tests how requests wait for models: shares of tenants, limits, priorities,
// tasks and gateways that share a Redis, through a real Envoy and the built program. `make test`
// runs the tests. A test's name carries the ids of the requirements that it shows.
package admission

import (
	"os"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// Package edge attacks the listener for clients: floods of connections, slow uploads, too many
// headers, engines that never answer. The tests run a real Envoy and the built program. A test's
// name carries the ids of the findings that it shows.
package edge

import (
	"os"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

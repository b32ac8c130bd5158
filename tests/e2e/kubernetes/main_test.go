// Package kubernetes tests models that run as Deployments of a real Kubernetes control plane,
// through a real Envoy and the built program. `make test` runs the tests. A test's name carries
// the ids of the requirements that it shows.
package kubernetes

import (
	"os"
	"testing"

	"github.com/sluice-gateway/sluice/internal/kubetest"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

func TestMain(m *testing.M) {
	status := harness.Main(m)
	kubetest.StopShared()
	os.Exit(status)
}

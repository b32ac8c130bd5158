package kubernetes

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/kubetest"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// TestE2E_B11_TheBaseIsAccepted: an API server accepts every object of the kustomize base, as
// a user would apply it.
func TestE2E_B11_TheBaseIsAccepted(t *testing.T) {
	t.Parallel()
	k := kubetest.Start(t)
	k.Kubectl(t, "create", "namespace", "sluice")
	out := k.Kubectl(t, "apply", "--validate=strict", "-k", filepath.Join(testutil.Root(), "examples", "kubernetes", "base"))
	for _, want := range []string{"inferencemodels.sluice.dev created", "deployment.apps/sluice created", "service/sluice created",
		"configmap/sluice created", "serviceaccount/sluice created", "networkpolicy"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if file := k.Kubectl(t, "get", "configmap", "sluice", "-n", "sluice", "-o", `jsonpath={.data.sluice\.yaml}`); !strings.Contains(file, "listen:") {
		t.Errorf("the configuration is %q", file)
	}
}

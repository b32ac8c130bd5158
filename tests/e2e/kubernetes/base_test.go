package kubernetes

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/kubetest"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// TestE2E_B11_TheManifestsAreAccepted: an API server accepts the objects of the examples and of the
// chart, as a user would apply them. Its control plane has no node, so none of their pods runs.
func TestE2E_B11_TheManifestsAreAccepted(t *testing.T) {
	t.Parallel()
	c := kubetest.Start(t)
	c.Kubectl(t, "create", "namespace", "sluice")
	for _, step := range []struct {
		name  string
		check func(*testing.T, *kubetest.Cluster)
	}{
		{"the base", checkBase},
		{"Envoys elsewhere", checkEnvoysElsewhere}, // over the base
		{"behind Envoy Gateway", checkEnvoyGateway},
		{"the chart", checkChart},
	} {
		t.Run(step.name, func(t *testing.T) { step.check(t, c) })
	}
}

// checkBase checks that the API accepts every object of the kustomize base.
func checkBase(t *testing.T, c *kubetest.Cluster) {
	out := c.Kubectl(t, "apply", "--validate=strict", "-k", filepath.Join(testutil.Root(), "examples", "kubernetes", "base"))
	for _, want := range []string{"inferencemodels.sluice.dev created", "deployment.apps/sluice created", "service/sluice created",
		"configmap/sluice created", "serviceaccount/sluice created", "networkpolicy"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if file := c.Kubectl(t, "get", "configmap", "sluice", "-n", "sluice", "-o", `jsonpath={.data.sluice\.yaml}`); !strings.Contains(file, "listen:") {
		t.Errorf("the configuration is %q", file)
	}
}

// addKind adds a kind of somebody else's that an example or the chart uses.
func addKind(t *testing.T, c *kubetest.Cluster, group, kind, plural, version string) {
	t.Helper()
	c.Apply(t, "default", fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[3]s.%[1]s, annotations: {api-approved.kubernetes.io: unapproved}}
spec:
  group: %[1]s
  scope: Namespaced
  names: {kind: %[2]s, plural: %[3]s}
  versions:
    - {name: %[4]s, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`, group, kind, plural, version))
	c.Kubectl(t, "wait", "--for=condition=Established", "crd/"+plural+"."+group)
}

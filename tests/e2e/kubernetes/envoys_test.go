package kubernetes

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/kubetest"
	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// checkEnvoysElsewhere checks that the API accepts the manifests of the example with Envoys in pods
// of their own, and that they fit together.
func checkEnvoysElsewhere(t *testing.T, c *kubetest.Cluster) {
	folder := filepath.Join(testutil.Root(), "examples", "kubernetes", "envoys")
	addKind(t, c, "cert-manager.io", "Issuer", "issuers", "v1")
	addKind(t, c, "cert-manager.io", "Certificate", "certificates", "v1")
	c.Kubectl(t, "apply", "-n", "sluice", "-f", filepath.Join(folder, "certificates.yaml"))
	c.Kubectl(t, "apply", "-k", folder)
	for _, test := range []struct{ object, path, want string }{
		{"deployment/sluice", "{.spec.template.spec.containers[0].args[0]}", "serve"},
		{"deployment/sluice", "{.spec.template.spec.containers[0].readinessProbe.httpGet.path}", "/readyz"},
		{"deployment/sluice", "{.spec.template.spec.volumes[?(@.name=='tls')].secret.secretName}", "sluice-gateway"},
		{"deployment/sluice", "{.spec.template.spec.containers[0].volumeMounts[?(@.name=='tls')].mountPath}", "/etc/sluice-tls"},
		{"deployment/sluice-envoy", "{.spec.replicas}", "3"},
		{"deployment/sluice-envoy", "{.spec.template.spec.volumes[?(@.name=='tls')].secret.secretName}", "sluice-envoy"},
		{"service/sluice", "{.spec.selector['app\\.kubernetes\\.io/name']}", "sluice-envoy"},
		{"service/sluice-control", "{.spec.clusterIP}", "None"},
		{"certificate/sluice-gateway", "{.spec.secretName}", "sluice-gateway"},
		{"certificate/sluice-envoy", "{.spec.dnsNames[0]}", "envoy.sluice"},
	} {
		if got := c.Kubectl(t, "get", "-n", "sluice", test.object, "-o", "jsonpath="+test.path); got != test.want {
			t.Errorf("%s %s is %q, want %q", test.object, test.path, got, test.want)
		}
	}
}

// checkEnvoyGateway checks that the API accepts the route of the example behind Envoy Gateway, and
// that the route leads to the Service of the Envoys elsewhere, at a port that this has.
func checkEnvoyGateway(t *testing.T, c *kubetest.Cluster) {
	addKind(t, c, "gateway.networking.k8s.io", "HTTPRoute", "httproutes", "v1")
	addKind(t, c, "gateway.envoyproxy.io", "BackendTrafficPolicy", "backendtrafficpolicies", "v1alpha1")
	c.Kubectl(t, "apply", "-n", "sluice", "-f", filepath.Join(testutil.Root(), "examples", "kubernetes", "envoy-gateway", "route.yaml"))
	get := func(object, path string) string {
		return c.Kubectl(t, "get", "-n", "sluice", object, "-o", "jsonpath="+path)
	}
	service := get("httproute/sluice", "{.spec.rules[0].backendRefs[0].name}")
	if port, want := get("httproute/sluice", "{.spec.rules[0].backendRefs[0].port}"), get("service/"+service, "{.spec.ports[0].port}"); port != want || port == "" {
		t.Errorf("the route leads to port %q, and the Service has %q", port, want)
	}
	if got := get("backendtrafficpolicy/sluice", "{.spec.targetRefs[0].name} {.spec.timeout.http.requestTimeout}"); got != "sluice 0s" {
		t.Errorf("the policy has %q", got)
	}
}

// The files of the example's Envoys are what sluice bootstrap writes for its configuration.
func TestE2E_B11_FilesOfEnvoysElsewhere(t *testing.T) {
	t.Parallel()
	dir, folder := t.TempDir(), filepath.Join(testutil.Root(), "examples", "kubernetes", "envoys")
	authority := testutil.NewAuthority(t, "sluice")
	authority.Issue(t, dir, "tls", "gateways.sluice")
	authority.Write(t, filepath.Join(dir, "ca.crt"))
	text, err := os.ReadFile(filepath.Join(folder, "sluice.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	file, out := filepath.Join(dir, "sluice.yaml"), filepath.Join(dir, "out")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(string(text), "/etc/sluice-tls", dir)), 0o600); err != nil {
		t.Fatal(err)
	}
	said, err := exec.CommandContext(t.Context(), harness.Program(), "bootstrap", "-c", file, "--out", out, "--dir", "/etc/sluice-envoy").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	manifest, err := os.ReadFile(filepath.Join(folder, "envoys.yaml"))
	if err != nil || !strings.Contains(string(said), "--drain-time-s 1860\n") || !strings.Contains(string(manifest), `--drain-time-s, "1860",`) {
		t.Errorf("the command says %q, and envoys.yaml has another drain time (%v)", said, err)
	}
	for _, name := range []string{"envoy.json", "certificate.json", "authority.json"} {
		want, err := os.ReadFile(filepath.Join(out, name))
		if err != nil {
			t.Fatal(err)
		}
		committed := filepath.Join(folder, name)
		if os.Getenv("SLUICE_UPDATE") != "" {
			if err := os.WriteFile(committed, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(committed); err != nil || string(got) != string(want) {
			t.Errorf("%s is not what the command writes (%v); to write it: SLUICE_UPDATE=1", name, err)
		}
	}
}

package kubernetes

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/sluice-gateway/sluice/internal/kubetest"
	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// chartValues are values that the tests give the chart, by the name of what they are for.
var chartValues = map[string]string{
	"defaults":       "{}",
	"envoys":         "{envoys: {enabled: true}, replicas: 2}",
	"tls and keys":   "{tls: {secret: clients, clientCA: true}, envFrom: [{secretRef: {name: upstream-keys}}], secretFiles: {hub: hub-token}}",
	"peers":          `{peers: {enabled: true}, adminIngress: {enabled: false}, config: {redis: "redis://redis:6379/0"}}`,
	"redis":          `{replicas: 2, configKind: Secret, config: {redis: "redis://:secret@redis:6379/0"}}`,
	"all envoys":     chartEnvoys,
	"page and rules": chartPage,
	"long name":      "{fullnameOverride: chat-service-production}",
	"own file":       "{existingConfig: mine, rbac: {create: false}, crds: {install: false}, networkPolicy: {enabled: false}, podDisruptionBudget: {enabled: false}}",
}

const chartEnvoys = `
fullnameOverride: llm
tls: {secret: clients}
envoys: {enabled: true, serverName: gateways.llm, clientName: envoy.llm}
serviceMonitor: {enabled: true}
prometheusRule: {enabled: true}
imagePullSecrets: [{name: registry}]
`

const chartPage = `
config:
  admin: 0.0.0.0:9090
  admin_auth: {tokens: [{name: ops, role: operator, hash: "sha256:7cb18597c72c9aaa6772f0e488879cdd11bdf4d573a97ee17e21bb7671667e59"}]}
  tenants: [{name: a, keys: ["sha256:7cb18597c72c9aaa6772f0e488879cdd11bdf4d573a97ee17e21bb7671667e59"]}]
adminIngress: {enabled: true, host: llm.example.com, className: nginx, tlsSecret: page}
serviceMonitor: {enabled: true, labels: {release: prometheus}}
prometheusRule: {enabled: true}
nodeSelector: {pool: cpu}
tolerations: [{key: a, operator: Exists}]
podAnnotations: {a: b}
`

func chartFolder() string { return filepath.Join(testutil.Root(), "packaging", "helm", "sluice") }

// helm runs Helm and returns its output. The error has what Helm complains about.
func helm(t *testing.T, env []string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), testutil.Tool(t, "helm"), args...)
	cmd.Env = slices.Concat(env, []string{"HOME=" + t.TempDir(), "PATH=" + os.Getenv("PATH")})
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("helm %s: %w: %s", strings.Join(args, " "), err, complaint.String())
	}
	return out.String(), nil
}

// writeValues writes values into a file and returns its path.
func writeValues(t *testing.T, values string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(path, []byte(values), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// renderChart returns what the chart makes of values, for a release and a namespace named sluice.
func renderChart(t *testing.T, values string) string {
	t.Helper()
	out, err := helm(t, nil, "template", "sluice", chartFolder(), "--namespace", "sluice", "--values", writeValues(t, values))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// object is an object of the API, as its YAML has it.
type object = map[string]any

// readObjects returns the objects of a text by kind and name.
func readObjects(t *testing.T, text string) map[string]object {
	t.Helper()
	all := map[string]object{}
	decoder := yaml.NewDecoder(strings.NewReader(text))
	for {
		var o object
		if err := decoder.Decode(&o); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		if o == nil {
			continue
		}
		meta := o["metadata"].(object)
		key := fmt.Sprint(o["kind"], "/", meta["name"])
		if all[key] != nil {
			t.Errorf("%s is there twice", key)
		}
		all[key] = o
	}
}

// chartMarks are the labels and annotations that the chart adds to the objects of the examples.
var chartMarks = []string{"app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "helm.sh/chart", "helm.sh/resource-policy", "checksum/config"}

// mayBeEmpty are the fields that mean nothing when they are empty.
var mayBeEmpty = []string{"labels", "annotations", "lifecycle"}

// nameHash is the end of the name that kustomize gives a ConfigMap of files.
var nameHash = regexp.MustCompile(`(sluice-envoy)-[a-z0-9]{10}$`)

// comparable returns a value without what may differ between the chart and the examples. That is
// marks of the chart, the namespace, hashes in names, and the form of files in a ConfigMap. It
// leaves out the fields of mayBeEmpty that are empty.
func comparable(value any) any {
	switch v := value.(type) {
	case object:
		kept := object{}
		for name, field := range v {
			if slices.Contains(chartMarks, name) || name == "namespace" && field == "sluice" {
				continue
			}
			field = comparable(field)
			if inner, ok := field.(object); ok && len(inner) == 0 && slices.Contains(mayBeEmpty, name) {
				continue
			}
			kept[nameHash.ReplaceAllString(name, "$1")] = field
		}
		return kept
	case []any:
		kept := make([]any, len(v))
		for i := range v {
			kept[i] = comparable(v[i])
		}
		return kept
	case string:
		var file object
		if strings.Contains(v, "\n") && yaml.Unmarshal([]byte(v), &file) == nil {
			return comparable(file)
		}
		return nameHash.ReplaceAllString(v, "$1")
	}
	return value
}

// withoutLabels removes the labels of an object itself, which the examples give to few objects.
func withoutLabels(o object) {
	meta := o["metadata"].(object)
	delete(meta, "labels")
}

// TestE2E_B11_TheChartIsTheExample: with its default values the chart makes the objects of the
// kustomize base, field by field. With envoys.enabled it makes those of the example with Envoys in
// pods of their own. Labels of Helm, hashes in names, and the namespace may differ.
func TestE2E_B11_TheChartIsTheExample(t *testing.T) {
	t.Parallel()
	binary := testutil.Tool(t, "kubetest")
	for values, folder := range map[string]string{"defaults": "base", "envoys": "envoys"} {
		path := filepath.Join(testutil.Root(), "examples", "kubernetes", folder)
		text, err := exec.CommandContext(t.Context(), binary, "kubectl", "kustomize", path).Output()
		if err != nil {
			t.Fatal(err)
		}
		want, got := map[string]object{}, map[string]object{}
		for key, o := range readObjects(t, string(text)) {
			o = comparable(o).(object)
			withoutLabels(o)
			want[nameHash.ReplaceAllString(key, "$1")] = o
		}
		for key, o := range readObjects(t, renderChart(t, chartValues[values])) {
			got[key] = comparable(o).(object)
			withoutLabels(got[key])
		}
		sortPorts(want, got)
		if len(want) < 8 {
			t.Fatalf("%s has only %v", folder, slices.Sorted(maps.Keys(want)))
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-) and the chart with %s (+) differ:\n%s", folder, values, d)
		}
	}
}

// sortPorts brings ports, mounts and volumes of Deployments into one order, which has no meaning.
func sortPorts(groups ...map[string]object) {
	byName := func(a, b any) int {
		return strings.Compare(fmt.Sprint(a.(object)["name"]), fmt.Sprint(b.(object)["name"]))
	}
	for _, group := range groups {
		for _, o := range group {
			if o["kind"] != "Deployment" {
				continue
			}
			pod := o["spec"].(object)["template"].(object)["spec"].(object)
			slices.SortFunc(pod["volumes"].([]any), byName)
			container := pod["containers"].([]any)[0].(object)
			slices.SortFunc(container["ports"].([]any), byName)
			slices.SortFunc(container["volumeMounts"].([]any), byName)
		}
	}
}

// checkChart checks that Helm finds no fault in the chart, and that an API server accepts what the
// chart makes of several sets of values. Sluice accepts the configuration in it.
func checkChart(t *testing.T, c *kubetest.Cluster) {
	c.Kubectl(t, "delete", "-f", filepath.Join(manifests(), "crds.yaml")) // the chart has them too
	addKind(t, c, "monitoring.coreos.com", "ServiceMonitor", "servicemonitors", "v1")
	addKind(t, c, "monitoring.coreos.com", "PrometheusRule", "prometheusrules", "v1")
	for name, values := range chartValues {
		if _, err := helm(t, nil, "lint", "--strict", chartFolder(), "--values", writeValues(t, values)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		text := renderChart(t, values)
		file := filepath.Join(t.TempDir(), "objects.yaml")
		if err := os.WriteFile(file, []byte(strings.ReplaceAll(text, "namespace: sluice", "")), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := c.TryKubectl(t, "apply", "--server-side", "--validate=strict", "-n", c.Namespace(t), "-f", file); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		checkChartConfig(t, name, readObjects(t, text))
	}
}

// checkChartConfig has Sluice check the configuration of a rendered chart, with certificates of the
// names that it has.
func checkChartConfig(t *testing.T, name string, objects map[string]object) {
	t.Helper()
	text := ""
	for key, o := range objects {
		if kind, _, _ := strings.Cut(key, "/"); kind != "ConfigMap" && kind != "Secret" {
			continue
		}
		for _, field := range []string{"data", "stringData"} {
			if files, ok := o[field].(object); ok && files["sluice.yaml"] != nil {
				text = files["sluice.yaml"].(string)
			}
		}
	}
	if name == "own file" {
		if text != "" {
			t.Errorf("%s: the chart makes a file: %s", name, text)
		}
		return
	}
	dir := t.TempDir()
	authority := testutil.NewAuthority(t, "sluice")
	for _, folder := range []string{"sluice-tls", "sluice-listen-tls"} {
		inside := filepath.Join(dir, folder)
		if err := os.Mkdir(inside, 0o700); err != nil {
			t.Fatal(err)
		}
		authority.Issue(t, inside, "tls", "gateways.sluice", "gateways.llm")
		authority.Write(t, filepath.Join(inside, "ca.crt"))
		text = strings.ReplaceAll(text, "/etc/"+folder+"/", inside+"/")
	}
	file := filepath.Join(dir, "sluice.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), harness.Program(), "check", file).CombinedOutput(); err != nil {
		t.Errorf("%s: %v: %s\n%s", name, err, out, text)
	}
}

// TestE2E_B11_TheChartIsInstalled: Helm installs the chart into a cluster, upgrades it with other
// values, and leaves the custom resources when it removes the release.
func TestE2E_B11_TheChartIsInstalled(t *testing.T) {
	t.Parallel()
	k := kubetest.Start(t)
	env := []string{"KUBECONFIG=" + k.Kubeconfig}
	run := func(args ...string) string {
		t.Helper()
		out, err := helm(t, env, append(args, "--namespace", "llm")...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	get := func(object, path string) string {
		t.Helper()
		return k.Kubectl(t, "get", "-n", "llm", object, "-o", "jsonpath="+path)
	}
	notes := run("install", "chat", chartFolder(), "--create-namespace")
	for _, want := range []string{"http://chat-sluice.llm:80/v1", "deploy/chat-sluice 9090", "set config.redis to share them", "a key that nobody has"} {
		if !strings.Contains(notes, want) {
			t.Errorf("no %q in %s", want, notes)
		}
	}
	if got := get("configmap/chat-sluice", `{.data.sluice\.yaml}`); !strings.Contains(got, "name: chat-sluice\n") {
		t.Errorf("the installation's name is not that of the release: %s", got)
	}
	run("upgrade", "chat", chartFolder(), "--values", writeValues(t, chartValues["redis"]))
	if got := get("deployment/chat-sluice", "{.spec.template.spec.volumes[?(@.name=='config')].secret.secretName}"); got != "chat-sluice" {
		t.Errorf("the file is of %q", got)
	}
	if got := k.Kubectl(t, "get", "configmap", "-n", "llm", "-l", "app.kubernetes.io/instance=chat", "-o", "name"); got != "" {
		t.Errorf("left: %s", got)
	}
	run("uninstall", "chat")
	if got := k.Kubectl(t, "get", "deployments,services", "-n", "llm", "-o", "name"); got != "" {
		t.Errorf("left: %s", got)
	}
	k.Kubectl(t, "get", "crd", "inferencemodels.sluice.dev")
	// The custom resources name the release that made them. Another one must be told to take them.
	if _, err := helm(t, env, "install", "other", chartFolder(), "--namespace", "llm"); err == nil || !strings.Contains(err.Error(), "invalid ownership metadata") {
		t.Errorf("another release: %v", err)
	}
	run("install", "other", chartFolder(), "--take-ownership")
	run("upgrade", "other", chartFolder(), "--reset-then-reuse-values")
}

// TestE2E_B11_AReleaseMayHaveANumberAsItsName: labels are text, also where the name of the release
// is a number.
func TestE2E_B11_AReleaseMayHaveANumberAsItsName(t *testing.T) {
	out, err := helm(t, nil, "template", "123", chartFolder(), "--values", writeValues(t, chartValues["envoys"]))
	if err != nil {
		t.Fatal(err)
	}
	labelled := 0
	for name, o := range readObjects(t, out) {
		labels, _ := o["metadata"].(object)["labels"].(object)
		instance, found := labels["app.kubernetes.io/instance"]
		if !found {
			continue
		}
		if labelled++; instance != "123" {
			t.Errorf("%s: the label of the release is %v, a %T", name, instance, instance)
		}
	}
	if labelled == 0 {
		t.Error("no object has the label of the release")
	}
}

// TestE2E_B11_AReleaseMayHaveADotInItsName: Helm takes a dot in the name of a release. The name of
// a Service has none.
func TestE2E_B11_AReleaseMayHaveADotInItsName(t *testing.T) {
	t.Parallel()
	out, err := helm(t, nil, "template", "llm.prod", chartFolder(), "--values", writeValues(t, chartValues["envoys"]))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"Service/llm-prod-sluice", "Service/llm-prod-sluice-control"} {
		if readObjects(t, out)[name] == nil {
			t.Errorf("there is no %s", name)
		}
	}
	if strings.Contains(out, "llm.prod-sluice") {
		t.Error("a name has a dot")
	}
}

// TestE2E_B11_ObjectsOfTheUserMayHaveNumbersAsNames: Kubernetes takes 123 as the name of a Secret,
// and an Ingress may have a host for all names of a domain.
func TestE2E_B11_ObjectsOfTheUserMayHaveNumbersAsNames(t *testing.T) {
	t.Parallel()
	const values = `{existingConfig: "123", tls: {secret: "123"}, secretFiles: {a: "123"}, serviceAccount: {name: "123"},
  config: {admin: "0.0.0.0:9090"}, adminIngress: {enabled: true, host: "*.example.com", className: "123", tlsSecret: "123"},
  envoys: {enabled: true, secret: "123", gatewaySecret: "123"}}`
	found := 0
	var look func(path string, value any)
	look = func(path string, value any) {
		switch v := value.(type) {
		case object:
			for name, member := range v {
				look(path+"."+name, member)
			}
		case []any:
			for _, member := range v {
				look(path, member)
			}
		case string:
			if v == "123" || v == "*.example.com" {
				found++
			}
		case int:
			if v == 123 {
				t.Errorf("%s is a number", path)
			}
		}
	}
	for name, o := range readObjects(t, renderChart(t, values)) {
		look(name, o)
	}
	if found < 12 {
		t.Errorf("the names are found %d times", found)
	}
}

// TestE2E_B11_PodsReachEachOther: with peers.enabled each pod has its own address for the others,
// of either family, and the network lets the gateways alone reach it.
func TestE2E_B11_PodsReachEachOther(t *testing.T) {
	t.Parallel()
	objects := readObjects(t, renderChart(t, chartValues["peers"]))
	var pod struct {
		Spec struct {
			Template struct {
				Spec struct {
					Containers []struct {
						Args []string
						Env  []struct {
							Name      string
							ValueFrom struct {
								FieldRef struct {
									FieldPath string `yaml:"fieldPath"`
								} `yaml:"fieldRef"`
							} `yaml:"valueFrom"`
						}
					}
				}
			}
		}
	}
	remarshal(t, objects["Deployment/sluice"], &pod)
	c := pod.Spec.Template.Spec.Containers[0]
	if last := c.Args[len(c.Args)-1]; last != "--peers=[$(POD_IP)]:9445" {
		t.Errorf("the arguments are %q", c.Args)
	}
	found := false
	for _, e := range c.Env {
		found = found || e.Name == "POD_IP" && e.ValueFrom.FieldRef.FieldPath == "status.podIP"
	}
	if !found {
		t.Errorf("the variables are %+v", c.Env)
	}
	var policy struct {
		Spec struct {
			Ingress []struct {
				Ports []struct{ Port string }
				From  []struct {
					PodSelector struct {
						MatchLabels map[string]string `yaml:"matchLabels"`
					} `yaml:"podSelector"`
				}
			}
		}
	}
	remarshal(t, objects["NetworkPolicy/sluice"], &policy)
	for _, rule := range policy.Spec.Ingress {
		if rule.Ports[0].Port == "peers" {
			if len(rule.From) != 1 || rule.From[0].PodSelector.MatchLabels["app.kubernetes.io/instance"] != "sluice" {
				t.Errorf("the port is open to %+v", rule.From)
			}
			return
		}
	}
	t.Errorf("the port is closed: %+v", policy.Spec.Ingress)
}

// TestE2E_B11_AGatewayWithoutEnvoysIsNoAlert: with Envoys in pods of their own a gateway that has
// none is normal, and only a release without any is an alert. With its own Envoy each gateway has
// one.
func TestE2E_B11_AGatewayWithoutEnvoysIsNoAlert(t *testing.T) {
	t.Parallel()
	for values, want := range map[string]string{
		"all envoys":     "sum by (job, namespace, service) (sluice_envoys) == 0",
		"page and rules": "sluice_envoys == 0",
	} {
		var rules struct {
			Spec struct {
				Groups []struct {
					Rules []struct{ Alert, Expr string }
				}
			}
		}
		for key, o := range readObjects(t, renderChart(t, chartValues[values])) {
			if strings.HasPrefix(key, "PrometheusRule/") {
				remarshal(t, o, &rules)
			}
		}
		found := map[string]string{}
		for _, group := range rules.Spec.Groups {
			for _, r := range group.Rules {
				found[r.Alert] = r.Expr
			}
		}
		if got := found["SluiceEnvoyGone"]; got != want || found["SluiceGatewayDown"] != `up{job="sluice"} == 0` {
			t.Errorf("%s: the alert is %q, want %q", values, got, want)
		}
	}
}

// TestE2E_B11_AllPodsMayPullImages: the Envoys in pods of their own get the secrets of a registry,
// too.
func TestE2E_B11_AllPodsMayPullImages(t *testing.T) {
	t.Parallel()
	objects := readObjects(t, renderChart(t, chartValues["all envoys"]))
	for _, name := range []string{"llm", "llm-envoy"} {
		var deployment struct {
			Spec struct {
				Template struct {
					Spec struct {
						ImagePullSecrets []struct{ Name string } `yaml:"imagePullSecrets"`
					}
				}
			}
		}
		remarshal(t, objects["Deployment/"+name], &deployment)
		if secrets := deployment.Spec.Template.Spec.ImagePullSecrets; len(secrets) != 1 || secrets[0].Name != "registry" {
			t.Errorf("%s pulls with %v", name, secrets)
		}
	}
}

// TestE2E_B11_ValuesOfAnEarlierChart: `helm upgrade --reuse-values` gives the chart the values of
// the release before, defaults included. They lack what later charts have brought, so that is off.
// An Envoy that drained for no time would cut all streams when a listener changes.
func TestE2E_B11_ValuesOfAnEarlierChart(t *testing.T) {
	t.Parallel()
	for values, earlier := range map[string]string{
		"{}":        "{peers: null}",
		chartEnvoys: strings.Replace(chartEnvoys, "envoys: {", "envoys: {drainSeconds: null, ", 1) + "peers: null\n",
	} {
		want := readObjects(t, renderChart(t, values))
		if d := cmp.Diff(want, readObjects(t, renderChart(t, earlier))); d != "" {
			t.Errorf("with defaults (-) and with the values of an earlier chart (+):\n%s", d)
		}
	}
}

// remarshal reads an object of the API into a struct.
func remarshal(t *testing.T, from object, to any) {
	t.Helper()
	text, err := yaml.Marshal(from)
	if err == nil {
		err = yaml.Unmarshal(text, to)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestE2E_B11_TheChartRefuses: values that are wrong or do not fit together are refused, and the
// message names them. Labels for the Prometheus Operator may be absent.
func TestE2E_B11_TheChartRefuses(t *testing.T) {
	t.Parallel()
	for values, want := range map[string]string{
		"{replica: 2}":                                                       "additional properties 'replica' not allowed",
		"{config: null}":                                                     "missing property 'config'",
		"{envoys: null, tls: null}":                                          "missing properties 'tls', 'envoys'",
		"{image: {repository: null}}":                                        "'/image': missing property 'repository'",
		"{envoys: {secret: null, clientName: null}}":                         "'/envoys': missing properties 'secret', 'clientName'",
		"{service: {port: null}}":                                            "'/service': missing property 'port'",
		"{replicas: two}":                                                    "'/replicas': got string, want integer",
		"{configKind: Foo}":                                                  "'/configKind': value must be one of 'ConfigMap', 'Secret'",
		"{service: {port: 99999}}":                                           "'/service/port': maximum",
		"{envoys: {replica: 2}}":                                             "'/envoys': additional properties 'replica' not allowed",
		"{config: {state_dir: /tmp}}":                                        "'/config/state_dir': value must be '/var/lib/sluice/state'",
		"{config: {listen: '8080'}}":                                         "'/config/listen'",
		"{config: {admin: '0.0.0.0:9090'}}":                                  "config.admin is 0.0.0.0:9090, which other pods reach: set config.admin_auth",
		"{config: {redis: 'redis://:pw@redis:6379'}}":                        "config.redis has a password: set configKind to Secret",
		"{adminIngress: {enabled: true, host: a.b}}":                         "adminIngress needs its host, and config.admin off loopback",
		"{envoys: {enabled: true}, config: {control: {}}}":                   "envoys.enabled writes config.control",
		"{tls: {secret: a}, config: {tls: {}}}":                              "tls.secret writes config.tls",
		"{peers: {enabled: true}}":                                           "peers.enabled needs config.redis",
		"{config: {peers: '10.0.0.1:9445'}}":                                 "config.peers is 10.0.0.1:9445, which only one pod can be: remove it, and set peers.enabled",
		"{config: {drain_timeout: 10m}}":                                     "terminationGracePeriodSeconds is 330, and a pod needs 10 s before and config.drain_timeout, 10m, so that its streams are not cut: set 610 or more",
		"{envoys: {enabled: true}, config: {drain_timeout: 6m}}":             "is 330, and a pod needs config.drain_timeout, 6m, so that its streams are not cut: set 360 or more",
		"{config: {drain_timeout: null}, terminationGracePeriodSeconds: 35}": "is 35, and a pod needs 10 s before and config.drain_timeout, 30s, so that its streams are not cut: set 40 or more",
		"{tls: {clientCA: true}}":                                            "tls.clientCA needs tls.secret",
		"{secretFiles: {'a/b': c}}":                                          "'a/b' does not match",
		"{podDisruptionBudget: {maxUnavailable: half}}":                      "'/podDisruptionBudget/maxUnavailable'",
		"{serviceMonitor: {enabled: true, interval: soon}}":                  "'/serviceMonitor/interval'",
	} {
		_, err := helm(t, nil, "template", "sluice", chartFolder(), "--values", writeValues(t, values))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", values, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "redis://:pw@") {
			t.Errorf("%s: the message has the password: %v", values, err)
		}
	}
	const none = "{serviceMonitor: {enabled: true, labels: null}, prometheusRule: {enabled: true, labels: null}}"
	if _, err := helm(t, nil, "template", "sluice", chartFolder(), "--values", writeValues(t, none)); err != nil {
		t.Errorf("without labels: %v", err)
	}
}

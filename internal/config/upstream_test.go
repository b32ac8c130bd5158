package config

import (
	"encoding/pem"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestUpstreamsAsMappings(t *testing.T) {
	t.Setenv("SLUICE_TEST_KEY", "sk-1")
	t.Setenv("SLUICE_TEST_ORG", "org")
	s := httptest.NewTLSServer(nil)
	defer s.Close()
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, []byte(ca), 0o600); err != nil {
		t.Fatal(err)
	}
	c := parsed(t, `
models:
  - name: a
    launcher: upstream
    upstreams:
      - http://h
      - url: https://H/openai/v1/
        api_key_env: SLUICE_TEST_KEY
        headers: {X-Org: "${SLUICE_TEST_ORG}-${SLUICE_TEST_ORG}", X-Literal: "$5 {off} 100%"}
        ca_file: `+file+`
      - {url: "https://[::1]:8443", insecure_skip_verify: true, headers: {Api-Key: "${SLUICE_TEST_KEY}"}}
upstreams: [{url: http://h/v1}, https://h/openai2]
`)
	want := []Upstream{
		{URL: "http://h:80", Resolve: ResolveFirst},
		{URL: "https://h:443/openai", Resolve: ResolveFirst, APIKeyEnv: "SLUICE_TEST_KEY", CAFile: file, CA: ca,
			Headers:        map[string]string{"X-Org": "${SLUICE_TEST_ORG}-${SLUICE_TEST_ORG}", "X-Literal": "$5 {off} 100%"},
			RequestHeaders: map[string]string{"authorization": "Bearer sk-1", "x-org": "org-org", "x-literal": "$5 {off} 100%"}},
		{URL: "https://[::1]:8443", Resolve: ResolveFirst, InsecureSkipVerify: true, Headers: map[string]string{"Api-Key": "${SLUICE_TEST_KEY}"},
			RequestHeaders: map[string]string{"api-key": "sk-1"}},
	}
	if d := cmp.Diff(want, c.Models[0].Upstreams); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]Upstream{{URL: "http://h:80", Resolve: ResolveFirst}, {URL: "https://h:443/openai2", Resolve: ResolveFirst}}, c.Upstreams); d != "" {
		t.Error(d)
	}
	if got := strings.Join(c.Warnings(), "\n"); !strings.Contains(got, "https://[::1]:8443 has insecure_skip_verify") || strings.Contains(got, "sk-1") {
		t.Errorf("warnings %q", got)
	}
}

// noAPIPath is the fault of an api_path that is no path.
const noAPIPath = "must be a path such as /v1beta/openai: letters, digits and _ - . / : @ + ~ only, without empty steps, . and .."

// TestUpstreamFaults checks faults of upstreams: each has its line, and none shows a secret.
func TestUpstreamFaults(t *testing.T) {
	t.Setenv("SLUICE_TEST_KEY", "sk-secret")
	t.Setenv("SLUICE_TEST_BROKEN", "sk-secret\nx: y")
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, file string
		want       []string
	}{
		{"a user in the URL", "upstreams:\n- http://user:secret@h", []string{
			"2: upstreams[0]: must not hold a user or password: name the environment variable that holds the key in api_key_env"}},
		{"a user in the URL of a mapping", "upstreams:\n- api_key_env: SLUICE_TEST_KEY\n  url: https://secret@h", []string{
			"3: upstreams[0].url: must not hold a user or password: name the environment variable that holds the key in api_key_env"}},
		{"no URL", "upstreams: [{api_key_env: SLUICE_TEST_KEY}]", []string{"1: upstreams[0].url: required, and missing"}},
		{"a list", "upstreams: [[http://h]]", []string{"1: upstreams[0]: must be a mapping such as {url: …, model: …}, is a list"}},
		{"a key itself", "upstreams: [{url: http://h, api_key: sk-secret}]", []string{
			"1: upstreams[0].api_key: unknown field; known are url, model, api_path, api_key_env, headers, ca_file, insecure_skip_verify, join, models, slots, resolve, health"}},
		{"a key for a name", "upstreams:\n- url: http://h\n  api_key_env: sk-secret", []string{
			"3: upstreams[0].api_key_env: must be the name of an environment variable, never a key itself"}},
		{"not set", "upstreams:\n- url: http://h\n  api_key_env: SLUICE_TEST_secret\n  headers:\n    x: a${SLUICE_TEST_secret}", []string{
			"3: upstreams[0].api_key_env: names an environment variable that is not set or empty: set it before Sluice starts",
			"5: upstreams[0].headers.x: names an environment variable that is not set or empty: set it before Sluice starts"}},
		{"an empty name", "upstreams: [{url: http://h, api_key_env: ''}]", []string{
			"1: upstreams[0].api_key_env: must be the name of an environment variable, never a key itself"}},
		{"values that no header has", "upstreams: [{url: http://h, api_key_env: SLUICE_TEST_BROKEN, headers: {x: ' secret', y: '${SLUICE_TEST_BROKEN}', z: '${secret'}}]", []string{
			"1: upstreams[0].api_key_env: has a value with a line break or another control character, so it cannot be a header",
			"1: upstreams[0].headers.x: has a value with a space at its beginning or end, so it cannot be a header",
			"1: upstreams[0].headers.y: has a value with a line break or another control character, so it cannot be a header",
			"1: upstreams[0].headers.z: has ${ without }: write the name of an environment variable as ${NAME}"}},
		{"headers that are not the file's", "upstreams: [{url: http://h, api_key_env: SLUICE_TEST_KEY, headers: {Host: a, Authorization: secret, X-Sluice-Tenant: b, 'a b': c, X: d, x: e}}]", []string{
			"1: upstreams[0].headers.\"a b\": cannot be the name of a header: use letters, digits and -",
			"1: upstreams[0].headers.Authorization: is also set by api_key_env: remove one of them",
			"1: upstreams[0].headers.Host: is set by Envoy or Sluice: remove it",
			"1: upstreams[0].headers.X-Sluice-Tenant: is set by Envoy or Sluice: remove it",
			"1: upstreams[0].headers.x: is given twice, as names of headers ignore case: remove one of them"}},
		{"TLS without TLS", "upstreams: [{url: http://h, ca_file: " + empty + ", insecure_skip_verify: true}]", []string{
			"1: upstreams[0].ca_file: has no effect with an http:// URL; remove it",
			"1: upstreams[0].insecure_skip_verify: has no effect with an http:// URL; remove it"}},
		{"certificates for nothing", "upstreams: [{url: https://h, ca_file: " + empty + ", insecure_skip_verify: true}]", []string{
			"1: upstreams[0].ca_file: has no effect with insecure_skip_verify: true; remove it"}},
		{"no certificates", "upstreams: [{url: https://h, ca_file: none.pem}, {url: https://i, ca_file: " + empty + "}, {url: https://j, ca_file: /dev/zero}]", []string{
			"1: upstreams[0].ca_file: cannot be used: " + filepath.Join(here, "testdata", "none.pem") + ": no such file or directory",
			"1: upstreams[1].ca_file: cannot be used: " + empty + ": it holds no certificate in PEM format",
			"1: upstreams[2].ca_file: cannot be used: /dev/zero: it is not a regular file"}},
		{"paths", "upstreams: ['http://h/a//b', 'http://h/a/../b', 'http://h/%2e', 'http://h/a%20b', 'http://h/a?']", append(
			repeat("1: upstreams[%]: must have a path of letters, digits and _ - . / : @ + ~ only, without empty steps, . and ..", 4),
			"1: upstreams[4]: must be a URL such as http://10.0.0.5:8000")},
		{"one server twice", "upstreams: [https://h/a, https://h:443/a/v1, http://h:443/a, https://h/b]", []string{
			"1: upstreams[1]: the same server is on line 1, at upstreams[0]: remove one of them", "1: upstreams[2]: the same server is on line 1, at upstreams[0]: remove one of them"}},
		{"name for a discovered server", "upstreams: [{url: http://h, model: x}]", []string{
			"1: upstreams[0].model: has no effect with the upstreams of the file; remove it"}},
		{"name of a model that none can be", "models: [{name: a, launcher: upstream, upstreams: [{url: http://h, model: \" x\"}]}]", []string{
			"1: models[a].upstreams[0].model: must be the model's name on this server, without control characters and without spaces at its ends"}},
		{"paths of probes", "upstreams:\n- {url: http://h:1, health: {path: health}}\n- {url: http://h:2, health: {path: '/a b'}}\n- {url: http://h:3, health: {path: '/ok?deep=1'}}", []string{
			"2: upstreams[0].health.path: must be a path that begins with /, such as /health, is health",
			`3: upstreams[1].health.path: must be a path that begins with /, such as /health, is "/a b"`}},
		{"paths of APIs", "upstreams:\n- {url: http://h:1, api_path: v1beta}\n- {url: http://h:2, api_path: /a//b}\n- {url: http://h:3, api_path: '/a?b'}\n- {url: http://h:4/v1/, api_path: /openai}\n- {url: http://h:5, api_path: ''}\n- {url: http://h:6/v1, api_path: /v1}", []string{
			"2: upstreams[0].api_path: " + noAPIPath, "3: upstreams[1].api_path: " + noAPIPath, "4: upstreams[2].api_path: " + noAPIPath,
			"5: upstreams[3].url: must not end with /v1 beside api_path, which stands in its place", "6: upstreams[4].api_path: " + noAPIPath}},
		{"one API twice", "upstreams:\n- http://h\n- {url: http://h, api_path: /v1}", []string{
			"3: upstreams[1]: the same server is on line 2, at upstreams[0]: remove one of them"}},
		{"one key twice", "upstreams:\n- http://h\n- {url: http://h, api_key_env: SLUICE_TEST_KEY}\n- {url: http://h, headers: {authorization: 'Bearer ${SLUICE_TEST_KEY}'}}", []string{
			"4: upstreams[2]: the same server is on line 3, at upstreams[1]: remove one of them"}},
		{"two schemes of one port", "upstreams: [{url: http://h:443, headers: {x: secret}}]\nmodels: [{name: a, launcher: upstream, upstreams: [https://h]}]", []string{
			"2: models[a].upstreams[0]: the same server is on line 1, at upstreams[0], with other settings: give it the same ones here"}},
		{"join for a server of a model", "models: [{name: a, launcher: upstream, upstreams: [{url: http://h, join: true}]}]", []string{
			"1: models[a].upstreams[0].join: has no effect with the upstreams of a model; remove it"}},
		{"one server in two ways", "models:\n- {name: a, launcher: upstream, upstreams: [http://h, http://i]}\n- {name: b, launcher: upstream, upstreams: [http://i, {url: http://h, slots: 2}]}", []string{
			"3: models[b].upstreams[1]: the same server is on line 2, at models[a].upstreams[0], with other settings: give it the same ones here"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := faultsOf(t, c.file)
			if d := cmp.Diff(c.want, got); d != "" {
				t.Error(d)
			}
			if text := strings.Join(got, "\n"); strings.Contains(text, "secret") {
				t.Errorf("a fault shows a secret: %s", text)
			}
		})
	}
}

// TestX3_JoinIsOfTheEntry: join may differ between two entries of the same server, and its slots
// may not.
func TestX3_JoinIsOfTheEntry(t *testing.T) {
	c := parsed(t, "models: [{name: a, launcher: upstream, upstreams: [http://h]}]\nupstreams: [{url: http://h, join: true}, http://i]")
	if !c.Upstreams[0].Join || c.Upstreams[1].Join || c.Models[0].Upstreams[0].Join {
		t.Errorf("%+v, %+v", c.Upstreams, c.Models[0].Upstreams)
	}
	got := faultsOf(t, "models: [{name: a, launcher: upstream, upstreams: [http://h]}]\nupstreams: [{url: http://h, join: true, slots: 2}]")
	want := []string{"1: models[a].upstreams[0]: the same server is on line 2, at upstreams[0], with other settings: give it the same ones here"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// TestU4_ModelIsOfTheEntry: two models may know one server's models by different names, and a name
// may be one that no model of the file could have.
func TestU4_ModelIsOfTheEntry(t *testing.T) {
	c := parsed(t, "models: [{name: a, launcher: upstream, upstreams: [{url: http://h, model: /models/x y}]}, "+
		"{name: b, launcher: upstream, upstreams: [{url: http://h, model: other}]}]\nupstreams: [http://h]")
	for i, want := range []string{"/models/x y", "other"} {
		if got := c.Models[i].Upstreams[0].Model; got != want {
			t.Errorf("model %d is %q there, want %q", i, got, want)
		}
	}
}

// TestT6_ServersOfOneURL: entries of one URL with other keys, headers or paths of the API are
// servers of their own. Each entry names its server in the same way in all lists. The first server
// of the file has the name that it has alone, and no name has a value of a key or header.
func TestT6_ServersOfOneURL(t *testing.T) {
	for name, value := range map[string]string{"SLUICE_TEST_A": "sk-secret-a", "SLUICE_TEST_B": "sk-secret-b", "SLUICE_TEST_B2": "sk-secret-b"} {
		t.Setenv(name, value)
	}
	const file = `
models:
  - name: m
    launcher: upstream
    upstreams:
      - {url: https://h, api_key_env: SLUICE_TEST_B, slots: 2}
      - {url: https://h, api_key_env: SLUICE_TEST_A, slots: 1, model: other}
      - https://h
      - {url: https://h, headers: {x-org: secret}}
      - {url: https://h, api_key_env: SLUICE_TEST_A, headers: {x-org: secret}}
      - {url: https://h, api_key_env: SLUICE_TEST_A, api_path: /v2}
      - {url: https://h/other, api_key_env: SLUICE_TEST_A}
  - name: n
    launcher: upstream
    upstreams:
      - {url: https://h, api_path: /v2, api_key_env: SLUICE_TEST_A}
      - {url: https://h, api_key_env: SLUICE_TEST_B2, slots: 2}
upstreams:
  - {url: https://h:443/v1, api_key_env: SLUICE_TEST_A, slots: 1, join: true}
`
	c := parsed(t, file)
	names := func(list []Upstream) (all []string) {
		for i := range list {
			all = append(all, list[i].Server())
		}
		return all
	}
	h := "https://h:443"
	want := [][]string{
		{h + "#SLUICE_TEST_B", h, h + "#2", h + "#3", h + "#SLUICE_TEST_A", h + "#SLUICE_TEST_A-2", h + "/other"},
		{h + "#SLUICE_TEST_A-2", h + "#SLUICE_TEST_B"}, {h},
	}
	if d := cmp.Diff(want, [][]string{names(c.Models[0].Upstreams), names(c.Models[1].Upstreams), names(c.Upstreams)}); d != "" {
		t.Error(d)
	}
	more := parsed(t, file+"  - {url: https://h, headers: {x-org: another}}\n")
	if d := cmp.Diff([]string{h, h + "#2"}, names(more.Upstreams)); d != "" {
		t.Error(d)
	}
}

// TestT6_AnObjectRenamesNoServerOfTheFile: the model of a custom resource may have the URL of a
// server of the file, which keeps its name and its key.
func TestT6_AnObjectRenamesNoServerOfTheFile(t *testing.T) {
	t.Setenv("SLUICE_TEST_A", "sk-secret-a")
	const own = "models: [{name: own, launcher: upstream, upstreams: [{url: http://b:1, api_key_env: SLUICE_TEST_A}]}]\n"
	c, faults := withObjects(t, "auth: {mode: none}\nlisten: 127.0.0.1:8080\nkubernetes: {}\n"+own+"upstreams: [{url: http://a:1, api_key_env: SLUICE_TEST_A}]\n",
		Object{Name: "guest", Spec: []byte(`{"launcher":"upstream","upstreams":["http://a:1","http://b:1"]}`)})
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	guest := c.Models[1].Upstreams
	for got, want := range map[string]string{
		c.Upstreams[0].Server(): "http://a:1", c.Models[0].Upstreams[0].Server(): "http://b:1",
		guest[0].Server(): "http://a:1#2", guest[1].Server(): "http://b:1#2",
	} {
		if got != want {
			t.Errorf("a server is %s, want %s", got, want)
		}
	}
	if guest[0].RequestHeaders != nil || guest[1].RequestHeaders != nil {
		t.Error("the custom resource has a key of the file")
	}
}

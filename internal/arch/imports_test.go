// Package arch holds the tests of the repository's form. `go test` runs it; no package imports it.
// The tests say which package may import which, what comments look like, what does not belong into
// git, and what texts that are no code must name.
package arch_test

import (
	"slices"
	"strings"
	"testing"
)

// allowed lists which packages of the module the production files of each package may import; "*"
// means all. A package without a row fails the test, and so does a name that no file needs.
var allowed = map[string]string{
	"ringhash":                  "",
	"admission":                 "internal/seal",
	"admission/admissiontest":   "admission",
	"admission/redis":           "admission internal/certificates internal/limits",
	"internal/limits":           "admission",
	"internal/usage":            "internal/beat internal/seal",
	"internal/redistest":        "internal/certificates internal/testutil",
	"internal/template":         "",
	"internal/testutil":         "",
	"internal/testutil/answers": "",
	"internal/raytest":          "internal/redistest internal/testutil",
	"internal/scale":            "internal/predict",
	"internal/carry":            "internal/dispatch internal/headers internal/lack internal/openai internal/request",
	"internal/adminclient":      "internal/headers",
	"scripts/sbom":              "",
	"scripts/licences":          "",
	"internal/condition":        "internal/beat",
	"internal/doctor":           "admission/redis engines engines/local envoy internal/adminclient internal/config internal/jwks internal/process internal/weights",
	"internal/loglines":         "internal/redact",
	"internal/console":          "",
	"internal/redact":           "",
	"internal/fit":              "engines engines/placement internal/weights",
	"internal/sources":          "",
	"internal/weights":          "",
	"internal/weights/hubtest":  "",
	"internal/chaos":            "api/llm/v1 internal/bench/report",
	"internal/backlog":          "admission",
	"internal/beat":             "",
	"internal/steady":           "",
	"engines":                   "internal/template",
	"engines/placement":         "engines",
	"engines/local":             "engines engines/placement engines/supervise internal/beat internal/loglines internal/process internal/redact internal/weights",
	"engines/supervise":         "internal/lack",
	"engines/nodes":             "engines engines/local engines/placement",
	"engines/join":              "engines engines/local internal/loglines internal/process internal/redact internal/sources",
	"engines/podpatch":          "",
	"engines/kubernetes":        "engines engines/podpatch internal/loglines internal/redact internal/template internal/weights",
	"engines/ray":               "engines engines/supervise internal/loglines internal/redact",
	"engines/kubernetes/custom": "engines/kubernetes",
	"engines/upstream":          "engines",
	"engines/news":              "engines",
	"internal/openai/jsonscan":  "",
	"internal/openai/sse":       "internal/openai/jsonscan",
	"internal/relay/queue":      "internal/memory internal/openai/jsonscan internal/openai/sse",
	"internal/relay/replay":     "internal/memory internal/relay/queue internal/openai/sse",
	"internal/openai/delta":     "internal/openai/jsonscan",
	"internal/openai/lifecycle": "internal/openai/jsonscan",
	"internal/openai/messages":  "internal/openai internal/openai/delta internal/openai/jsonscan internal/openai/sse",
	"internal/memory":           "internal/beat",
	"internal/processors":       "internal/beat",
	"internal/openai/leaves":    "internal/openai/jsonscan",
	"internal/relay/moderation": "internal/openai/jsonscan internal/openai/leaves",
	"internal/relay": "admission authz engines internal/dispatch internal/headers internal/lack internal/memory internal/openai internal/request internal/http1 " +
		"internal/openai/jsonscan internal/relay/moderation internal/relay/queue internal/relay/replay internal/routes internal/openai/lifecycle internal/openai/messages internal/openai/sse",
	"internal/relay/realtime": "authz internal/headers internal/memory internal/openai internal/relay internal/request internal/openai/delta internal/openai/sse",
	"internal/relay/grpcapi": "authz api/llm/v1 internal/headers internal/openai internal/relay internal/openai/delta " +
		"internal/openai/jsonscan internal/openai/sse",
	"internal/relay/peers":       "internal/headers internal/openai internal/openai/messages internal/openai/sse",
	"internal/kubetest":          "internal/testutil",
	"authz":                      "internal/headers internal/jwks internal/openai internal/routes",
	"internal/keys":              "internal/beat",
	"internal/jwks":              "",
	"internal/connections":       "internal/beat internal/headers",
	"internal/certificates":      "",
	"internal/control":           "internal/certificates internal/headers internal/sources",
	"internal/elsewhere":         "",
	"internal/headers":           "",
	"internal/http1":             "internal/lack internal/nonblock",
	"internal/nonblock":          "",
	"internal/lack":              "",
	"internal/lazyctx":           "",
	"internal/failover":          "",
	"internal/routes":            "internal/headers",
	"internal/openai":            "internal/openai/jsonscan internal/prefix",
	"internal/prefix":            "",
	"internal/predict":           "ringhash internal/steady",
	"internal/process":           "internal/lack internal/loglines internal/redact internal/seal",
	"internal/process/guard":     "internal/memory internal/process",
	"internal/routesync":         "internal/dispatch internal/prefix",
	"internal/seal":              "",
	"internal/sim":               "api/llm/v1 internal/openai internal/openai/messages",
	"internal/config":            "engines engines/podpatch internal/beat internal/certificates internal/headers internal/jwks internal/lack internal/openai internal/weights",
	"internal/migrate":           "authz engines internal/redact",
	"internal/telemetry":         "internal/beat internal/condition internal/grpcserver internal/headers internal/openai internal/protofields internal/request internal/routes internal/steady",
	"internal/telemetry/trace":   "internal/request",
	"internal/dispatch":          "ringhash admission authz engines internal/failover internal/headers internal/openai internal/predict internal/prefix internal/request internal/steady",
	"internal/request":           "internal/beat internal/failover internal/headers internal/openai",
	"internal/api":               "engines internal/headers internal/openai internal/request internal/routes",
	"internal/admin":             "engines internal/condition internal/headers internal/history internal/loglines internal/openai internal/request internal/usage",
	"internal/history":           "internal/beat internal/request",
	"xds":                        "engines envoy/filter internal/elsewhere internal/failover internal/headers internal/openai internal/routes",
	"envoy/filter":               "",
	"envoy":                      "envoy/filter internal/beat internal/connections internal/elsewhere internal/headers internal/process",
	"internal/decide":            "admission authz internal/dispatch internal/failover internal/headers internal/openai internal/request internal/routes",
	"internal/outgoing":          "internal/nonblock",
	"internal/grpcserver":        "internal/lack internal/lazyctx internal/nonblock internal/outgoing",
	"internal/protofields":       "",
	"extproc":                    "internal/decide internal/elsewhere internal/grpcserver internal/headers internal/protofields",
	"internal/frames":            "internal/decide internal/headers internal/lack internal/lazyctx internal/nonblock internal/outgoing internal/request internal/routes internal/telemetry",
	"internal/decide/decidetest": "admission authz engines internal/decide internal/dispatch internal/failover internal/headers internal/openai internal/request internal/routes",
	"cmd/sluice": "authz engines engines/join engines/kubernetes engines/local envoy envoy/filter examples internal/adminclient internal/condition internal/config internal/doctor internal/console internal/fit internal/gateway internal/migrate " +
		"internal/process/guard internal/sim internal/telemetry internal/usage internal/weights",
	"internal/bench/local":        "",
	"internal/bench/wire":         "",
	"internal/bench/routingenvoy": "internal/bench/local internal/bench/report internal/bench/trace",

	"internal/gateway":       "*",
	"examples":               "",
	"examples/airflow":       "",
	"api/llm/v1":             "",
	"examples/grpc/client":   "api/llm/v1",
	"internal/arch":          "",
	"tests/e2e/admission":    "",
	"tests/e2e/clients":      "",
	"tests/e2e/edge":         "",
	"tests/e2e/engines":      "",
	"tests/e2e/kubernetes":   "",
	"tests/e2e/lifecycle":    "",
	"tests/e2e/nodes":        "",
	"tests/e2e/routing":      "",
	"tests/e2e/streams":      "",
	"tests/e2e/harness":      "authz internal/condition internal/testutil",
	"internal/bench":         "*",
	"internal/bench/trace":   "",
	"internal/bench/scaling": "internal/bench/report internal/bench/trace internal/predict internal/scale",
	"internal/bench/report":  "",
	"internal/bench/routing": "ringhash internal/bench/report internal/bench/trace internal/predict internal/prefix",
}

// confined lists which packages may import a technology. The key is the beginning of an import
// path.
var confined = map[string]string{
	"github.com/envoyproxy/go-control-plane": "extproc authz xds envoy envoy/filter internal/connections internal/elsewhere internal/telemetry",
	"k8s.io/":                                "engines/kubernetes engines/kubernetes/custom engines/podpatch internal/kubetest",
	"github.com/NVIDIA/go-nvml":              "engines/local",
	"github.com/spf13/cobra":                 "cmd/sluice",
	"github.com/redis/go-redis":              "admission/redis engines/ray internal/keys internal/redistest internal/relay/peers internal/routesync internal/usage",
	"github.com/coder/websocket":             "internal/chaos internal/relay/realtime tests/e2e/clients tests/e2e/harness tests/e2e/lifecycle tests/e2e/streams xds",
	"go.opentelemetry.io/":                   "internal/telemetry internal/telemetry/trace tests/e2e/streams",
	"github.com/prometheus/common":           "engines/news",
	"github.com/go-jose/go-jose":             "internal/jwks tests/e2e/edge",
}

func TestImports(t *testing.T) {
	for _, p := range listPackages(t) {
		row, ok := allowed[p.path()]
		if !ok {
			t.Errorf("package %s has no row in allowed: add one that says what it may import", p.path())
			continue
		}
		for _, path := range p.Imports {
			checkImport(t, p.path(), row, path)
		}
		for ours := range strings.FieldsSeq(row) {
			if row != "*" && !slices.Contains(p.Imports, module+"/"+ours) {
				t.Errorf("package %s does not import %s, which its row in allowed names", p.path(), ours)
			}
		}
	}
}

// checkImport fails the test if package name, whose row of allowed is given, may not import path.
func checkImport(t *testing.T, name, row, path string) {
	ours, ok := strings.CutPrefix(path, module+"/")
	if ok && row != "*" && !slices.Contains(strings.Fields(row), ours) {
		t.Errorf("package %s imports %s, which its row in allowed does not name", name, ours)
	}
	for technology, importers := range confined {
		if strings.HasPrefix(path, technology) && !slices.Contains(strings.Fields(importers), name) {
			t.Errorf("package %s imports %s, which only %s may import", name, path, importers)
		}
	}
}

// A program that executes a template of text/template or html/template keeps every exported method
// of every type that it links, because a template may call any of them. This doubled the size of
// the binary.
func TestNoPackageImportsReflectiveTemplates(t *testing.T) {
	for _, p := range listPackages(t) {
		for _, path := range p.Imports {
			if path == "text/template" || path == "html/template" {
				t.Errorf("package %s imports %s, which makes the binary far larger: use internal/template", p.path(), path)
			}
		}
	}
}

func TestNoProductionPackageImportsExamples(t *testing.T) {
	isExample := func(path string) bool { return path == "examples" || strings.HasPrefix(path, "examples/") }
	faults := map[string][]string{}
	for _, p := range listPackages(t) {
		if isExample(p.path()) {
			continue
		}
		for _, path := range p.Imports {
			if ours, ok := strings.CutPrefix(path, module+"/"); ok && isExample(ours) {
				faults[p.path()] = append(faults[p.path()], "package "+p.path()+" imports "+ours+", which is only an example")
			}
		}
	}
	// The command embeds the quick start's file, which is an example as well.
	checkAllowList(t, map[string]bool{"cmd/sluice": true}, faults)
}

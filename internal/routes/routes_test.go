package routes_test

import (
	"flag"
	"fmt"
	"maps"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	envoyroute "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/api"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/routes"
	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/xds"
)

var update = flag.Bool("update", false, "write docs/routes.md")

func TestTableIsConsistent(t *testing.T) {
	seen := map[string]bool{}
	for _, row := range routes.Table() {
		if row.Name == "" || row.Path == "" || row.Protocol == "" || row.Backend == "" || row.Auth == "" || row.Purpose == "" {
			t.Errorf("the row of %q lacks a column: %+v", row.Path, row)
		}
		for _, path := range append([]string{row.Path}, row.Aliases...) {
			if seen[path] {
				t.Errorf("%s is there twice", path)
			}
			seen[path] = true
		}
		if (row.Backend.Cluster() == "") != (row.Backend == routes.Replica) {
			t.Errorf("%s: backend %q has the cluster %q", row.Path, row.Backend, row.Backend.Cluster())
		}
		if (row.Auth == routes.ByDecision) != (row.Backend == routes.Replica) {
			t.Errorf("%s: ext_proc authenticates the callers of replicas and no others", row.Path)
		}
	}
}

// envoyRoutes are the routes that Envoy gets when everything is switched on.
func envoyRoutes(t *testing.T) []*envoyroute.Route {
	t.Helper()
	r, err := (*xds.Resources)(nil).Rebuild(xds.Config{Listen: "127.0.0.1:80", RelaySocket: "/relay", GRPCSocket: "/grpc"}, &engines.Snapshot{})
	if err != nil {
		t.Fatal(err)
	}
	m := r.Routes.Message.(*envoyroute.RouteConfiguration).VirtualHosts[0].Matcher
	continues := slices.Collect(maps.Values(m.GetMatcherTree().GetExactMatchMap().GetMap()))
	if len(continues) != len(routes.AllDecided()) {
		t.Errorf("%d routes for %d kinds of decided requests", len(continues), len(routes.AllDecided()))
	}
	var all []*envoyroute.Route
	for _, next := range append(continues, m.GetOnNoMatch()) {
		list := new(envoyroute.RouteList)
		if err := next.GetAction().GetTypedConfig().UnmarshalTo(list); err != nil {
			t.Fatal(err)
		}
		all = append(all, list.Routes...)
	}
	return all
}

// accepts reports whether the path of a request is one that the route matches.
func accepts(r *envoyroute.Route, path string) bool {
	switch p := r.Match.PathSpecifier.(type) {
	case *envoyroute.RouteMatch_Path:
		return p.Path == path
	case *envoyroute.RouteMatch_PathSeparatedPrefix:
		return path == p.PathSeparatedPrefix || strings.HasPrefix(path, p.PathSeparatedPrefix+"/")
	case *envoyroute.RouteMatch_SafeRegex:
		return regexp.MustCompile("^(" + p.SafeRegex.Regex + ")$").MatchString(path)
	}
	return false
}

func TestEnvoyHasEveryRoute(t *testing.T) {
	all := envoyRoutes(t)
	served := map[string]bool{}
	for _, row := range routes.Table() {
		name, want := row.Name, row.Backend.Cluster()
		if row.Backend == routes.Replica { // only the decision leads to the row's own route
			name, want = routes.Undecided, headers.UndecidedCluster
		}
		i := slices.IndexFunc(all, func(r *envoyroute.Route) bool { return r.Name == name && accepts(r, row.Path) })
		if i < 0 {
			t.Errorf("package xds builds no route %q that matches %s", name, row.Path)
			continue
		}
		served[name] = true
		if cluster := all[i].GetRoute().GetCluster(); cluster != want {
			t.Errorf("%s leads to the cluster %q, want %q", row.Path, cluster, want)
		}
	}
	// The routes that no path of a client can choose.
	for _, name := range []string{routes.Engine, routes.Stream, routes.Relay, routes.RelayStream, routes.Connect, routes.Undecided} {
		served[name] = true
	}
	for _, r := range all {
		if !served[r.Name] {
			t.Errorf("Envoy's route %q has no row in the table", r.Name)
		}
	}
}

func TestEveryInferencePathIsAnEndpoint(t *testing.T) {
	found := map[openai.Endpoint]bool{}
	for _, row := range routes.Of(routes.Replica) {
		e, ok := openai.EndpointOf(row.Path)
		if !ok {
			t.Errorf("package openai knows no endpoint for %s", row.Path)
		}
		found[e] = true
		for _, alias := range row.Aliases {
			if known, ok := openai.EndpointOf(alias); !ok || known != e || known.EnginePath(alias) != row.Path {
				t.Errorf("package openai takes the alias %s of %s for %s (known %t)", alias, row.Path, known, ok)
			}
		}
	}
	for e := openai.Endpoint(0); e.String() != "unknown"; e++ {
		if !found[e] {
			t.Errorf("the endpoint %s of package openai has no row in the table", e)
		}
	}
}

// noTasks is a batch API that the test never gets to.
type noTasks struct{ api.Tasks }

func TestAPIServesItsRoutes(t *testing.T) {
	h := api.New(api.Config{
		Fleet: engines.NewFleet(), Allowed: func(string, string) func(string) bool { return func(string) bool { return true } }, Created: time.Unix(1, 0), Tasks: noTasks{},
	})
	for _, row := range routes.Of(routes.API) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("DELETE", row.Path, nil)) // the handler itself names the methods that it takes
		if allow := w.Header().Get("allow"); w.Code != 405 || allow == "" || row.Methods != nil {
			t.Errorf("package api answers DELETE %s with %d and allow %q", row.Path, w.Code, allow)
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/unknown", nil))
	if w.Code != 405 || w.Header().Get("allow") != "" {
		t.Errorf("package api answers an unknown path with %d and allow %q", w.Code, w.Header().Get("allow"))
	}
}

func TestRoutesAreDocumented(t *testing.T) {
	testutil.Golden(t, "../../docs/routes.md", document(), *update)
}

// document is the text of docs/routes.md.
func document() string {
	var b strings.Builder
	b.WriteString(`# Routes

What Envoy serves to clients. This page is generated from ` + "`internal/routes`" + ` by
` + "`go test ./internal/routes -update`" + `.

A path that ends with ` + "`…`" + ` stands for everything below it. The first path of a row is the one that
the server of the route sees; the others mean the same. A request to any other path gets 404. Where
all methods are routed, Sluice refuses those that it does not know. "File" means that the limit is in
the configuration file.

| path | purpose | methods | protocol | authentication | answered by | body limit | time limit |
| --- | --- | --- | --- | --- | --- | --- | --- |
`)
	for _, row := range routes.Table() {
		methods := "all"
		if row.Methods != nil {
			methods = strings.Join(row.Methods, ", ")
		}
		body, timeout := "none", "none"
		if row.SmallBody {
			body = fmt.Sprintf("%d KiB", routes.MaxSmallBody>>10)
		}
		if row.Timeout > 0 {
			timeout = fmt.Sprintf("%g s", row.Timeout.Seconds())
		}
		if row.Backend == routes.Replica {
			body, timeout = "file", "file"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s | %s |\n",
			shownPath(row), row.Purpose, methods, row.Protocol, row.Auth, row.Backend, body, timeout)
	}
	b.WriteString(`
A replica gets a request only if the task of its model is the one of the route: ` + "`text-generation`, `embedding`,\n`rerank`, `transcription`, `speech`, `image-generation`" + `. Models of every task may have ` + "`/tokenize` and\n`/detokenize`" + `. The bodies of these two are those of the engine, with a ` + "`model`" + ` for Sluice. Which engines have
them is data of the catalogue, and ` + "`routes`" + ` of a model overrides it. Other requests get 400 ` + "`model_not_capable`" + `.

Limits of tokens charge a request by an estimate, and by the usage that the engine reports when there is one:

| answer | tokens of the estimate besides the prompt |
| --- | --- |
| text | what the tenant's answers usually have, at most the request's own bound |
| vectors, scores | none |
| ` + "`/tokenize`, `/detokenize`, `/v1/responses/input_tokens`" + ` | none, and the prompt counts nothing |
| speech | 3 for each byte of the request without its media: about 50 for a second of speech |
| images | 1,024 for each image (` + "`n`" + `) of 1024×1024, in proportion to the area that ` + "`size`" + ` names |

An image, a sound or a video in a prompt counts as 512 tokens, whatever its size. It is a part of a message that is no text, or a
data URL in Base64 anywhere in the JSON of a request that generates no text.

An answer of speech or images without usage costs its estimate, whatever its size in bytes. A response in the background
(` + "`background`" + `) costs its estimate, too, if its request is answered before the engine knows the usage. When the response has ended and someone
reads it, or its events, or cancels it, the engine's usage replaces the estimate in limits, budgets and the ledger, once. Metrics and the log
keep the estimate. So do limits and ledger if the response is read at another gateway or after a restart of this one.
`)
	return b.String()
}

func shownPath(row routes.Route) string {
	var shown []string
	for _, path := range append([]string{row.Path}, row.Aliases...) {
		switch row.Match {
		case routes.Exact:
			shown = append(shown, path)
		case routes.Subtree:
			shown = append(shown, path, path+"/…")
		case routes.Below:
			shown = append(shown, path+"…")
		}
	}
	return "`" + strings.Join(shown, "`, `") + "`"
}

func TestIsStreamed(t *testing.T) {
	for name, want := range map[string]bool{
		routes.Stream: true, routes.RelayStream: true, routes.Relay: false, routes.Streams: false, "": false,
	} {
		if got := routes.IsStreamed(name); got != want {
			t.Errorf("IsStreamed(%q) = %t, want %t", name, got, want)
		}
	}
}

package lifecycle

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/sluice-gateway/sluice/internal/redistest"
	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// monitoringDir has the dashboards and the rules.
var monitoringDir = filepath.Join(testutil.Root(), "examples", "monitoring")

// expression is one query of a dashboard or a rule.
type expression struct{ where, text string }

// rule is a recording rule or an alert.
type rule struct{ Record, Alert, Expr string }

// readRules returns the rules of a file for Prometheus.
func readRules(t *testing.T) (all []rule) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(monitoringDir, "rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Groups []struct{ Rules []rule } }
	if err := yaml.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

// datasource names where a panel gets its data.
type datasource struct{ UID string }

// dashboard has the parts of a dashboard of Grafana that the tests read.
type dashboard struct {
	UID, Title string
	Templating struct {
		List []struct {
			Name, Type, Definition string
			Datasource             datasource
		}
	}
	Panels []struct {
		ID          int
		Type, Title string
		GridPos     struct{ X, Y, W, H int }
		Targets     []struct {
			Expr       string
			Datasource datasource
		}
	}
}

// readDashboards returns the dashboards by file.
func readDashboards(t *testing.T) map[string]dashboard {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(monitoringDir, "dashboards", "*.json"))
	if err != nil || len(files) != 4 {
		t.Fatalf("dashboards: %v, %v", files, err)
	}
	all := map[string]dashboard{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var d dashboard
		if err := json.Unmarshal(data, &d); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all[filepath.Base(file)] = d
	}
	return all
}

// labelValues is the query of a variable of Grafana: the values of a label of some series.
var labelValues = regexp.MustCompile(`^label_values\((.+), (\w+)\)$`)

// readExpressions returns all queries of the rules, and of the panels and variables of the
// dashboards.
func readExpressions(t *testing.T) (all []expression) {
	t.Helper()
	for _, r := range readRules(t) {
		all = append(all, expression{"rule " + r.Record + r.Alert, r.Expr})
	}
	for file, d := range readDashboards(t) {
		for _, p := range d.Panels {
			for _, target := range p.Targets {
				all = append(all, expression{file + ", panel " + p.Title, target.Expr})
			}
		}
		for _, v := range d.Templating.List {
			if m := labelValues.FindStringSubmatch(v.Definition); m != nil {
				all = append(all, expression{file + ", variable " + v.Name, fmt.Sprintf("count by (%s) (%s)", m[2], m[1])})
			}
		}
	}
	return all
}

var (
	quoted    = regexp.MustCompile(`"[^"]*"`)
	duration  = regexp.MustCompile(`\[[^\]]*\]`)
	grouping  = regexp.MustCompile(`\b(by|without|on|ignoring|group_left|group_right)\s*\(([^()]*)\)`)
	selector  = regexp.MustCompile(`([a-zA-Z_:][a-zA-Z0-9_:]*)(\s*\{[^}]*\}|\s*\()?`)
	labelName = regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)`)
	// keywords are the words of PromQL that are no names of metrics. Functions have a bracket after
	// their name.
	keywords = map[string]bool{"and": true, "or": true, "unless": true, "bool": true, "offset": true, "group_left": true, "group_right": true}
)

// metricsOf returns the labels that a query asks for by metric, and those that it groups by.
func metricsOf(query string) (metrics map[string][]string, groups []string) {
	metrics = map[string][]string{}
	bare := duration.ReplaceAllString(quoted.ReplaceAllString(query, `""`), "")
	for _, m := range grouping.FindAllStringSubmatch(bare, -1) {
		groups = append(groups, strings.FieldsFunc(m[2], func(r rune) bool { return r == ',' || r == ' ' })...)
	}
	for _, m := range selector.FindAllStringSubmatch(grouping.ReplaceAllString(bare, " "), -1) {
		name, rest := m[1], strings.TrimSpace(m[2])
		if keywords[name] || rest == "(" {
			continue
		}
		if _, ok := metrics[name]; !ok {
			metrics[name] = nil
		}
		for _, label := range labelName.FindAllStringSubmatch(rest, -1) {
			metrics[name] = append(metrics[name], label[1])
		}
	}
	return metrics, groups
}

func TestMetricsOf(t *testing.T) {
	metrics, groups := metricsOf(`histogram_quantile(0.95, sum by (model, le) (rate(a_bucket{model=~"$model",le!="or"}[5m]))) / on (job) group_left b
		unless on (job) absent(c{d="e"}) == 1`)
	want := map[string][]string{"a_bucket": {"model", "le"}, "b": nil, "c": {"d"}}
	if !maps.EqualFunc(metrics, want, slices.Equal) || !slices.Equal(groups, []string{"model", "le", "job", "job"}) {
		t.Errorf("%v by %v, want %v", metrics, groups, want)
	}
}

// allTypes is a configuration whose requests move every metric. It has a shared Redis, a native
// model that moves requests between two replicas, a managed model, and a model whose server fails.
const allTypes = `
redis: %s
auth: {mode: keys}
%s
models:
  - {name: native, engine: sim, replicas: {min: 2, max: 2}, variables: {token_interval: 5ms},
     admission: {max_per_replica: 1, max_tokens_per_minute: 100000000}, stream: {mode: native}}
  - {name: managed, engine: sim, replicas: {min: 1, max: 1}, stream: {mode: "managed", sample: 1}}
  - {name: failing, launcher: upstream, upstreams: [{url: %s}]}
pools: [{name: auto, models: [native, managed]}]
`

// onlyWith lists the metrics that a gateway has only with certain hardware.
var onlyWith = map[string][]string{"sluice_gpu_memory_bytes": {"uuid", "kind"}}

// TestE2E_S17_EveryMetricOfAPanelExists: a gateway that has served native, managed and failed
// requests has each metric and each label that the dashboards and rules ask for.
func TestE2E_S17_EveryMetricOfAPanelExists(t *testing.T) {
	t.Parallel()
	keys, tenants := harness.TenantKeys("acme")
	failing := harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if !harness.ServeModelList(w, r, "failing") {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	g := harness.Prepare(t, fmt.Sprintf(allTypes, redistest.URL(redistest.Start(t)), tenants, failing))
	t.Cleanup(g.Stop)
	g.Launch()
	g.AwaitAdmin()
	harness.Eventually(t, "the replicas are ready", func() error {
		native, managed := g.Metric(`sluice_replicas{model="native",state="ready"}`), g.Metric(`sluice_replicas{model="managed",state="ready"}`)
		if native != 2 || managed != 1 || g.Metric("sluice_envoys") != 1 {
			return fmt.Errorf("%v, %v", native, managed)
		}
		return nil
	})
	harness.Eventually(t, "the gateway is ready", func() error { return g.TryGet("/readyz", new(struct{})) })
	moveEveryMetric(g, "Authorization: Bearer "+keys["acme"])
	queries := readExpressions(t)
	harness.Eventually(t, "all metrics are there", func() error { return checkQueries(queries, seriesOf(metrics(t, g)), readRules(t)) })
}

// moveEveryMetric sends the requests.
func moveEveryMetric(g *harness.Gateway, key string) {
	g.T.Helper()
	body := func(model string, tokens int) string {
		return fmt.Sprintf(`{"model":%q,"stream":true,"stream_options":{"include_usage":true},"max_tokens":%d,"ignore_eos":true,
			"messages":[{"role":"user","content":"tell me of gates and rivers"}]}`, model, tokens)
	}
	send := func(status int, body string, headers ...string) {
		g.T.Helper()
		if a := g.Post("/v1/chat/completions", body, headers...); a.StatusCode != status {
			g.T.Errorf("%s, want %d", a, status)
		}
	}
	if a := g.Post("/v1/chat/completions", body("failing", 8), key); a.StatusCode < 500 {
		g.T.Errorf("%s, want a failure", a)
	}
	for range 3 { // the predictions need what they have learned of the first
		send(200, body("native", 8), key, "x-session-id: s")
		send(200, body("managed", 8), key)
	}
	first, err := g.Open(g.T.Context(), "/v1/chat/completions", body("native", 100_000), key, "x-session-id: s")
	if err != nil {
		g.T.Fatal(err)
	}
	send(200, body("native", 8), key, "x-session-id: s") // its replica is full
	first.Body.Close()
	send(404, body("absent", 8), key)
	send(401, body("native", 8), "Authorization: Bearer no-key")
}

var (
	seriesLine  = regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*)(\{.*\})? \S+$`)
	seriesLabel = regexp.MustCompile(`(\w+)="`)
)

func seriesOf(scrape string) map[string][]string {
	all := maps.Clone(onlyWith)
	for line := range strings.Lines(scrape) {
		if m := seriesLine.FindStringSubmatch(strings.TrimSuffix(line, "\n")); m != nil && all[m[1]] == nil {
			all[m[1]] = []string{}
			for _, label := range seriesLabel.FindAllStringSubmatch(m[2], -1) {
				all[m[1]] = append(all[m[1]], label[1])
			}
		}
	}
	return all
}

// checkQueries returns an error that names what the queries ask for and the series lack.
func checkQueries(queries []expression, series map[string][]string, rules []rule) error {
	// Prometheus itself makes the series up, and the labels job and instance.
	recorded := map[string]bool{"up": true}
	for _, r := range rules {
		recorded[r.Record] = true
	}
	var lacking []string
	for _, q := range queries {
		metrics, groups := metricsOf(q.text)
		known, unknown := []string{"job", "instance", "cached"}, false
		for name, labels := range metrics {
			has, ok := series[name]
			if !ok && !recorded[name] {
				lacking = append(lacking, fmt.Sprintf("%s: no metric %s", q.where, name))
			}
			unknown = unknown || !ok
			known = append(known, has...)
			for _, label := range labels {
				if ok && label != "job" && label != "instance" && !slices.Contains(has, label) {
					lacking = append(lacking, fmt.Sprintf("%s: %s has no label %s", q.where, name, label))
				}
			}
		}
		for _, label := range groups {
			if !unknown && !slices.Contains(known, label) {
				lacking = append(lacking, fmt.Sprintf("%s: no metric has the label %s", q.where, label))
			}
		}
	}
	if len(lacking) > 0 {
		return fmt.Errorf("%d faults:\n%s", len(lacking), strings.Join(lacking, "\n"))
	}
	return nil
}

// promtool runs Prometheus' tool in the directory.
func promtool(t *testing.T, dir string, args ...string) {
	t.Helper()
	program, err := exec.LookPath("promtool")
	if err != nil {
		testutil.Missing(t, "promtool")
	}
	c := exec.Command(program, args...)
	c.Dir = dir
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// TestS17_RulesHold: the rules are valid, and each alert fires and does not fire as their unit
// tests say.
func TestS17_RulesHold(t *testing.T) {
	t.Parallel()
	promtool(t, monitoringDir, "check", "config", "prometheus.yaml")
	promtool(t, monitoringDir, "check", "rules", "rules.yaml")
	promtool(t, monitoringDir, "test", "rules", "rules.test.yaml")
	tests, err := os.ReadFile(filepath.Join(monitoringDir, "rules.test.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range readRules(t) {
		if r.Alert == "" {
			continue
		}
		fires := regexp.MustCompile(`alertname: ` + r.Alert + `\n`)
		silent := regexp.MustCompile(`alertname: ` + r.Alert + `, eval_time: \w+}`)
		if !fires.Match(tests) || !silent.Match(tests) {
			t.Errorf("rules.test.yaml lacks a test in which %s fires, or one in which it does not", r.Alert)
		}
	}
}

// TestS17_DashboardsAreWhole: Grafana can import the dashboards. Each query is valid, uses the
// variable of the data source and only variables that exist, and no panel covers another one.
func TestS17_DashboardsAreWhole(t *testing.T) {
	t.Parallel()
	var rules strings.Builder
	rules.WriteString("groups:\n  - name: panels\n    rules:\n")
	n := 0
	for file, d := range readDashboards(t) {
		if d.UID != "sluice-"+strings.TrimSuffix(file, ".json") || d.Title == "" {
			t.Errorf("%s has the uid %q and the title %q", file, d.UID, d.Title)
		}
		checkPanels(t, file, d)
		for _, e := range readExpressions(t) {
			if !strings.HasPrefix(e.where, file) {
				continue
			}
			text := strings.NewReplacer("$__rate_interval", "1m", "$__range", "1h").Replace(e.text)
			fmt.Fprintf(&rules, "      - {record: 'panel:%d', expr: %q}\n", n, text)
			n++
			for _, v := range regexp.MustCompile(`\$(\w+)`).FindAllStringSubmatch(text, -1) {
				if !strings.Contains(fmt.Sprint(d.Templating.List), "{"+v[1]+" ") {
					t.Errorf("%s uses the variable %s, which does not exist", e.where, v[1])
				}
			}
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "panels.yaml"), []byte(rules.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, dir, "check", "rules", "panels.yaml")
}

// checkPanels checks where the panels of a dashboard are, and where they get their data.
func checkPanels(t *testing.T, file string, d dashboard) {
	t.Helper()
	covered, ids := map[[2]int]string{}, map[int]bool{}
	for _, p := range d.Panels {
		if ids[p.ID] || p.Title == "" || p.GridPos.X+p.GridPos.W > 24 || (p.Type != "row") != (len(p.Targets) > 0) {
			t.Errorf("%s: panel %d (%s) is not whole: %+v", file, p.ID, p.Title, p)
		}
		ids[p.ID] = true
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if other := covered[at]; other != "" {
					t.Fatalf("%s: the panel %s covers %s", file, p.Title, other)
				}
				covered[at] = p.Title
			}
		}
		for _, target := range p.Targets {
			if target.Datasource.UID != "${datasource}" {
				t.Errorf("%s: the panel %s has the data source %q", file, p.Title, target.Datasource.UID)
			}
		}
	}
	for _, v := range d.Templating.List {
		if v.Type == "query" && v.Datasource.UID != "${datasource}" {
			t.Errorf("%s: the variable %s has the data source %q", file, v.Name, v.Datasource.UID)
		}
	}
}

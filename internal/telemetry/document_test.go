package telemetry

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

var update = flag.Bool("update", false, "write the table of docs/monitoring.md")

const (
	monitoringPage = "../../docs/monitoring.md"
	// listBegins is the line of the page after which everything is generated.
	listBegins = "## All metrics\n"
)

// description takes apart what prometheus.Desc prints.
var description = regexp.MustCompile(`^Desc{fqName: "([^"]+)", help: ("(?:[^"\\]|\\.)*"), .*variableLabels: {([^}]*)}}$`)

// TestS17_EveryMetricIsDocumented compares docs/monitoring.md with the registry. With -update it
// writes the table.
func TestS17_EveryMetricIsDocumented(t *testing.T) {
	t.Parallel()
	m := NewMetrics(MetricsConfig{})
	collected := map[string][]prometheus.Collector{"gauge": {m.streams.gaps, newGaugeCollector(m), m.lastReload, m.reloadedAt}}
	for _, v := range m.vectors {
		switch v := v.(type) {
		case *prometheus.CounterVec:
			collected["counter"] = append(collected["counter"], v)
		case *prometheus.HistogramVec:
			collected["histogram"] = append(collected["histogram"], v)
		default:
			t.Fatalf("%T is a type that the table does not know", v)
		}
	}
	var rows []string
	for kind, collectors := range collected {
		for _, c := range collectors {
			rows = append(rows, metricRows(t, kind, c)...)
		}
	}
	slices.SortFunc(rows, cmp.Compare[string])
	page, err := os.ReadFile(monitoringPage)
	if err != nil {
		t.Fatal(err)
	}
	head, _, ok := strings.Cut(string(page), listBegins)
	if !ok {
		t.Fatalf("%s has no line %q", monitoringPage, listBegins)
	}
	testutil.Golden(t, monitoringPage, head+listBegins+`
This table is generated from `+"`internal/telemetry`"+` (`+"`go test ./internal/telemetry -run Documented -update`"+`). A histogram NAME has the series
NAME_bucket, NAME_sum and NAME_count. Besides these, there are the usual metrics go_… and process_… of Sluice's own process.

| metric | type | labels | meaning |
| --- | --- | --- | --- |
`+strings.Join(rows, ""), *update)
}

// metricRows returns the rows of the table for what a collector collects.
func metricRows(t *testing.T, kind string, c prometheus.Collector) (rows []string) {
	t.Helper()
	all := make(chan *prometheus.Desc, 100)
	c.Describe(all)
	close(all)
	for d := range all {
		m := description.FindStringSubmatch(d.String())
		if m == nil {
			t.Fatalf("prometheus.Desc prints %s", d)
		}
		kind := kind
		if strings.HasSuffix(m[1], "_total") {
			kind = "counter"
		}
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s | %s |\n", m[1], kind, strings.ReplaceAll(m[3], ",", ", "), strings.Trim(m[2], `"`)))
	}
	return rows
}

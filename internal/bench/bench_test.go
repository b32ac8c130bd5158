package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/bench/report"
	"github.com/sluice-gateway/sluice/internal/config"
)

func TestSelectRows(t *testing.T) {
	for only, want := range map[string]string{
		"saturated":                 "saturated|",
		"prompt-1":                  "prompt-1 prompt-16|",
		"prompt-64,stream-400,slow": "prompt-64 stream-400-1 stream-400-50 stream-400-200|slow",
		"memory,nonsense":           "|memory nonsense",
		",":                         "| ",
	} {
		rows, others := selectRows(only)
		var names []string
		for _, r := range rows {
			names = append(names, r.name)
		}
		if got := strings.Join(names, " ") + "|" + strings.Join(others, " "); got != want {
			t.Errorf("-only %s: %q, want %q", only, got, want)
		}
	}
	if rows, others := selectRows(""); len(rows) != 12 || len(others) != 0 {
		t.Errorf("without -only: %d rows, others %v", len(rows), others)
	}
}

func TestRequestsAreChatsOfTheirLength(t *testing.T) {
	for _, r := range allRows() {
		var body struct {
			Model    string
			Stream   bool
			Messages []struct{ Role, Content string }
		}
		if err := json.Unmarshal([]byte(r.body("limited")), &body); err != nil {
			t.Fatalf("%s: %v", r.name, err)
		}
		if asks := strings.Contains(r.body("limited"), "include_usage"); asks != r.stream() || strings.Contains(r.body("native"), "include_usage") {
			t.Errorf("%s: limited asks for its usage: %v, or native does", r.name, asks)
		}
		length := 0
		for _, m := range body.Messages {
			length += len(m.Content)
		}
		if body.Model != "limited" || body.Stream != r.stream() || length < r.prompt || length > r.prompt+20 {
			t.Errorf("%s: model %s, stream %v, %d bytes of text for %d", r.name, body.Model, body.Stream, length, r.prompt)
		}
	}
}

func TestSampleCountsWhatIsBetweenTwoReadings(t *testing.T) {
	at := time.Now()
	before := reading{at: at, units: 10, envoy: 5e6, gateway: 1e6, own: 3e6, busy: 0}
	after := reading{at: at.Add(2 * time.Second), units: 110, envoy: 15e6, gateway: 6e6, own: 5e6, busy: 1_017_000_000}
	s, err := newSample(before, after, []float64{3, 1, 2})
	if err != nil {
		t.Fatal(err)
	}
	if s.Envoy != 100 || s.Go != 50 || s.Own != 20 || s.Units != 100 || s.P50 != 2 || s.Seconds != 2 || math.Abs(s.Others-0.5) > 1e-9 {
		t.Errorf("%+v", s)
	}
	if _, err := newSample(before, before, nil); err == nil {
		t.Error("a measurement without a single answer was accepted")
	}
}

func TestClockOfThisProcess(t *testing.T) {
	before, err := cpuClock(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for n := 0; n < 1e7; n++ {
		report.Median(nil)
	}
	if after, err := cpuClock(os.Getpid()); err != nil || after <= before {
		t.Errorf("after some work the clock shows %d, before %d, error %v", after, before, err)
	}
	if _, err := cpuClock(1 << 22); err == nil {
		t.Error("a process that does not exist has a CPU clock")
	}
}

// writeResult writes a result with two rows and two rounds, and returns it with its path.
func writeResult(t *testing.T, change func(*result)) string {
	t.Helper()
	rounds := func(a, b float64) []sample {
		return []sample{{Envoy: a, Go: b, Units: 100, Seconds: 1, P50: a / 100, P99: a / 10}, {Envoy: 2 * a, Go: 4 * b, Units: 100, Seconds: 1, P50: a / 100, P99: a / 10}}
	}
	res := &result{Rounds: 2, Direct: rounds(0, 0), Idle: []resultColumn{{"plain", "", rounds(1, 0)}, {"ext_proc", "", rounds(2, 3)}}, Rows: []resultRow{
		{Name: "saturated", Title: "small request", Columns: []resultColumn{{"plain", "native", rounds(100, 0)}, {"ext_proc", "usage", rounds(300, 100)}}},
		{Name: "stream-32-1", Title: "32 events", Events: 32, Columns: []resultColumn{
			{"plain", "native", rounds(10, 0)}, {"ext_proc", "native", rounds(11, 2)}, {"ext_proc", "usage", rounds(12, 2)}, {"ext_proc", "managed", rounds(20, 8)},
			{"module", "native", rounds(11, 1)}, {"module", "usage", rounds(12, 1)}, {"module", "managed", rounds(20, 7)}}},
	}}
	if change != nil {
		change(res)
	}
	text, err := json.Marshal(res)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "bench.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTablesOfAFile(t *testing.T) {
	docs := t.TempDir()
	page := filepath.Join(docs, "performance.md")
	var empty strings.Builder
	for _, name := range []string{"machine", "requests", "streams", "times"} {
		empty.WriteString("<!-- begin " + name + " -->\n<!-- end " + name + " -->\n")
	}
	if err := os.WriteFile(page, []byte(empty.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	o := options{rounds: 1, seconds: time.Second, from: writeResult(t, nil), docs: docs}
	if err := bench(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	got, _ := os.ReadFile(page)
	for _, want := range []string{
		"in thousandths of a core: plain 1.5, ext_proc 10.5.",
		"| small request | 150 | 450 + 250 | **4.50** (4.00 to 5.00) | – | – | 4.5; 2.8 (module) |",
		"| 32 events | managed | 15 | 30 + 20 | **3.20** (2.80 to 3.60) | 30 + 18 | **3.05** (2.70 to 3.40) |  |",
		"| first token: 32 events | native | 0.10, 1.00 ms | **0.01** (0.01 to 0.01) |",
	} {
		if !strings.Contains(string(got), want) {
			t.Errorf("the page lacks %q:\n%s", want, got)
		}
	}
	plot, _ := os.ReadFile(filepath.Join(docs, "performance.svg"))
	for _, want := range []string{">4.50</text>", "ext_proc, managed", ">3.05</text>"} {
		if !strings.Contains(string(plot), want) {
			t.Errorf("the plot lacks %q:\n%s", want, plot)
		}
	}
}

func TestFaultsOfFlagsAndFiles(t *testing.T) {
	good := options{rounds: 1, seconds: time.Second}
	with := func(change func(*options)) options {
		o := good
		change(&o)
		return o
	}
	for want, o := range map[string]options{
		"at least 1":        with(func(o *options) { o.rounds = 0 }),
		"from 100ms to 30s": with(func(o *options) { o.seconds = time.Hour }),
		"needs all rows":    with(func(o *options) { o.docs, o.only = "docs", "paced" }),
		"measures nothing":  with(func(o *options) { o.from, o.only = "file", "paced" }),
		"no row or part":    with(func(o *options) { o.only = "nonsense" }),
		"no such file":      with(func(o *options) { o.from = filepath.Join(t.TempDir(), "absent") }),
		"row saturated has": with(func(o *options) { o.from = writeResult(t, func(r *result) { r.Rounds = 3 }) }),
		"not begin with plain ": with(func(o *options) {
			o.from = writeResult(t, func(r *result) { r.Rows[0].Columns = r.Rows[0].Columns[1:] })
		}),
	} {
		if err := bench(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// TestConfigurationsAreValid reads the configurations of the gateways as a gateway does.
func TestConfigurationsAreValid(t *testing.T) {
	head := fmt.Sprintf(sluiceConfig, 1, 2, t.TempDir(), authz.HashKey(benchKey))
	for name, rest := range map[string]string{
		"ext_proc": comparedModels("ext_proc", 1, []string{"127.0.0.1:3", "127.0.0.1:4"}),
		"module":   comparedModels("module", 1, []string{"127.0.0.1:3"}),
		"other":    modelsOf([]string{"127.0.0.1:3"}),
	} {
		c, err := config.Parse("sluice.yaml", []byte(head+rest))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if len(c.Models) != 3 || len(c.Tenants) != 1 || name != "other" && string(c.Envoy.Filter) != name {
			t.Errorf("%s: %d models, %d tenants, filter %s", name, len(c.Models), len(c.Tenants), c.Envoy.Filter)
		}
	}
}

func TestTotalOf(t *testing.T) {
	if n, err := totalOf("events: Ir\nfn=a\n1 2\ntotals: 123456\n"); err != nil || n != 123456 {
		t.Errorf("%v, %v", n, err)
	}
	for _, profile := range []string{"", "events: Ir\n", "totals: many\n"} {
		if n, err := totalOf(profile); err == nil {
			t.Errorf("%q: %v", profile, n)
		}
	}
}

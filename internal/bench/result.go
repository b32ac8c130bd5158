package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/envoy"
	"github.com/sluice-gateway/sluice/internal/bench/report"
)

// result is all that a comparison has measured. -json writes it, -from reads it.
type result struct {
	Begun   time.Time `json:"begun"`
	CPU     string    `json:"cpu"`
	Cores   int       `json:"cores"`
	Kernel  string    `json:"kernel"`
	Envoy   string    `json:"envoy"`
	Sluice  string    `json:"sluice"`
	Rounds  int       `json:"rounds"`
	Seconds float64   `json:"seconds_each"`
	// Idle has each proxy without requests. Its unit is the millisecond, so its figures are
	// thousandths of a core.
	Idle []resultColumn `json:"idle"`
	// Direct is the first row without any proxy, in each round.
	Direct []sample    `json:"direct"`
	Rows   []resultRow `json:"rows"`
}

// resultRow is a row with what was measured of its columns, plain Envoy first.
type resultRow struct {
	Name    string         `json:"name"`
	Title   string         `json:"title"`
	Unit    string         `json:"unit"`
	Clients int            `json:"clients"`
	Rate    int            `json:"rate,omitempty"`
	Prompt  int            `json:"prompt_bytes"`
	Events  int            `json:"events,omitempty"`
	PauseMS float64        `json:"pause_ms,omitempty"`
	Columns []resultColumn `json:"columns"`
}

type resultColumn struct {
	By     string   `json:"by"`
	Way    string   `json:"way"`
	Rounds []sample `json:"rounds"`
}

// sample is one measurement. CPU times are in microseconds for each unit.
type sample struct {
	Envoy float64 `json:"envoy_us"`
	Go    float64 `json:"go_us"`
	// Own is the CPU time of the clients and the engines.
	Own     float64 `json:"clients_and_engines_us"`
	Units   int64   `json:"units"`
	Seconds float64 `json:"seconds"`
	// Others is how many cores all other processes of the machine have used.
	Others float64 `json:"other_cores"`
	// Times is the number of requests whose time was taken. P50 and P99 are quantiles of that time
	// in milliseconds. The time is that of the whole answer, or to the first event of a stream.
	Times int     `json:"times"`
	P50   float64 `json:"p50_ms"`
	P99   float64 `json:"p99_ms"`
}

func (s sample) total() float64   { return s.Envoy + s.Go }
func (s sample) ofEnvoy() float64 { return s.Envoy }
func (s sample) ofGo() float64    { return s.Go }
func (s sample) p50() float64     { return s.P50 }
func (s sample) p99() float64     { return s.P99 }

// newSample returns what happened between two readings.
func newSample(before, after reading, times []float64) (sample, error) {
	units := after.units - before.units
	if units <= 0 {
		return sample{}, errors.New("nothing was answered during the measurement: use a longer -time")
	}
	per := func(before, after int64) float64 { return float64(after-before) / 1000 / float64(units) }
	s := sample{Envoy: per(before.envoy, after.envoy), Go: per(before.gateway, after.gateway), Own: per(before.own, after.own), Units: units,
		Seconds: after.at.Sub(before.at).Seconds(), Times: len(times), P50: report.Quantile(times, 0.5), P99: report.Quantile(times, 0.99)}
	s.Others = max(0, float64(after.busy-before.busy)/1e9/s.Seconds-(s.Envoy+s.Go+s.Own)*float64(units)/1e6/s.Seconds)
	return s, nil
}

// newResult returns a result without rows.
func newResult(ctx context.Context, o options) (*result, error) {
	version, err := envoy.Version(ctx, o.envoy)
	if err != nil {
		return nil, err
	}
	sluice, err := exec.Command(o.sluice, "version").Output()
	if err != nil {
		return nil, fmt.Errorf("%s version: %w", o.sluice, err)
	}
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return &result{Begun: time.Now().UTC().Truncate(time.Second), CPU: processorName(), Cores: runtime.NumCPU(), Kernel: strings.TrimSpace(string(kernel)),
		Envoy: version, Sluice: strings.TrimPrefix(firstLine(string(sluice)), "sluice "),
		Rounds: o.rounds, Seconds: o.seconds.Seconds()}, nil
}

// processorName returns the name of the processor in /proc/cpuinfo, or an empty text.
func processorName() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	_, rest, _ := strings.Cut(string(text), "model name")
	_, name, _ := strings.Cut(firstLine(rest), ":")
	return strings.TrimSpace(name)
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return strings.TrimSpace(line)
}

// addRow appends a row without samples.
func (res *result) addRow(r row, columns []column) {
	added := resultRow{Name: r.name, Title: r.title, Unit: r.unit(), Clients: r.clients, Rate: r.rate, Prompt: r.prompt, Events: r.events,
		PauseMS: float64(r.pause.Microseconds()) / 1000}
	for _, c := range columns {
		added.Columns = append(added.Columns, resultColumn{By: c.by, Way: c.way})
	}
	res.Rows = append(res.Rows, added)
}

// column returns a column of the row. It is nil if the row lacks the column.
func (r *resultRow) column(by, way string) *resultColumn {
	for i, c := range r.Columns {
		if c.By == by && (c.Way == way || by == "plain") {
			return &r.Columns[i]
		}
	}
	return nil
}

// of returns a figure of the column by rounds.
func (c *resultColumn) of(figure func(sample) float64) []float64 {
	all := make([]float64, len(c.Rounds))
	for i, s := range c.Rounds {
		all[i] = figure(s)
	}
	return all
}

// against returns round by round how a figure of a column compares with that of another.
func (c *resultColumn) against(o *resultColumn, figure func(sample) float64, compare func(a, b float64) float64) []float64 {
	all := make([]float64, len(c.Rounds))
	for i := range all {
		all[i] = compare(figure(c.Rounds[i]), figure(o.Rounds[i]))
	}
	return all
}

func quotient(a, b float64) float64   { return a / b }
func difference(a, b float64) float64 { return a - b }

// readResult reads what -json has written. Its error tells what is wrong with the file.
func readResult(path string) (*result, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var res result
	if err := json.Unmarshal(text, &res); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for _, r := range res.Rows {
		for _, c := range r.Columns {
			if len(c.Rounds) != res.Rounds {
				return nil, fmt.Errorf("%s: row %s has %d rounds of the column %s %s, and the file %d", path, r.Name, len(c.Rounds), c.By, c.Way, res.Rounds)
			}
		}
		if len(r.Columns) == 0 || r.Columns[0].By != "plain" {
			return nil, fmt.Errorf("%s: row %s does not begin with plain Envoy", path, r.Name)
		}
	}
	return &res, nil
}

// report prints the tables, and writes the raw result and the documents that the flags name.
func (res *result) report(o options) error {
	for _, s := range res.sections() {
		fmt.Printf("%s\n", s.text)
	}
	if o.json != "" {
		text, err := json.MarshalIndent(res, "", " ")
		if err == nil {
			err = report.Write(o.json, string(text)+"\n")
		}
		if err != nil {
			return err
		}
	}
	if o.svg != "" {
		if err := report.Write(o.svg, res.plot()); err != nil {
			return err
		}
	}
	if o.docs == "" {
		return nil
	}
	for _, s := range res.sections() {
		if err := report.WriteSection(filepath.Join(o.docs, "performance.md"), s.name, s.text); err != nil {
			return err
		}
	}
	return report.Write(filepath.Join(o.docs, "performance.svg"), res.plot())
}

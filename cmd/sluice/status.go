package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-gateway/sluice/internal/adminclient"
	"github.com/sluice-gateway/sluice/internal/condition"
)

// gatewayStatus is what the command status shows of /api/v1/status.
type gatewayStatus struct {
	Version string    `json:"version"`
	PID     int       `json:"pid"`
	Listen  string    `json:"listen"`
	TLS     bool      `json:"tls"`
	Started time.Time `json:"started"`
	Ready   bool      `json:"ready"`
	Reasons []string  `json:"reasons"`
	Envoy   struct {
		State, Version, Filter string
		PID                    int
		Predecessors           []predecessorRow
	} `json:"envoy"`
	Upgrade struct{ Predecessors []predecessorRow }
	Config  struct {
		Path         string    `json:"path"`
		LoadedAt     time.Time `json:"loaded_at"`
		NeedsRestart []string  `json:"needs_restart"`
	} `json:"config"`
	Shared struct {
		Configured, Up bool
		Mode           string
		Gateways       int
	} `json:"shared"`
}

// predecessorRow is what it shows of a process that was replaced and still runs.
type predecessorRow struct {
	PID      int
	Version  string
	Requests int
}

// modelRow is what commands show of a model.
type modelRow struct {
	Name     string `json:"name"`
	Launcher string `json:"launcher"`
	State    string `json:"state"`
	Desired  int    `json:"desired"`
	Ready    int    `json:"ready"`
	InFlight int    `json:"in_flight"`
	Queued   int    `json:"queued"`
	Drained  bool   `json:"drained"`
	Scale    *struct{ Min, Max int }
}

// modelList is the answer of /api/v1/models.
type modelList struct {
	Models []modelRow `json:"models"`
}

func newStatusCommand() *cobra.Command {
	var flags viewFlags
	c := &cobra.Command{
		Use:   "status [-c FILE | --admin HOST:PORT]",
		Short: "Show a running gateway, its models, and what needs attention",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return showStatus(cmd, &flags) },
	}
	flags.addFlags(c)
	return c
}

// showStatus prints the status, the models and the conditions that need attention. As JSON it
// prints the status alone, as the admin API answers.
func showStatus(cmd *cobra.Command, flags *viewFlags) error {
	client, err := flags.open()
	if err != nil {
		return err
	}
	var status gatewayStatus
	var text bytes.Buffer
	err = flags.call(cmd.Context(), client, action{method: http.MethodGet, path: "/api/v1/status"}, &status, &text)
	if err == nil && flags.output == outputTable {
		err = statusText(cmd, client, status, &text)
	}
	if err != nil {
		return err
	}
	_, err = text.WriteTo(cmd.OutOrStdout())
	return err
}

// conditionList is the answer of /api/v1/conditions.
type conditionList struct{ Conditions []condition.Condition }

// statusText writes what the command status shows.
func statusText(cmd *cobra.Command, client adminclient.Client, s gatewayStatus, w io.Writer) error {
	var models modelList
	if err := client.Call(cmd.Context(), "GET", "/api/v1/models", nil, &models); err != nil {
		return err
	}
	var attention conditionList
	if err := client.Call(cmd.Context(), "GET", "/api/v1/conditions", nil, &attention); err != nil {
		return err
	}
	s.write(w)
	fmt.Fprintln(w)
	writeModels(w, models.Models, terminalColumns(cmd))
	writeAttention(w, attention.Conditions)
	return nil
}

// write writes the lines about the gateway itself.
func (s gatewayStatus) write(w io.Writer) {
	state := "ready"
	if !s.Ready {
		state = "not ready: " + strings.Join(s.Reasons, "; ")
	}
	fmt.Fprintf(w, "gateway  %s (pid %d), up %s, %s\n", s.Version, s.PID, age(s.Started), printable(state))
	writePredecessors(w, s.Upgrade.Predecessors)
	scheme := "http"
	if s.TLS {
		scheme = "https"
	}
	fmt.Fprintf(w, "clients  %s://%s\n", scheme, adminclient.DialAddress(s.Listen))
	envoy := s.Envoy.State
	if s.Envoy.Version != "" {
		envoy += ", version " + s.Envoy.Version
	}
	if s.Envoy.PID > 0 {
		envoy += fmt.Sprintf(" (pid %d)", s.Envoy.PID)
	}
	switch s.Envoy.Filter {
	case "module":
		envoy += ", asks by Sluice's filter"
	case "ext_proc":
		envoy += ", asks by ext_proc"
	}
	fmt.Fprintf(w, "Envoy    %s\n", envoy)
	writePredecessors(w, s.Envoy.Predecessors)
	if s.Config.Path != "" {
		fmt.Fprintf(w, "file     %s, loaded %s ago\n", printable(s.Config.Path), age(s.Config.LoadedAt))
	}
	if len(s.Config.NeedsRestart) > 0 {
		fmt.Fprintf(w, "         a restart is needed for: %s\n", strings.Join(s.Config.NeedsRestart, ", "))
	}
	if s.Shared.Configured {
		redis := "does not answer"
		if s.Shared.Up {
			redis = "answers"
		}
		fmt.Fprintf(w, "Redis    %s, limits are %s, %d %s\n", redis, s.Shared.Mode, s.Shared.Gateways, plural(s.Shared.Gateways, "gateway"))
	}
}

// writePredecessors writes a line for each process that was replaced and still runs.
func writePredecessors(w io.Writer, all []predecessorRow) {
	for _, p := range all {
		does := fmt.Sprintf("still has %d %s", p.Requests, plural(p.Requests, "request"))
		if p.Requests == 0 {
			does = "has no requests now"
		}
		fmt.Fprintf(w, "         before it %s (pid %d), which %s\n", printable(p.Version), p.PID, does)
	}
}

// writeModels writes the table of models for a terminal with this number of columns. 0 means that
// the output is no terminal.
func writeModels(w io.Writer, models []modelRow, columns int) {
	if len(models) == 0 {
		fmt.Fprintln(w, "There is no model.")
		return
	}
	modelTable(models).writeWithin(w, columns, spareOfModels()...)
}

// spareOfModels returns the columns that a narrow table of models leaves out, the first one first.
func spareOfModels() []string { return []string{"LAUNCHER", "MAX", "MIN", "WANTED"} }

func modelTable(models []modelRow) *table {
	t := newTable("MODEL", "STATE", "READY", "WANTED", "MIN", "MAX", "RUNNING", "QUEUED", "LAUNCHER")
	for _, m := range models {
		state, least, most := m.State, "", ""
		if m.Drained {
			state += ", drained"
		}
		if m.Scale != nil {
			least, most = strconv.Itoa(m.Scale.Min), strconv.Itoa(m.Scale.Max)
		}
		t.add(m.Name, state, m.Ready, m.Desired, least, most, m.InFlight, m.Queued, m.Launcher)
	}
	return t
}

// writeAttention writes the conditions that need attention.
func writeAttention(w io.Writer, conditions []condition.Condition) {
	for i, line := range attentionLines(conditions) {
		if i == 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintln(w, line)
	}
}

// attentionLines returns a line for each condition that needs attention.
func attentionLines(conditions []condition.Condition) (lines []string) {
	for _, c := range conditions {
		if c.Normal() {
			continue
		}
		subject := ""
		if c.Subject != "" {
			subject = " " + c.Subject
		}
		lines = append(lines, fmt.Sprintf("%s: %s%s: %s", c.Severity, c.Type, printable(subject), printable(c.Message)))
	}
	return lines
}

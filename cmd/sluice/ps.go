package main

import (
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
)

// replicaRow is what commands show of a replica.
type replicaRow struct {
	ID       string    `json:"id"`
	Model    string    `json:"model"`
	State    string    `json:"state"`
	Node     string    `json:"node"`
	Address  string    `json:"address"`
	InFlight int       `json:"in_flight"`
	Max      int       `json:"max"`
	Served   uint64    `json:"served"`
	Restarts int       `json:"restarts"`
	Since    time.Time `json:"since"`
	Reason   string    `json:"reason"`
	GPUs     []string  `json:"gpus"`
	Drained  bool      `json:"drained"`
}

// replicaList is the answer of /api/v1/replicas.
type replicaList struct {
	Replicas []replicaRow `json:"replicas"`
}

func newPSCommand() *cobra.Command {
	var flags viewFlags
	var model string
	c := &cobra.Command{
		Use:   "ps [--model NAME]",
		Short: "List the replicas",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var list replicaList
			return flags.show(cmd, "/api/v1/replicas", &list, func(w io.Writer) { writeReplicas(w, list.ofModel(model)) })
		},
	}
	flags.addFlags(c)
	c.Flags().StringVar(&model, "model", "", "only the replicas of this model (in the table)")
	return c
}

// ofModel returns the replicas of a model; of all models if the name is empty.
func (l replicaList) ofModel(name string) []replicaRow {
	if name == "" {
		return l.Replicas
	}
	return slices.DeleteFunc(l.Replicas, func(r replicaRow) bool { return r.Model != name })
}

// writeReplicas writes the table of replicas.
func writeReplicas(w io.Writer, replicas []replicaRow) {
	if len(replicas) == 0 {
		fmt.Fprintln(w, "There is no replica.")
		return
	}
	t := newTable("REPLICA", "MODEL", "STATE", "FOR", "RUNNING", "SERVED", "RESTARTS", "ADDRESS", "NODE", "REASON")
	for _, r := range replicas {
		running := strconv.Itoa(r.InFlight)
		if r.Max > 0 {
			running += " of " + strconv.Itoa(r.Max)
		}
		state := r.State
		if r.Drained {
			state += ", drained"
		}
		t.add(r.ID, r.Model, state, age(r.Since), running, r.Served, r.Restarts, r.Address, r.Node, r.Reason)
	}
	t.write(w)
}

// requestRow is what commands show of a request.
type requestRow struct {
	RequestID   string  `json:"request_id"`
	Path        string  `json:"path"`
	Tenant      string  `json:"tenant"`
	Model       string  `json:"model"`
	Replica     string  `json:"replica"`
	State       string  `json:"state"`
	Status      int     `json:"status"`
	Code        string  `json:"code"`
	Route       string  `json:"route"`
	TokensOut   int64   `json:"tokens_out"`
	Estimated   bool    `json:"estimated"`
	QueuedMS    float64 `json:"queued_ms"`
	FirstByteMS float64 `json:"first_byte_ms"`
	DurationMS  float64 `json:"duration_ms"`
}

// requestList is the answer of /api/v1/requests.
type requestList struct {
	Running  int          `json:"running"`
	Requests []requestRow `json:"requests"`
}

func newRequestsCommand() *cobra.Command {
	var flags viewFlags
	limit := 20
	c := &cobra.Command{
		Use:   "requests [--limit N]",
		Short: "List the running and the last finished requests",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var list requestList
			path := "/api/v1/requests?" + url.Values{"limit": {strconv.Itoa(limit)}}.Encode()
			return flags.show(cmd, path, &list, func(w io.Writer) { list.write(w) })
		},
	}
	flags.addFlags(c)
	c.AddCommand(newCancelCommand(&flags))
	c.Flags().IntVar(&limit, "limit", limit, "how many running and how many finished requests are listed, at most")
	return c
}

// write writes the table of requests.
func (l requestList) write(w io.Writer) {
	if len(l.Requests) == 0 {
		fmt.Fprintln(w, "There is no request.")
		return
	}
	t := newTable("REQUEST", "STATE", "STATUS", "MODEL", "TENANT", "ROUTE", "QUEUED", "FIRST BYTE", "DURATION", "TOKENS", "REPLICA")
	for _, q := range l.Requests {
		status := strconv.Itoa(q.Status)
		if q.Status == 0 {
			status = ""
		}
		if q.Code != "" {
			status += " " + q.Code
		}
		tokens := strconv.FormatInt(q.TokensOut, 10)
		if q.Estimated {
			tokens = "~" + tokens
		}
		t.add(q.RequestID, q.State, status, q.Model, q.Tenant, q.Route, milliseconds(q.QueuedMS), milliseconds(q.FirstByteMS),
			milliseconds(q.DurationMS), tokens, q.Replica)
	}
	t.write(w)
	fmt.Fprintf(w, "%d requests run.\n", l.Running)
}

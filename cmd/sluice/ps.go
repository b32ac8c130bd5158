package main

import (
	"fmt"
	"io"
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
		Long: `List the replicas.

On a terminal that is too narrow, the table leaves columns out and the reasons stand below it. Into a
pipe or a file the table is whole.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var list replicaList
			return flags.show(cmd, "/api/v1/replicas", &list, func(w io.Writer) { writeReplicas(w, list.ofModel(model), terminalColumns(cmd)) })
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

// writeReplicas writes the table of replicas for a terminal with this number of columns. 0 means
// that the output is no terminal. If the table is too wide, the reasons stand below it.
func writeReplicas(w io.Writer, replicas []replicaRow, columns int) {
	if len(replicas) == 0 {
		fmt.Fprintln(w, "There is no replica.")
		return
	}
	t := replicaTable(replicas)
	if t.isWithin(columns) {
		t.write(w)
		return
	}
	t.remove(slices.Index((*t)[0], "REASON"))
	t.writeWithin(w, columns, "ADDRESS", "NODE", "SERVED", "RESTARTS", "FOR")
	for _, r := range replicas {
		if r.Reason != "" {
			fmt.Fprintf(w, "%s: %s\n", printable(r.ID), printable(r.Reason))
		}
	}
}

func replicaTable(replicas []replicaRow) *table {
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
	return t
}

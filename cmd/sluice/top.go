package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-gateway/sluice/internal/console"
)

const (
	// clearScreen moves the cursor home and clears the screen below it.
	clearScreen = "\x1b[H\x1b[2J"
	// topPatience is how long a picture waits for an answer. The one before is old by then.
	topPatience = 5 * time.Second
)

func newTopCommand() *cobra.Command {
	var flags viewFlags
	interval := 2 * time.Second
	c := &cobra.Command{
		Use:   "top [--interval 2s]",
		Short: "Show models and replicas again and again, until Ctrl-C",
		Long: `Show models and replicas again and again, until Ctrl-C.

On a terminal, a picture fits the screen and says what it leaves out. Models and replicas that are
not ready stand first. Without a terminal, each picture is whole.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if interval < 100*time.Millisecond {
				return fmt.Errorf("--interval is %v: use at least 100ms", interval)
			}
			return top(cmd, &flags, interval)
		},
	}
	flags.adminAccess.addFlags(c)
	flags.output = outputTable
	c.Flags().DurationVar(&interval, "interval", interval, "time between two pictures")
	return c
}

// top prints picture after picture. On a terminal each replaces the one before, and a gateway that
// is away for a while, as during a restart, ends nothing.
func top(cmd *cobra.Command, flags *viewFlags, interval time.Duration) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for shown := false; ; shown = true {
		v, err := readTop(cmd.Context(), flags)
		columns, rows, terminal := console.Size(os.Stdout)
		if cmd.Context().Err() != nil {
			return nil
		}
		var picture string
		switch {
		case err != nil && (!shown || !terminal):
			return err
		case err != nil:
			picture = clearScreen + fmt.Sprintf("%v\nThis is tried again every %v, until Ctrl-C.\n", err, interval)
		case terminal:
			picture = clearScreen + strings.Join(v.fit(columns, rows), "\n")
		default:
			picture = v.whole() + "\n"
		}
		if _, err := fmt.Fprint(cmd.OutOrStdout(), picture); err != nil {
			return err
		}
		select {
		case <-cmd.Context().Done():
			return nil
		case <-tick.C:
		}
	}
}

// topView is what a picture shows.
type topView struct {
	status     gatewayStatus
	models     modelList
	conditions conditionList
	replicas   replicaList
}

// readTop reads what a picture shows.
func readTop(ctx context.Context, flags *viewFlags) (*topView, error) {
	client, err := flags.open()
	if err != nil {
		return nil, err
	}
	client.Patience = topPatience
	v := new(topView)
	for _, part := range []struct {
		path string
		into any
	}{{"status", &v.status}, {"models", &v.models}, {"conditions", &v.conditions}, {"replicas", &v.replicas}} {
		if err := client.Call(ctx, http.MethodGet, "/api/v1/"+part.path, nil, part.into); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// whole returns a picture with everything.
func (v *topView) whole() string {
	var text bytes.Buffer
	v.status.write(&text)
	fmt.Fprintln(&text)
	writeModels(&text, v.models.Models, 0)
	writeAttention(&text, v.conditions.Conditions)
	fmt.Fprintln(&text)
	writeReplicas(&text, v.replicas.Replicas, 0)
	return text.String()
}

// fit returns the lines of a picture for a screen of so many columns and rows. A line less than a
// whole screen keeps terminals from scrolling.
func (v *topView) fit(columns, rows int) []string {
	var status bytes.Buffer
	v.status.write(&status)
	models := firstNotReady(v.models.Models, func(m modelRow) string { return m.State })
	replicas := firstNotReady(v.replicas.Replicas, func(r replicaRow) string { return r.State })
	sections := []section{
		{lines: strings.Split(strings.TrimSpace(status.String()), "\n")},
		{lines: attentionLines(v.conditions.Conditions), noun: "condition", see: "sluice status"},
		{head: 1, lines: modelTable(models).fit(0, columns, spareOfModels()...), noun: "model", see: "sluice status"},
		{head: 1, lines: replicaTable(replicas).fit(0, columns, "ADDRESS", "NODE", "SERVED", "RESTARTS", "FOR"), noun: "replica", see: "sluice ps"},
	}
	sections = slices.DeleteFunc(sections, func(s section) bool { return len(s.lines) == s.head })
	var picture []string
	for i, room := range rooms(sections, rows-len(sections)) { // an empty line between two, and the last row
		if i > 0 {
			picture = append(picture, "")
		}
		picture = append(picture, sections[i].cut(room)...)
	}
	for i, line := range picture {
		picture[i] = console.Clip(line, columns)
	}
	return picture[:min(len(picture), rows-1)]
}

// firstNotReady returns the rows with those in front whose state is not ready.
func firstNotReady[T any](rows []T, state func(T) string) []T {
	rank := func(row T) int {
		if state(row) == "ready" {
			return 1
		}
		return 0
	}
	return slices.SortedStableFunc(slices.Values(rows), func(a, b T) int { return rank(a) - rank(b) })
}

// section is a part of a picture.
type section struct {
	// head is how many of the lines are not counted, because they name columns.
	head  int
	lines []string
	// noun is what a line is of. see is the command that shows all of them.
	noun, see string
}

// cut returns the section in so many lines. If it is cut, its last line says what is left out.
func (s section) cut(room int) []string {
	if len(s.lines) <= room {
		return s.lines
	}
	kept := s.lines[:max(0, room-1)]
	left := len(s.lines) - max(len(kept), s.head)
	more := fmt.Sprintf("… and %d more", left)
	if s.noun != "" {
		more = fmt.Sprintf("… and %d more %s: %s", left, plural(left, s.noun), s.see)
	}
	return append(slices.Clone(kept), more)
}

// rooms shares the lines of a screen among the sections: those that need less than an equal share
// leave the rest to the others.
func rooms(sections []section, lines int) []int {
	all := make([]int, len(sections))
	for left, at := lines, 0; left > 0; left-- {
		tries := 0
		for ; all[at] == len(sections[at].lines) && tries < len(sections); tries++ {
			at = (at + 1) % len(sections)
		}
		if tries == len(sections) {
			break
		}
		all[at]++
		at = (at + 1) % len(sections)
	}
	return all
}

// plural returns a noun for so many.
func plural(n int, noun string) string {
	if n == 1 {
		return noun
	}
	return noun + "s"
}

package main

import (
	"cmp"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

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

// requestFilters are the flags of the command requests, by their names in the admin API.
type requestFilters map[string]*string

// addFlags adds a flag for each filter of the admin API.
func (f requestFilters) addFlags(flags *pflag.FlagSet) {
	for name, usage := range map[string]string{
		"model": "only requests for this model", "tenant": "only requests of this tenant", "replica": "only requests that this replica serves",
		"status": "only answers with this HTTP status, such as 503, or of this class, such as 5xx", "code": "only requests with this error code",
		"state":             "only requests in this state: queued, streaming or done",
		"client_request_id": "only requests to which their client gave this id",
	} {
		f[name] = flags.String(strings.ReplaceAll(name, "_", "-"), "", usage)
	}
}

// path returns the path of the list in the admin API.
func (f requestFilters) path(limit int) string {
	query := url.Values{"limit": {strconv.Itoa(limit)}}
	for name, value := range f {
		if *value != "" {
			query.Set(name, *value)
		}
	}
	return "/api/v1/requests?" + query.Encode()
}

func newRequestsCommand() *cobra.Command {
	var flags viewFlags
	filters, limit := requestFilters{}, 20
	c := &cobra.Command{
		Use:   "requests [--model NAME] [--tenant NAME] [--status 5xx] [--limit N]",
		Short: "List the running and the last finished requests",
		Long: `List the running and the last finished requests.

With several filters a request must pass all of them. Filters look through all running and the last
512 finished requests. On a terminal that is too narrow, the table leaves columns out and cuts cells.
Into a pipe or a file it is whole.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var list requestList
			return flags.show(cmd, filters.path(limit), &list, func(w io.Writer) { list.write(w, terminalColumns(cmd)) })
		},
	}
	flags.addFlags(c)
	filters.addFlags(c.Flags())
	c.AddCommand(newCancelCommand(&flags))
	c.Flags().IntVar(&limit, "limit", limit, "how many running and how many finished requests are listed, at most")
	_ = c.RegisterFlagCompletionFunc("model", flags.completeModels())
	_ = c.RegisterFlagCompletionFunc("replica", flags.completeReplicas())
	_ = c.RegisterFlagCompletionFunc("state", cobra.FixedCompletions([]string{"queued", "streaming", "done"}, cobra.ShellCompDirectiveNoFileComp))
	return c
}

// write writes the table of requests for a terminal with this number of columns. 0 means that the
// output is no terminal. A request that names no model shows its path.
func (l requestList) write(w io.Writer, columns int) {
	if len(l.Requests) == 0 {
		fmt.Fprintln(w, "There is no request.")
		return
	}
	t := l.table()
	if !t.isWithin(columns) {
		t.joinStates()
	}
	t.writeWithin(w, columns, "QUEUED", "ROUTE", "TOKENS", "FIRST BYTE", "REPLICA", "TENANT", "DURATION")
	if l.Running == 1 {
		fmt.Fprintln(w, "1 request runs or waits.")
		return
	}
	fmt.Fprintf(w, "%d requests run or wait.\n", l.Running)
}

func (l requestList) table() *table {
	t := newTable("REQUEST", "STATE", "STATUS", "MODEL OR PATH", "TENANT", "ROUTE", "QUEUED", "FIRST BYTE", "DURATION", "TOKENS", "REPLICA")
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
		t.add(q.RequestID, q.State, status, cmp.Or(q.Model, q.Path), q.Tenant, q.Route, milliseconds(q.QueuedMS), milliseconds(q.FirstByteMS),
			milliseconds(q.DurationMS), tokens, q.Replica)
	}
	return t
}

// joinStates makes the columns STATE and STATUS one: a finished request shows its status, and any
// other one its state.
func (t *table) joinStates() {
	state, status := slices.Index((*t)[0], "STATE"), slices.Index((*t)[0], "STATUS")
	for _, row := range (*t)[1:] {
		if row[state] == "done" && row[status] != "-" {
			row[state] = row[status]
		}
	}
	t.remove(status)
}

package admin

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/request"
)

// The number of requests that /api/v1/requests lists without and at most with ?limit.
const (
	defaultRequests = 100
	maxRequests     = 1000
)

// requestFilter says which requests are listed. An empty field admits all.
type requestFilter struct {
	model, tenant, replica, code, client string
	state                                request.State
	// statusFrom and statusTo are bounds of the HTTP status; 0: all.
	statusFrom, statusTo int
}

// states are the names of the states in ?state: those in the list, and those of earlier releases.
var states = map[string]request.State{"": "", "queued": request.Queued, "streaming": request.Streaming, "done": request.Done,
	"running": request.Streaming, "finished": request.Done}

// requestParams are the parameters of the list of requests.
var requestParams = []string{"limit", "model", "tenant", "replica", "code", "client_request_id", "state", "status"}

// readFilter reads the filters of a query. A parameter that is none of them would seem to have
// found all requests.
func readFilter(q url.Values) (f requestFilter, fault *openai.Error) {
	for _, name := range slices.Sorted(maps.Keys(q)) {
		if !slices.Contains(requestParams, name) {
			return f, badParam(name, name+" is no parameter of this list; known are "+strings.Join(requestParams, ", ")+".")
		}
	}
	f = requestFilter{model: q.Get("model"), tenant: q.Get("tenant"), replica: q.Get("replica"), code: q.Get("code"), client: q.Get("client_request_id")}
	state, ok := states[q.Get("state")]
	if !ok {
		return f, badParam("state", fmt.Sprintf("state is %q: it must be queued, streaming or done.", q.Get("state")))
	}
	f.state = state
	s := q.Get("status")
	class, isClass := strings.CutSuffix(s, "xx")
	n, err := strconv.Atoi(class)
	switch {
	case s == "":
	case err == nil && isClass && n >= 1 && n <= 5:
		f.statusFrom, f.statusTo = 100*n, 100*n+99
	case err == nil && !isClass && n >= 100 && n <= 599:
		f.statusFrom, f.statusTo = n, n
	default:
		return f, badParam("status", fmt.Sprintf("status is %q: it must be an HTTP status such as 503, or a class such as 5xx.", s))
	}
	return f, nil
}

// admits reports whether a request is listed.
func (f *requestFilter) admits(q *request.Summary) bool {
	is := func(want, have string) bool { return want == "" || want == have }
	return is(f.model, q.Model) && is(f.tenant, q.Tenant) && is(f.replica, q.Replica) && is(f.code, q.Code) && is(f.client, q.ClientID) &&
		is(string(f.state), string(q.State)) && (f.statusTo == 0 || q.Status >= f.statusFrom && q.Status <= f.statusTo)
}

// requests lists the running and the last finished requests that the filters admit.
func (h *handler) requests(w http.ResponseWriter, r *http.Request) {
	limit := defaultRequests
	if s := r.URL.Query().Get("limit"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > maxRequests {
			writeError(w, badParam("limit", fmt.Sprintf("limit is %q: it must be a number from 1 to %d.", s, maxRequests)))
			return
		}
		limit = n
	}
	filter, fault := readFilter(r.URL.Query())
	if fault != nil {
		writeError(w, fault)
		return
	}
	all := limit
	if filter != (requestFilter{}) {
		all = 0
	}
	if m, ok := h.Fleet().Resolve(filter.model); ok {
		filter.model = m.Name
	}
	rows, running := h.Requests(all)
	views := []requestView{}
	listed := map[bool]int{}
	for i := range rows {
		if done := rows[i].State == request.Done; listed[done] < limit && filter.admits(&rows[i]) {
			listed[done]++
			views = append(views, viewRequest(rows[i]))
		}
	}
	writeJSON(w, http.StatusOK, struct {
		Running  int           `json:"running"`
		Requests []requestView `json:"requests"`
	}{running, views})
}

// moment is one line of the timeline of a request.
type moment struct {
	// AtMS is since the receipt of the request.
	AtMS   float64 `json:"at_ms"`
	What   string  `json:"what"`
	Detail string  `json:"detail"`
}

// pickedView says which replica a request was sent to, and why.
type pickedView struct {
	// Replica is where the request was sent; once it has ended, the one that served it.
	Replica  string `json:"replica"`
	Strategy string `json:"strategy"`
	// Why is a word for why the replica won; empty for strategies that do not predict. Moved is a
	// word for why the request left the replica that had its session or its prompt.
	Why   string `json:"why"`
	Moved string `json:"moved"`
	// PredictedMS is the expected time to the first token, MatchedTokens what the replica was
	// expected to have of the prompt. null: not known.
	PredictedMS   *float64 `json:"predicted_ms"`
	MatchedTokens *int     `json:"matched_tokens"`
	// Considered is how many replicas the pick chose from. Candidates are the picked one and the
	// best of the others. null: they were not recorded.
	Considered *int            `json:"considered"`
	Candidates []candidateView `json:"candidates"`
}

// maxCandidates bounds the candidates of a request.
const maxCandidates = 8

// candidateView is a replica as a pick saw it.
type candidateView struct {
	Replica string `json:"replica"`
	Picked  bool   `json:"picked"`
	// Load is how many requests the replica had without this one. Full: it had no free slot.
	Load int  `json:"load"`
	Full bool `json:"full"`
	// PredictedMS is the expected time to the first token. MatchedTokens are those of the prompt
	// that are in the replica's cache. UncachedTokens are those of the prompt that it has to
	// compute. WaitingTokens are those that it computes before them. null: routing does not
	// predict.
	PredictedMS    *float64 `json:"predicted_ms"`
	MatchedTokens  *int     `json:"matched_tokens"`
	UncachedTokens *int     `json:"uncached_tokens"`
	WaitingTokens  *int     `json:"waiting_tokens"`
}

// viewCandidates returns the best candidates of a pick, the picked one first.
func viewCandidates(all []request.Candidate) []candidateView {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b request.Candidate) int { return a.Compare(&b) })
	views := make([]candidateView, 0, maxCandidates)
	for _, c := range all[:min(len(all), maxCandidates)] {
		v := candidateView{Replica: c.Replica, Picked: c.Picked, Load: c.Load, Full: c.Full}
		if c.TTFT > 0 {
			v.PredictedMS, v.MatchedTokens = new(milliseconds(c.TTFT)), new(c.MatchedTokens)
			v.UncachedTokens, v.WaitingTokens = new(c.UncachedTokens), new(c.WaitingTokens)
		}
		views = append(views, v)
	}
	return views
}

// requestDetail answers what has happened to one request.
func (h *handler) requestDetail(id string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		name, err := url.PathUnescape(id)
		d, ok := h.Request(name)
		if err != nil || !ok {
			writeError(w, notFound(fmt.Sprintf("No request `%s` runs or is among the last that have ended. `sluice requests` lists them.", name)))
			return
		}
		view := struct {
			requestView
			Timeline []moment    `json:"timeline"`
			Picked   *pickedView `json:"picked"`
			TraceURL string      `json:"trace_url,omitempty"`
		}{requestView: viewRequest(d.Summary), Timeline: timeline(&d), Picked: h.viewPicked(&d)}
		if trace := d.TraceID(); trace != "" && h.TraceURL != "" {
			view.TraceURL = strings.ReplaceAll(h.TraceURL, "{trace_id}", trace)
		}
		writeJSON(w, http.StatusOK, view)
	}
}

// viewPicked returns nil for a request that was not sent to a replica.
func (h *handler) viewPicked(d *request.Detail) *pickedView {
	if d.Replica == "" {
		return nil
	}
	v := pickedView{Replica: d.Replica, Strategy: h.Strategy(d.Model), Why: d.Prediction.Reason, Moved: d.Prediction.Moved}
	if d.Prediction.TTFT > 0 {
		v.PredictedMS = new(milliseconds(d.Prediction.TTFT))
	}
	if d.Prediction.Known {
		v.MatchedTokens = new(d.Prediction.MatchedTokens)
	}
	if len(d.Prediction.Candidates) > 0 {
		v.Considered, v.Candidates = new(d.Prediction.Considered), viewCandidates(d.Prediction.Candidates)
	}
	return &v
}

// timeline lists what has happened to a request, in order.
func timeline(d *request.Detail) []moment {
	var all []moment
	add := func(at time.Duration, what, detail string) {
		if n := len(all); n > 0 { // two clocks have measured
			at = max(at, time.Duration(all[n-1].AtMS*float64(time.Millisecond)))
		}
		all = append(all, moment{milliseconds(at), what, detail})
	}
	add(0, "received", strings.TrimSpace(d.Method+" "+d.Path))
	if d.Waited > 0 || d.State == request.Queued {
		add(d.Read, "queued", d.Model)
	}
	addAttempts(d, add)
	if d.FirstByte > 0 {
		add(d.FirstByte, "first_token", "")
	}
	if d.State == request.Done {
		what := "finished"
		if d.Cause == request.CauseClient || d.Cause == request.CauseCancelled || d.Status == 0 {
			what = "cancelled"
		}
		add(d.Duration, what, ending(&d.Summary))
	}
	return all
}

// addAttempts adds the admission and the attempts that were repeated. A request that was preempted
// has waited again: what came before is told before the admission.
func addAttempts(d *request.Detail, add func(at time.Duration, what, detail string)) {
	retried := func(all []request.Retry) {
		for _, retry := range all {
			add(retry.After, "retried", retry.Reason+" at "+retry.Replica)
		}
	}
	before, after := []request.Retry(nil), d.Retries
	for i, retry := range d.Retries {
		if retry.Reason == request.ReasonPreempted {
			before, after = d.Retries[:i+1], d.Retries[i+1:]
		}
	}
	retried(before)
	if d.Replica != "" {
		add(d.Read+d.Waited, "admitted", "")
		first := d.Replica
		if len(after) > 0 {
			first = after[0].Replica
		}
		add(d.Read+d.Waited, "picked", first)
	}
	retried(after)
	if d.Attempts > 1 && len(d.Retries) == 0 { // it began under an earlier process of the gateway
		add(d.Read+d.Waited, "retried", fmt.Sprintf("%d attempts, the last at %s", d.Attempts, d.Replica))
	}
}

// ending says in words how a request has ended.
func ending(q *request.Summary) string {
	parts := []string{}
	if q.Status > 0 {
		parts = append(parts, "status "+strconv.Itoa(q.Status))
	}
	for _, s := range []string{q.Code, cmp.Or(q.Cause, q.FinishReason)} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	return strings.Join(parts, ", ")
}

package admin

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/sluice-gateway/sluice/internal/history"
	"github.com/sluice-gateway/sluice/internal/openai"
)

const (
	// defaultPast is how far back /api/v1/history begins without from.
	defaultPast = time.Hour
	// usualValues is how many values a series has at most without step, and maxValues with it.
	usualValues = 720
	maxValues   = 9000
)

// historySeries is one series of /api/v1/history.
type historySeries struct {
	Name  string `json:"name"`
	Model string `json:"model"`
	// Values has one value for each step. It is null where there is no sample.
	Values []history.Number `json:"values"`
}

// history answers what a model, or all of them, have done in the last 24 hours.
func (h *handler) history(w http.ResponseWriter, r *http.Request) {
	q, fault := historyQuery(r.URL.Query(), time.Now())
	if fault == nil {
		q.Model, fault = h.historyModel(q.Model)
	}
	if fault != nil {
		writeError(w, fault)
		return
	}
	answer := h.History.Find(q)
	all := make([]historySeries, 0, len(answer.Values))
	for i, name := range history.Names() {
		all = append(all, historySeries{name, q.Model, answer.Values[i]})
	}
	writeJSON(w, http.StatusOK, struct {
		From   time.Time       `json:"from"`
		Step   int             `json:"step_seconds"`
		Series []historySeries `json:"series"`
	}{answer.From, int(q.Step.Seconds()), all})
}

// historyModel returns the own name of a model that has a history; an empty name stands for all.
func (h *handler) historyModel(name string) (string, *openai.Error) {
	if m, ok := h.Fleet().Resolve(name); ok {
		return m.Name, nil
	}
	if name == "" || h.History.Knows(name) {
		return name, nil
	}
	return "", openai.Errorf(openai.CodeModelNotFound, "The model `%s` does not exist, and did not in the last 24 hours.", name)
}

// historyQuery reads the parameters of /api/v1/history.
func historyQuery(v url.Values, now time.Time) (q history.Query, fault *openai.Error) {
	q = history.Query{Model: v.Get("model"), From: now.Add(-defaultPast), To: now}
	for _, p := range []struct {
		name string
		to   *time.Time
	}{{"from", &q.From}, {"to", &q.To}} {
		if *p.to, fault = readMoment(v, p.name, now, *p.to); fault != nil {
			return q, fault
		}
	}
	long := q.To.Sub(q.From)
	if long <= 0 {
		return q, badParam("to", "to is not after from.")
	}
	q.Step = usualStep(long)
	if s := v.Get("step"); s != "" {
		n, err := strconv.Atoi(s)
		if q.Step = time.Duration(n) * time.Second; err != nil || n <= 0 || n > 86400 || q.Step%history.Step != 0 {
			return q, badParam("step", fmt.Sprintf("step is %q: it must be a number of seconds up to 86400, and a multiple of 10.", s))
		}
	}
	if n := int64(long / q.Step); n > maxValues {
		return q, badParam("step", fmt.Sprintf("The series would have %d values, and may have %d: ask for a longer step, or for less time.", n, maxValues))
	}
	return q, nil
}

// usualStep returns the shortest step of which so long a time has at most usualValues.
func usualStep(long time.Duration) time.Duration {
	n := (long + usualValues*history.Step - 1) / (usualValues * history.Step)
	return n * history.Step
}

// lastYear is the last year of a moment. Years after it do not fit into the texts of answers.
const lastYear = 9000

// readMoment reads the parameter name: a time in RFC 3339 since 1970, or a number of seconds from
// now that is not above 0. Without the parameter the moment is otherwise.
func readMoment(v url.Values, name string, now, otherwise time.Time) (time.Time, *openai.Error) {
	s := v.Get(name)
	if s == "" {
		return otherwise, nil
	}
	if seconds, err := strconv.ParseInt(s, 10, 64); err == nil && seconds <= 0 {
		return now.Add(time.Duration(max(seconds, -now.Unix())) * time.Second), nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil || t.Unix() < 0 || t.Year() > lastYear {
		return now, badParam(name,
			fmt.Sprintf("`%s` is %q: it must be a time since 1970 such as 2026-05-04T12:00:00Z, or seconds before now such as -3600.", name, s))
	}
	return t, nil
}

// badParam returns the error of a wrong parameter.
func badParam(name, message string) *openai.Error {
	return &openai.Error{Code: openai.CodeInvalidRequest, Param: name, Message: message}
}

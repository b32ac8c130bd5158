package admin

import (
	"encoding/csv"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/usage"
)

// defaultUsagePeriod is how long before now the period of usage begins without the parameter from.
const defaultUsagePeriod = 24 * time.Hour

// usage answers what was used in a period, as JSON or as CSV.
func (h *handler) usage(w http.ResponseWriter, r *http.Request) {
	parameters, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		writeError(w, openai.Errorf(openai.CodeInvalidRequest, "The query of the URL is not valid."))
		return
	}
	q, format, fault := usageQuestion(parameters, time.Now())
	if fault != nil {
		writeError(w, fault)
		return
	}
	answer := h.Usage(r.Context(), q)
	if format == "csv" {
		writeUsageCSV(w, q.By, answer)
		return
	}
	items := make([]map[string]any, 0, len(answer.Items))
	for i := range answer.Items {
		items = append(items, usageItem(q.By, &answer.Items[i]))
	}
	object := map[string]any{"from": answer.From, "to": answer.To, "complete": answer.Complete, "usage": items}
	if !answer.AsOf.IsZero() {
		object["as_of"] = answer.AsOf
	}
	if len(answer.Missing) > 0 {
		object["missing"] = answer.Missing
	}
	writeJSON(w, http.StatusOK, object)
}

// usageQuestion reads the parameters of a question.
func usageQuestion(p url.Values, now time.Time) (q usage.Question, format string, fault *openai.Error) {
	for name, values := range p {
		if !slices.Contains([]string{"from", "to", "group_by", "format"}, name) {
			return q, "", invalidUsage(name, "is not a parameter of this URL")
		}
		if len(values) > 1 {
			return q, "", invalidUsage(name, "must not be given twice")
		}
	}
	if q.From, fault = readMoment(p, "from", now, now.Add(-defaultUsagePeriod)); fault != nil {
		return q, "", fault
	}
	if q.To, fault = readMoment(p, "to", now, time.Time{}); fault != nil {
		return q, "", fault
	}
	if !q.To.IsZero() && q.To.Before(q.From) {
		return q, "", invalidUsage("to", "must not be before from")
	}
	var ok bool
	if q.By, ok = dimensions(p.Get("group_by")); !ok {
		return q, "", invalidUsage("group_by", usage.DimensionsRule)
	}
	switch format = p.Get("format"); format {
	case "", "json", "csv":
		return q, format, nil
	}
	return q, "", invalidUsage("format", "must be json or csv")
}

// dimensions reads a list of dimensions. An empty one stands for tenant, key and model.
func dimensions(text string) ([]usage.Dimension, bool) {
	if text == "" {
		return []usage.Dimension{usage.ByTenant, usage.ByKey, usage.ByModel}, true
	}
	return usage.ParseDimensions(text)
}

func invalidUsage(param, what string) *openai.Error {
	return badParam(param, fmt.Sprintf("`%s` %s.", param, what))
}

// usageColumns are the counts of an answer, in the order of the columns of its CSV.
func usageColumns(c *usage.Counts) []struct {
	name  string
	count int64
} {
	return []struct {
		name  string
		count int64
	}{
		{"requests", c.Requests}, {"prompt_tokens", c.PromptTokens}, {"cached_tokens", c.CachedTokens},
		{"completion_tokens", c.CompletionTokens}, {"estimated_requests", c.EstimatedRequests},
		{"estimated_prompt_tokens", c.EstimatedPromptTokens}, {"estimated_completion_tokens", c.EstimatedCompletionTokens},
	}
}

// usageItem is the JSON object of one item.
func usageItem(by []usage.Dimension, item *usage.Item) map[string]any {
	object := map[string]any{"cost": item.Money()}
	for i, d := range by {
		object[string(d)] = item.Values[i]
	}
	for _, column := range usageColumns(&item.Counts) {
		object[column.name] = column.count
	}
	return object
}

// writeUsageCSV writes an answer as CSV (RFC 4180) with a line of names.
func writeUsageCSV(w http.ResponseWriter, by []usage.Dimension, answer usage.Answer) {
	w.Header().Set("Content-Type", "text/csv; charset=utf-8")
	w.Header().Set("Content-Disposition", `attachment; filename="usage.csv"`)
	if !answer.Complete {
		w.Header().Set(usage.MissingHeader, strings.Join(answer.Missing, " "))
	}
	out := csv.NewWriter(w)
	var names []string
	for _, d := range by {
		names = append(names, string(d))
	}
	for _, column := range usageColumns(new(usage.Counts)) {
		names = append(names, column.name)
	}
	_ = out.Write(append(names, "cost")) // fails only if the client has left
	for i := range answer.Items {
		item := &answer.Items[i]
		var line []string
		for _, value := range item.Values {
			line = append(line, spreadsheetText(value))
		}
		for _, column := range usageColumns(&item.Counts) {
			line = append(line, strconv.FormatInt(column.count, 10))
		}
		_ = out.Write(append(line, strconv.FormatFloat(item.Money(), 'f', -1, 64)))
	}
	out.Flush()
}

// spreadsheetText keeps a spreadsheet from taking a name for a formula.
func spreadsheetText(name string) string {
	if name != "" && strings.ContainsRune("=+-@\t\r", rune(name[0])) {
		return "'" + name
	}
	return name
}

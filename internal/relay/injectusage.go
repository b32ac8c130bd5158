package relay

import (
	"bytes"
	"slices"
	"strings"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/openai/jsonscan"
)

// Options of a stream, as the members of stream_options are named.
const (
	includeUsage    = `"include_usage":true`
	continuousUsage = `"continuous_usage_stats":true`
)

// askForUsage adds what the engine tells of its usage to the stream_options of a body. asked says
// that the client has asked for the usage at the end itself. continuous reports that the usage of
// each event was asked for and that the client has not asked for it.
//
// A client that refuses the usage gets its will, and so does one with options of another form.
func askForUsage(body []byte, reports engines.UsageReports, asked bool) (changed []byte, continuous bool) {
	if reports == engines.UsageUnknown {
		return body, false
	}
	var r jsonscan.Reader
	r.Reset(body)
	if !r.Open('{') {
		return body, false
	}
	first := r.Pos()
	for more := true; more; more = r.More('{') {
		if string(r.Name()) != "stream_options" {
			r.Skip()
			continue
		}
		if r.Kind() != '{' {
			return body, false // null, or something that the engine refuses
		}
		at := r.Pos()
		r.Skip()
		options := body[at:r.Pos()]
		added := missingOptions(options, reports, asked)
		if added == "" {
			return body, false
		}
		continuous = strings.Contains(added, continuousUsage)
		if !isEmptyObject(options) {
			added += ","
		}
		return slices.Concat(body[:at+1], []byte(added), body[at+1:]), continuous
	}
	if !r.Valid() {
		return body, false
	}
	added := missingOptions(nil, reports, false)
	return slices.Concat(body[:first], []byte(`"stream_options":{`+added+`},`), body[first:]), strings.Contains(added, continuousUsage)
}

// missingOptions returns the members to add to the options of a client.
func missingOptions(options []byte, reports engines.UsageReports, asked bool) string {
	var added []string
	switch has := bytes.Contains(options, []byte("include_usage")); {
	case has && !asked:
		return ""
	case !has:
		added = append(added, includeUsage)
	}
	if reports == engines.UsageContinuous && !bytes.Contains(options, []byte("continuous_usage_stats")) {
		added = append(added, continuousUsage)
	}
	return strings.Join(added, ",")
}

func isEmptyObject(object []byte) bool { return len(bytes.Trim(object, "{} \t\r\n")) == 0 }

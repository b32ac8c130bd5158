package engines

import (
	"fmt"
	"regexp"
	"strings"
)

// Metrics says where a replica tells of its load and its cache. Each field but Path is a figure;
// see ParseFigure. An empty field means that the engine does not tell.
type Metrics struct {
	// Path is the path of the metrics on the replica's own port, such as /metrics. They have the
	// text format of Prometheus.
	Path string
	// Running is the number of requests that the engine works on.
	Running string
	// Waiting is the number of requests that wait inside the engine.
	Waiting string
	// KVUsage is the used share of the key-value cache, from 0 to 1.
	KVUsage string
	// CacheTokens is how many tokens the prefix cache can hold.
	CacheTokens string
	// CachedTokens counts the prompt tokens that the engine has found in its cache since its start.
	CachedTokens string
	// PrefillTokens counts the prompt tokens that the engine has computed since its start, without
	// those of CachedTokens. PrefillSeconds is the time that it has spent on them, in seconds.
	PrefillTokens, PrefillSeconds string
	// Slots is the number of requests that the engine works on at once.
	Slots string
	// Sign is no figure: it names fields of JSON documents in the same form. A server that has one
	// of the fields, with any value but null, is of this engine. Sign counts for a server whose
	// metrics reveal no engine.
	Sign string
}

// figures returns the figures by their names in the file.
func (m Metrics) figures() []struct{ field, text string } {
	return []struct{ field, text string }{
		{"running", m.Running}, {"waiting", m.Waiting}, {"kv_usage", m.KVUsage}, {"cache_tokens", m.CacheTokens},
		{"cached_tokens", m.CachedTokens}, {"prefill_tokens", m.PrefillTokens}, {"prefill_seconds", m.PrefillSeconds},
		{"slots", m.Slots},
	}
}

// Figure is a number that a replica tells, as the places to look for it in order: the first that
// has it counts.
type Figure []Place

// Place is a place of a number: series of the replica's metrics, or fields of a JSON document.
type Place struct {
	// Series is the name of the series. It is empty for a document. Labels are those with a
	// condition: a series counts if each of these labels has the given value.
	Series string
	Labels map[string]string
	// Factors are labels that hold numbers. With factors, the value of a series is their product.
	// Without factors, it is the series' own value.
	Factors []string
	// Document is the path of a JSON document on the replica's port. The value is the product of
	// Fields, each the names on the way to a number. A list on the way stands for the sum over its
	// items.
	Document string
	Fields   [][]string
}

// namePattern is the pattern of a series' name, and of a label's.
const namePattern = `[a-zA-Z_:][a-zA-Z0-9_:]*`

var (
	seriesPattern = regexp.MustCompile(`^(` + namePattern + `)(?:\{(.+)\})?$`)
	labelPattern  = regexp.MustCompile(`^(` + namePattern + `)(?:=("[^"]*"))?$`)
	fieldPattern  = regexp.MustCompile(`^[^\s.*#]+(\.[^\s.*#]+)*$`)
)

// ParseFigure parses a figure:
//
//	vllm:num_requests_running               the sum of all series of that name
//	tokens_total{mode="compute"}            of those series that have the label
//	cache_config_info{blocks,block_size}    the product of two labels that hold numbers
//	/props#total_slots*settings.n_ctx       the product of two fields of a JSON document
//	/info#states.slots                      the sum over the items, if states is a list
//	kv_usage or gpu_usage                   the first one that the replica has
func ParseFigure(text string) (Figure, error) {
	var figure Figure
	for _, alternative := range strings.Split(text, " or ") {
		parse := parseSeries
		if strings.HasPrefix(alternative, "/") {
			parse = parseDocument
		}
		place, err := parse(strings.TrimSpace(alternative))
		if err != nil {
			return nil, err
		}
		figure = append(figure, place)
	}
	return figure, nil
}

func parseSeries(text string) (Place, error) {
	parts := seriesPattern.FindStringSubmatch(text)
	if parts == nil {
		return Place{}, fmt.Errorf("must be the name of a series, with labels in braces if needed, or a path with # and a field, is %q", text)
	}
	place := Place{Series: parts[1]}
	if parts[2] == "" {
		return place, nil
	}
	for _, label := range strings.Split(parts[2], ",") {
		pair := labelPattern.FindStringSubmatch(strings.TrimSpace(label))
		switch {
		case pair == nil:
			return Place{}, fmt.Errorf(`the label must be name or name="value", is %q`, label)
		case pair[2] == "":
			place.Factors = append(place.Factors, pair[1])
		default:
			if place.Labels == nil {
				place.Labels = map[string]string{}
			}
			place.Labels[pair[1]] = strings.Trim(pair[2], `"`)
		}
	}
	return place, nil
}

func parseDocument(text string) (Place, error) {
	path, fields, ok := strings.Cut(text, "#")
	if !ok || fields == "" {
		return Place{}, fmt.Errorf("the path must be followed by # and a field of the JSON document, is %q", text)
	}
	place := Place{Document: path}
	for _, field := range strings.Split(fields, "*") {
		if !fieldPattern.MatchString(field) {
			return Place{}, fmt.Errorf("the field must be names with dots between them, is %q", field)
		}
		place.Fields = append(place.Fields, strings.Split(field, "."))
	}
	return place, nil
}

func (m Metrics) check() []Fault {
	var faults []Fault
	needsPath := m.Path != ""
	for _, f := range m.figures() {
		if f.text == "" {
			continue
		}
		figure, err := ParseFigure(f.text)
		if err != nil {
			faults = append(faults, Fault{Path: []string{"metrics", f.field}, Reason: err.Error()})
		}
		for _, place := range figure {
			needsPath = needsPath || place.Series != ""
		}
	}
	if needsPath && !strings.HasPrefix(m.Path, "/") {
		faults = append(faults, Fault{Path: []string{"metrics", "path"}, Reason: "must begin with /"})
	}
	if err := m.checkSign(); err != nil {
		faults = append(faults, Fault{Path: []string{"metrics", "sign"}, Reason: err.Error()})
	}
	return faults
}

func (m Metrics) checkSign() error {
	if m.Sign == "" {
		return nil
	}
	sign, err := ParseFigure(m.Sign)
	for _, place := range sign {
		if place.Document == "" {
			return fmt.Errorf("must be a path with # and a field of its JSON document, is %q", m.Sign)
		}
	}
	return err
}

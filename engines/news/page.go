package news

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/sluice-gateway/sluice/engines"
)

// maxBytes is the size of the largest page of metrics, and of the largest document.
const maxBytes = 1 << 20

var errTooLarge = errors.New("is larger than 1 MiB")

// page has the wanted series of a page of metrics, by name.
type page map[string]*dto.MetricFamily

// readPage reads the wanted series of a page of metrics. Only their lines are parsed, because a
// page may have thousands of lines for histograms.
func readPage(body io.Reader, wanted map[string]bool) (page, error) {
	limited := &io.LimitedReader{R: body, N: maxBytes + 1}
	lines := bufio.NewScanner(limited)
	lines.Buffer(make([]byte, 0, 16<<10), maxBytes)
	var kept bytes.Buffer
	for lines.Scan() {
		line := bytes.TrimLeft(lines.Bytes(), " \t")
		name := line
		if end := bytes.IndexAny(line, "{ \t"); end >= 0 {
			name = line[:end]
		}
		if wanted[string(name)] {
			kept.Write(line)
			kept.WriteByte('\n')
		}
	}
	switch {
	case limited.N <= 0 || errors.Is(lines.Err(), bufio.ErrTooLong):
		return nil, errTooLarge
	case lines.Err() != nil:
		return nil, lines.Err()
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(&kept)
	if err != nil {
		return nil, fmt.Errorf("does not have the text format of Prometheus: %w", err)
	}
	return families, nil
}

// has reports whether a series of the page is a place of the figure.
func (p page) has(figure engines.Figure) bool {
	for _, place := range figure {
		if _, n := p.sum(place); n > 0 {
			return true
		}
	}
	return false
}

// sum adds up the series of a place and returns how many there are. Series without a finite value
// are left out.
func (p page) sum(place engines.Place) (sum float64, n int) {
	for _, m := range p[place.Series].GetMetric() {
		var labels map[string]string
		if len(place.Labels)+len(place.Factors) > 0 {
			labels = labelsOf(m)
		}
		if v, ok := valueOf(m, labels, place.Factors); ok && matches(labels, place.Labels) {
			sum += v
			n++
		}
	}
	return sum, n
}

func labelsOf(m *dto.Metric) map[string]string {
	labels := make(map[string]string, len(m.GetLabel()))
	for _, pair := range m.GetLabel() {
		labels[pair.GetName()] = pair.GetValue()
	}
	return labels
}

func matches(labels, wanted map[string]string) bool {
	for name, value := range wanted {
		if labels[name] != value {
			return false
		}
	}
	return true
}

// valueOf returns the value of a series, or the product of labels if there are factors.
func valueOf(m *dto.Metric, labels map[string]string, factors []string) (float64, bool) {
	if len(factors) == 0 {
		v := m.GetUntyped().GetValue() // without its TYPE line every series is untyped
		return v, finite(v)
	}
	product := 1.0
	for _, name := range factors {
		v, err := strconv.ParseFloat(labels[name], 64)
		if err != nil {
			return 0, false
		}
		product *= v
	}
	return product, finite(product)
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// readDocument reads a JSON document.
func readDocument(body io.Reader) (any, error) {
	data, err := io.ReadAll(io.LimitReader(body, maxBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxBytes {
		return nil, errTooLarge
	}
	var document any
	if json.Unmarshal(data, &document) != nil {
		return nil, errors.New("is no JSON")
	}
	return document, nil
}

// product multiplies the fields of a document. It returns false if one is no number.
func product(document any, fields [][]string) (float64, bool) {
	product := 1.0
	for _, names := range fields {
		v, ok := number(document, names)
		if !ok {
			return 0, false
		}
		product *= v
	}
	return product, finite(product)
}

// number returns the number at the end of the names. A list on the way is the sum over its items.
func number(value any, names []string) (float64, bool) {
	if list, ok := value.([]any); ok {
		sum := 0.0
		for _, item := range list {
			v, ok := number(item, names)
			if !ok {
				return 0, false
			}
			sum += v
		}
		return sum, len(list) > 0
	}
	if len(names) == 0 {
		v, ok := value.(float64)
		return v, ok
	}
	object, ok := value.(map[string]any)
	if !ok {
		return 0, false
	}
	return number(object[names[0]], names[1:])
}

// hasField reports whether a document has a field, with any value but null.
func hasField(value any, names []string) bool {
	for _, name := range names {
		object, ok := value.(map[string]any)
		if !ok {
			return false
		}
		value = object[name]
	}
	return value != nil
}

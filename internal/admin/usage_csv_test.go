package admin

import (
	"net/http/httptest"
	"testing"

	"github.com/sluice-gateway/sluice/internal/usage"
)

// A CSV that lacks the usage of a gateway says so, since its rows cannot.
func TestB3_AnIncompleteCSVSaysSo(t *testing.T) {
	for want, answer := range map[string]usage.Answer{
		"":                 {Complete: true},
		"Redis is away. x": {Missing: []string{"Redis is away.", "x"}},
	} {
		w := httptest.NewRecorder()
		writeUsageCSV(w, nil, answer)
		if got := w.Header().Get(usage.MissingHeader); got != want {
			t.Errorf("header %q, want %q", got, want)
		}
	}
}

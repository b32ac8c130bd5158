package admin

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/history"
)

// newHistory returns a store with samples of the last minute.
func newHistory(t *testing.T) *history.Store {
	t.Helper()
	s := history.New(history.Config{})
	begin := time.Now().Truncate(history.Step)
	for i := range 6 {
		total, chat := history.None(), history.None()
		total[history.RequestsPerSecond], chat[history.RequestsPerSecond] = float64(i), 0.5
		err := s.Add(begin.Add(time.Duration(i-6)*history.Step), history.Sample{Total: total, Models: map[string]history.Values{"chat": chat, "gone": chat}})
		if err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func TestB8_HistoryOverHTTP(t *testing.T) {
	c := newConfig()
	c.History = newHistory(t)
	h := New(c)
	for _, q := range []struct{ query, model, values string }{
		{"", "", "[0,1,2,3,4,5]"},
		{"&model=chat", "chat", "[0.5,0.5,0.5,0.5,0.5,0.5]"},
		{"&model=default", "chat", "[0.5,0.5,0.5,0.5,0.5,0.5]"},
		{"&model=gone", "gone", "[0.5,0.5,0.5,0.5,0.5,0.5]"},
		{"&model=empty", "empty", "[null,null,null,null,null,null]"},
	} {
		begin := time.Now().Truncate(history.Step)
		path := fmt.Sprintf("/api/v1/history?from=%s&to=%s&step=10%s", begin.Add(-time.Minute).UTC().Format(time.RFC3339), begin.UTC().Format(time.RFC3339), q.query)
		w := get(h, path)
		var answer struct {
			From   time.Time
			Step   int `json:"step_seconds"`
			Series []struct {
				Name, Model string
				Values      json.RawMessage
			}
		}
		if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || w.Code != 200 {
			t.Fatalf("%s: %d, %v: %s", path, w.Code, err, w.Body)
		}
		first := answer.Series[0]
		if !answer.From.Equal(begin.Add(-time.Minute)) || answer.Step != 10 || len(answer.Series) != 12 || first.Name != "requests_per_second" || first.Model != q.model {
			t.Errorf("%s: %s", path, w.Body)
		}
		if string(first.Values) != q.values && !strings.HasSuffix(string(first.Values), "null]") { // ten seconds may have passed
			t.Errorf("%s: %s, want %s", path, first.Values, q.values)
		}
	}
}

func TestB8_BadQuestionsForTheHistory(t *testing.T) {
	c := newConfig()
	c.History = newHistory(t)
	h := New(c)
	for query, want := range map[string]string{
		"from=yesterday": "`from` is \\\"yesterday\\\"", "from=5": "seconds before now", "to=-7200": "to is not after from",
		"step=15": "a multiple of 10", "step=-10": "a multiple of 10", "step=x": `step is \"x\"`, "from=-864000&step=10": "The series would have 86400 values",
		"model=nobody": "The model `nobody` does not exist", "from=0001-01-01T00:00:00Z": "since 1970",
	} {
		w := get(h, "/api/v1/history?"+query)
		if w.Code != 400 && w.Code != 404 || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %d %s", query, w.Code, w.Body)
		}
	}
	if w := get(h, "/api/v1/history?from=-86400"); !strings.Contains(w.Body.String(), `"step_seconds":120,`) {
		t.Errorf("a day without a step: %.100s", w.Body)
	}
}

func TestUsualStep(t *testing.T) {
	for long, want := range map[time.Duration]time.Duration{time.Second: 10 * time.Second, 2 * time.Hour: 10 * time.Second,
		2*time.Hour + time.Second: 20 * time.Second, 24 * time.Hour: 2 * time.Minute} {
		if got := usualStep(long); got != want {
			t.Errorf("%s: %s, want %s", long, got, want)
		}
	}
}

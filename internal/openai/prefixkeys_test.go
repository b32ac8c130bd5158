package openai

import (
	"slices"
	"testing"
)

// The keys are those of CacheKey over so many user messages, the longest first.
func TestPrefixKeys(t *testing.T) {
	chat := `{"model":"m","messages":[{"role":"system","content":"s"},{"role":"user","content":"a"},{"role":"assistant","content":"x"},` +
		`{"role":"user","content":[{"type":"text","text":"b\n"}]},{"role":"developer","content":"d"},{"role":"user","content":"c"}]}`
	for _, c := range []struct {
		endpoint Endpoint
		body     string
		most     int
		want     []int
	}{
		{Chat, chat, 8, []int{3, 2, 1}},
		{Chat, chat, 2, []int{3, 2}},
		{Chat, chat, 0, nil},
		{Chat, `{"model":"m","messages":[{"role":"system","content":"s"}]}`, 8, nil},
		{Responses, `{"model":"m","instructions":"i","input":"a"}`, 8, []int{1}},
		{Completions, `{"model":"m","prompt":"a"}`, 8, nil},
	} {
		body := []byte(c.body)
		r, fault := Scan(c.endpoint, "application/json", body)
		if fault != nil {
			t.Fatal(fault)
		}
		var want []uint64
		for _, n := range c.want {
			want = append(want, r.CacheKey(body, n))
		}
		if got := r.PrefixKeys(body, c.most); !slices.Equal(got, want) {
			t.Errorf("%s, at most %d: %v, want %v", c.body, c.most, got, want)
		}
	}
}

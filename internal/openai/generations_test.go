package openai

import "testing"

// What the engine generates is what is estimated, however the request asks for it.
func TestX2_Generations(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]int{
		`{"model":"m","prompt":"x"}`:                                           1,
		`{"model":"m","prompt":"x","n":3}`:                                     3,
		`{"model":"m","prompt":"x","n":2,"best_of":20}`:                        20,
		`{"model":"m","prompt":["a","b","c","d"]}`:                             4,
		`{"model":"m","prompt":["a","b"],"n":5}`:                               10,
		`{"model":"m","prompt":[[1,2],[3]],"best_of":2}`:                       4,
		`{"model":"m","prompt":[1,2,3]}`:                                       1,
		`{"model":"m","prompt":[],"best_of":null}`:                             1,
		`{"model":"m","prompt":["a","b"],"n":2147483647,"best_of":2147483647}`: 1 << 20,
	} {
		r, fault := Scan(Completions, "application/json", []byte(body))
		if fault != nil || r.Generations() != want {
			t.Errorf("%s: %d generations, want %d (%v)", body, r.Generations(), want, fault)
		}
	}
	if _, fault := Scan(Completions, "application/json", []byte(`{"model":"m","prompt":"x","best_of":"many"}`)); fault == nil || fault.Param != "best_of" {
		t.Errorf("best_of of text: %v", fault)
	}
}

package openai

import "testing"

// A field that asks for other models is found, in any case. null asks for nothing.
func TestX14_FieldsThatAskForOtherModels(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{"model":"m","models":["a","b"],"messages":[]}`:                       "models",
		`{"model":"m","messages":[],"Fallbacks":["a"]}`:                        "fallbacks",
		`{"model":"m","messages":[],"\u0072oute":"fallback"}`:                  "route",
		`{"model":"m","context_window_fallbacks":[{"m":["a"]}],"stream":true}`: "context_window_fallbacks",
		`{"model":"m","content_policy_fallbacks":{},"stream":true}`:            "content_policy_fallbacks",
		`{"model":"m","models":null,"route": null ,"stream":true}`:             "",
		`{"model":"m","metadata":{"models":["a"]},"input":"x","routes":1}`:     "",
	} {
		for _, e := range []Endpoint{Chat, Responses, Embeddings, Messages} {
			r, fault := Scan(e, "application/json", []byte(body))
			if fault != nil || r.OtherModels != want || r.Model != "m" {
				t.Errorf("%v %s: %q, %v", e, body, r.OtherModels, fault)
			}
		}
	}
}

// A parameter of the query that asks for another model is found, however it is written.
func TestX14_QueriesThatAskForAnotherModel(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]string{"?model=secret": "model", "?beta=true&%6dodel=secret": "model", "?MODEL": "model",
		"?models=a&xmodel=b&a=model": "", "?%zz=1": "", "?": "", "": ""} {
		r := Request{Model: "m"}
		if r.ReadQuery("/v1/chat/completions" + query); r.OtherModels != want || r.Model != "m" {
			t.Errorf("%q: %q", query, r.OtherModels)
		}
	}
}

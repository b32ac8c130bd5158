package openai

import (
	"strings"
	"testing"
)

func TestB2_ResponseID(t *testing.T) {
	t.Parallel()
	for begin, want := range map[string]string{
		`{"id":"resp_1","object":"response"}`:                                                                                                    "resp_1",
		` {"background":false,"tools":[{"id":"x"}],"id":"resp_1","output":[{"id":"msg_1"`:                                                        "resp_1",
		"event: response.created\ndata: {\"response\":{\"id\":\"resp_1\",\"created_at\":1,\"o":                                                   "resp_1",
		": ping\n\ndata: {\"type\":\"ping\",\"id\":\"x\"}\n\ndata:{\"type\":\"response.created\",\"response\":{\"a\":[],\"id\":\"resp_1\"}}\n\n": "resp_1",
		`{"id":"resp_`:            "",
		`{"id":7}`:                "",
		`{"id":""}`:               "",
		`{"response":{"id":"x"}}`: "",
		`{"id":"` + strings.Repeat("x", 257) + `"}`: "",
		"data: [DONE]\n\n":                          "",
		"data: {\"response\":\"x\",\"id\":\"y\"}":   "",
		"": "",
	} {
		if got := ResponseID([]byte(begin)); got != want {
			t.Errorf("%q: the id is %q, want %q", begin, got, want)
		}
	}
}

func FuzzResponseID(f *testing.F) {
	f.Add([]byte(`{"id":"resp_1"}`))
	f.Add([]byte("data: {\"response\":{\"id\":\"resp_1\"}}\n"))
	f.Fuzz(func(t *testing.T, begin []byte) {
		id := ResponseID(begin)
		if id == "" {
			return
		}
		if fault := CheckRequestID("previous_response_id", id); fault != nil {
			t.Errorf("%q: %v", begin, fault)
		}
		if more := ResponseID(append(append([]byte(nil), begin...), "\n\ndata: {"...)); more != id {
			t.Errorf("%q: with more of the body the id is %q", begin, more)
		}
	})
}

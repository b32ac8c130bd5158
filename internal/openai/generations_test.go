package openai

import (
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/prefix"
)

// What the engine generates is what is estimated, however the request asks for it.
func TestX2_Generations(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]int{
		`{"model":"m","prompt":"x"}`:                               1,
		`{"model":"m","prompt":"x","n":3}`:                         3,
		`{"model":"m","prompt":"x","n":2,"best_of":20}`:            20,
		`{"model":"m","prompt":"x","n":1,"n_cmpl":3}`:              3, // llama.cpp obeys n_cmpl
		`{"model":"m","prompt":"x","n_cmpl":2,"best_of":4}`:        4,
		`{"model":"m","prompt":["a","b","c","d"]}`:                 4,
		`{"model":"m","prompt":["a","b"],"n":5}`:                   10,
		`{"model":"m","prompt":[[1,2],[3]],"best_of":2}`:           4,
		`{"model":"m","prompt":[1,2,3]}`:                           1,
		`{"model":"m","prompt":[],"best_of":null}`:                 1,
		`{"model":"m","prompt":[1,"a","b"],"n":2}`:                 4,
		`{"model":"m","prompt":[1,[2],[3]],"n":3}`:                 6,
		`{"model":"m","prompt":[1,{"a":["b"]}],"n":3}`:             3,
		`{"model":"m","prompt":["a","b"],"n":8192,"best_of":8192}`: 1 << 14,
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

// A request may not ask for so many answers that an engine spends its memory on them.
func TestX14_TooManyAnswers(t *testing.T) {
	t.Parallel()
	for body, param := range map[string]string{
		`"prompt":"x","n":16385`: "n", `"prompt":"x","n":2147483647`: "n", `"prompt":["a","b"],"n":8193`: "n", `"prompt":"x","n":2,"best_of":16385`: "n",
		`"prompt":"x","n_cmpl":16385`: "n",
	} {
		if _, fault := Scan(Completions, "application/json", []byte(`{"model":"m",`+body+`}`)); fault == nil || fault.Param != param || fault.Code != CodeInvalidRequest {
			t.Errorf("%s: %v", body, fault)
		}
	}
	if _, fault := Scan(Completions, "application/json", []byte(`{"model":"m","prompt":["a"`+strings.Repeat(`,"a"`, 20000)+`]}`)); fault != nil {
		t.Errorf("many prompts: %v", fault)
	}
	form := "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--b\r\nContent-Disposition: form-data; name=\"n\"\r\n\r\n99999\r\n--b--\r\n"
	if _, fault := Scan(ImageEdits, "multipart/form-data; boundary=b", []byte(form)); fault == nil || fault.Param != "n" {
		t.Errorf("form: %v", fault)
	}
}

// A response has n choices for each prompt, however many the engine generates to choose from.
func TestX2_Answers(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]int{
		`{"model":"m","prompt":"x"}`:                    0,
		`{"model":"m","prompt":["a"]}`:                  0,
		`{"model":"m","prompt":"x","n":3,"best_of":20}`: 3,
		`{"model":"m","prompt":["a","b"],"best_of":20}`: 2,
		`{"model":"m","prompt":["a","b"],"n":5}`:        10,
		`{"model":"m","prompt":["a","b"],"n":8192}`:     1 << 14,
		`{"model":"m","prompt":[1,2,3],"n":16384}`:      1 << 14,
	} {
		if r, fault := Scan(Completions, "application/json", []byte(body)); fault != nil || r.Answers() != want {
			t.Errorf("%s: %d answers, want %d (%v)", body, r.Answers(), want, fault)
		}
	}
}

// Text does not become free by the type of its part, and an image is not free.
func TestX2_WhatAPromptHolds(t *testing.T) {
	t.Parallel()
	for part, want := range map[string]struct{ bytes, media int }{
		`{"type":"text","text":"hello"}`:                                   {5, 0},
		`{"type":"refusal","refusal":"hello hello"}`:                       {11, 0},
		`{"type":"custom","text":"hello hello"}`:                           {11, 0},
		`"hello"`:                                                          {5, 0},
		`{"type":"image_url","image_url":{"url":"https://example.com/x"}}`: {0, 1},
		`{"image_url":{"url":"data:image/png;base64,AAAA"}}`:               {0, 1},
		`{"type":"input_audio","input_audio":{"data":"AAAA"}}`:             {0, 1},
	} {
		body := `{"model":"m","messages":[{"role":"user","content":[` + part + `]}]}`
		r, fault := Scan(Chat, "application/json", []byte(body))
		if fault != nil {
			t.Fatal(fault)
		}
		if got := r.PromptBytes() - len(body) + len(part); r.MediaParts() != want.media || (got < want.bytes) || want.media > 0 && got != 0 {
			t.Errorf("%s: %d bytes and %d media, want %+v", part, got, r.MediaParts(), want)
		}
	}
}

// An image in the result of a tool counts as an image, and a plain text that comes as a document
// counts as text.
func TestX2_WhatResultsAndDocumentsHold(t *testing.T) {
	t.Parallel()
	const n = 100_000
	long := strings.Repeat("A", n)
	image := `{"type":"image","source":{"type":"base64","media_type":"image/png","data":"` + long + `"}}`
	for name, c := range map[string]struct {
		e     Endpoint
		body  string
		media int
		text  bool // the long text counts as text
	}{
		"image in a result": {Messages, `"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[` + image +
			`,{"type":"text","text":"hello"},` + image + `]}]}]`, 2, false},
		"text in a result":        {Messages, `"messages":[{"role":"user","content":[{"type":"tool_result","content":[{"type":"text","text":"` + long + `"}]}]}]`, 0, true},
		"result that is a string": {Messages, `"messages":[{"role":"user","content":[{"content":"` + long + `","type":"tool_result"}]}]`, 0, true},
		"document of plain text": {Messages, `"messages":[{"role":"user","content":[{"source":{"data":"` + long + `","type":"text"},"type":"document"}]}]`,
			0, true},
		"document": {Messages, `"messages":[{"role":"user","content":[{"type":"document","source":{"type":"base64","data":"` + long + `"}}]}]`, 1, false},
		"image in an output": {Responses, `"input":[{"role":"user","content":"hi"},{"type":"function_call_output","call_id":"c","output":[
			{"type":"input_image","image_url":"data:image/png;base64,` + long + `"}]}]`, 1, false},
		"screenshot":        {Responses, `"input":[{"type":"computer_call_output","output":{"type":"computer_screenshot","image_url":"` + long + `"}}]`, 1, false},
		"text in an output": {Responses, `"input":[{"type":"function_call_output","output":[{"type":"input_text","text":"` + long + `"}]}]`, 0, true},
		"output of a shell": {Responses, `"input":[{"type":"shell_call_output","output":[{"stdout":"` + long + `","stderr":""}]}]`, 0, true},
		"output":            {Responses, `"input":[{"type":"function_call_output","output":"` + long + `"}]`, 0, true},
	} {
		body := []byte(`{"model":"m",` + c.body + `}`)
		r, fault := Scan(c.e, "application/json", body)
		if fault != nil {
			t.Fatalf("%s: %v", name, fault)
		}
		if isText := r.PromptBytes() > n; r.MediaParts() != c.media || isText != c.text {
			t.Errorf("%s: %d bytes of text and %d media, want %d", name, r.PromptBytes(), r.MediaParts(), c.media)
		}
		// What the chain says of the prompt's length agrees.
		if got := r.Chain(body, 1).Bytes; (got >= n) != c.text || got < c.media*prefix.MediaBytes {
			t.Errorf("%s: the chain has %d bytes", name, got)
		}
	}
}

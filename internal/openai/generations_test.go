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

package redact

import (
	"strings"
	"testing"
)

// An engine may log what it was started with.
func TestX15_TextHidesWhatLooksLikeASecret(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"Loading model weights took 3.2 s":                        "Loading model weights took 3.2 s",
		"starts: api_key='sk-abc', port=8000":                     "starts: api_key=…, port=8000",
		"Namespace(port=1,api_key='x y',seed=0)":                  "Namespace(port=1,api_key=…,seed=0)",
		`{"apiKey": "x", "port": 1}`:                              `{"apiKey": …, "port": 1}`,
		"HF_TOKEN=hf_abcdefgh loaded":                             "HF_TOKEN=… loaded",
		"--api-key hunter2 --port 80":                             "--api-key … --port 80",
		"header Authorization: Bearer abc.def next":               "header Authorization: … next",
		"header Bearer abc.def next":                              "header Bearer … next",
		"GET https://user:pw@host/x?sig=1 failed":                 "GET … failed",
		"token hf_AbCdEfGhIjKlMnOp for meta-llama/Llama-3.1-8B":   "token … for meta-llama/Llama-3.1-8B",
		"https://huggingface.co/meta-llama/Llama-3.1-8B-Instruct": "https://huggingface.co/meta-llama/Llama-3.1-8B-Instruct",
		"256 tokens per second, max_tokens=4096":                  "256 tokens per second, max_tokens=4096",
		"x:token=abc":                                             "x:token=…",
		"key (sk-sluice-0123456789abcdef) refused":                "key (…) refused",
		"the tokenizer is ready, key value cache: 4 GiB":          "the tokenizer is ready, key value cache: 4 GiB",
		"jwt eyJhbGciOi.eyJzdWIi.c2ln ok":                         "jwt … ok",
		"task-based, disk-full, monkey=1, keyboard: us":           "task-based, disk-full, monkey=1, keyboard: us",
	} {
		if got := Text(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestX15_RedactorHidesItsValues(t *testing.T) {
	t.Parallel()
	r := ForEnvironment(map[string]string{
		"LEVEL": "verbose", "MY_API_KEY": "plainlooking", "MODE_KEY": "on", "ANY": "first line\nsecond line\n", "SHORT": "12345",
	}, []string{"ANY", "SHORT", "ABSENT"})
	for text, want := range map[string]string{
		"logging is verbose, on: 12345": "logging is verbose, on: 12345",
		"read plainlooking/x":           "read …/x",
		"a second line, a first line":   "a …, a …",
	} {
		if got := r.Text(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if got := New("abcdef", "abcdefgh").Text("abcdefgh abcdef"); got != "… …" {
		t.Errorf("a value that begins with another: %q", got)
	}
}

func FuzzText(f *testing.F) {
	f.Add("api_key=x --token y Bearer z https://u:p@h/", "secret-value")
	f.Fuzz(func(t *testing.T, text, value string) {
		r := New(value)
		got := r.Text(text + value)
		if len(r.values) == 1 && !strings.Contains(value, "…") && strings.Contains(got, r.values[0]) {
			t.Errorf("the value is left in %q", got)
		}
	})
}

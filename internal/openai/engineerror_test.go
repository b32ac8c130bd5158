package openai

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var engineErrors = map[string]EngineError{
	`{"error":{"message":"too long","type":"BadRequestError","param":"messages","code":400}}`: {
		Message: "too long", Type: "BadRequestError", Param: "messages", Status: 400},
	`{"error":{"message":"m","code":"context_length_exceeded","param":null}}`:                   {Message: "m", Code: "context_length_exceeded"},
	`{"error":{"code":503},"code":400,"message":"m"}`:                                           {Message: "m", Status: 503},
	`{"error":{"message":"m","code":7}}`:                                                        {Message: "m"},
	`{"error":"Unauthorized"}`:                                                                  {Message: "Unauthorized"},
	`{"error":"overloaded","error_type":"overloaded"}`:                                          {Message: "overloaded"},
	`{"object":"error","message":"old","type":"t","param":"p","code":404}`:                      {Message: "old", Type: "t", Param: "p", Status: 404},
	`{"type":"error","code":"server_error","message":"m","param":null}`:                         {Message: "m", Type: "error", Code: "server_error"},
	`{"detail":"Not Found"}`:                                                                    {Message: "Not Found"},
	`{"detail":[{"msg":"x"}]}`:                                                                  {Message: `[{"msg":"x"}]`},
	`{"detail":null}`:                                                                           {},
	`{"detail":"d","message":"m","error":{"message":"e"}}`:                                      {Message: "e"},
	`{"detail":"d","message":"m","error":{}}`:                                                   {Message: "m"},
	`{"error":{"code":"queue_full","message":"a\u00e9\n","retry_after_ms":1500}}`:               {Message: "aé\n", Code: "queue_full", RetryAfter: 1500 * time.Millisecond},
	`{"error":{"message":{"x":1},"type":["t"],"code":{},"param":3,"retry_after_ms":-1},"x":[]}`: {},
	"{\"error\":\"a\xffb\"}":                                                                    {Message: "a\ufffdb"},
	`{"err\u006fr":"escaped"}`:                                                                  {Message: "escaped"},
	`{"error":{"message":"cut"}`:                                                                {},
	`{"error":null}`:                                                                            {},
	`"words"`:                                                                                   {},
	`<html>`:                                                                                    {},
	``:                                                                                          {},
	`{"error":` + strings.Repeat("[", 1000) + `}`:                                               {},
}

func TestParseEngineError(t *testing.T) {
	t.Parallel()
	for body, want := range engineErrors {
		if diff := cmp.Diff(want, ParseEngineError([]byte(body))); diff != "" {
			t.Errorf("%.80s:\n%s", body, diff)
		}
	}
	e := &Error{Code: CodeQueueFull, Message: "Full.", Param: "model", RetryAfter: 90 * time.Second}
	want := EngineError{Message: "Full.", Type: "rate_limit_error", Code: "queue_full", Param: "model", RetryAfter: 90 * time.Second}
	if diff := cmp.Diff(want, ParseEngineError(e.EventData())); diff != "" {
		t.Errorf("an error of a gateway:\n%s", diff)
	}
}

// FuzzParseEngineError compares with encoding/json, for bodies with an error object in which each
// member is there once.
func FuzzParseEngineError(f *testing.F) {
	for body := range engineErrors {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		got := ParseEngineError(body)
		if !json.Valid(body) && got != (EngineError{}) {
			t.Fatalf("%q is no JSON and reads %+v", body, got)
		}
		var outer struct {
			Error struct{ Message *string }
		}
		if strings.Count(string(body), "essage") == 1 && strings.Count(string(body), "rror") == 1 &&
			strings.HasPrefix(string(body), `{"error":{"message":"`) && depthOf(body) < 200 &&
			json.Unmarshal(body, &outer) == nil && outer.Error.Message != nil && *outer.Error.Message != "" &&
			strings.ReplaceAll(*outer.Error.Message, "\ufffd", "") != strings.ReplaceAll(got.Message, "\ufffd", "") {
			t.Fatalf("%q reads %q, encoding/json reads %q", body, got.Message, *outer.Error.Message)
		}
	})
}

func TestReportedError(t *testing.T) {
	for data, want := range map[string]Error{
		`{"error":{"message":"m","type":"t","param":"p","code":400}}`: {Code: "invalid_request", Message: "m", Param: "p", Status: 400, EngineType: "t"},
		`{"error":{"message":"m","code":503,"retry_after_ms":2000}}`:  {Code: "upstream_error", Message: "m", Status: 503, RetryAfter: 2 * time.Second},
		`{"error":{"message":"m","code":500}}`:                        {Code: "upstream_error", Message: "m", Status: 502},
		`{"error":{"message":"m","code":"odd"}}`:                      {Code: "odd", Message: "m", Status: 502},
		`{"error":{"message":"m","code":"queue_full"}}`:               {Code: "queue_full", Message: "m"},
		`{"error":{}}`: {Code: "upstream_error", Message: "The engine could not finish its answer.", Status: 502},
	} {
		if diff := cmp.Diff(want, *ReportedError([]byte(data))); diff != "" {
			t.Errorf("%s: %s", data, diff)
		}
	}
}

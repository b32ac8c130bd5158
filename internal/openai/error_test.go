package openai

import (
	"encoding/json"
	"errors"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestErrorStatus(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code      Code
		status    int
		kind      string
		retryable bool
	}{
		{CodeInvalidRequest, 400, "invalid_request_error", false},
		{CodeInvalidAPIKey, 401, "authentication_error", false},
		{CodeExpiredAPIKey, 401, "authentication_error", false},
		{CodeModelNotFound, 404, "invalid_request_error", false},
		{CodeRequestTimeout, 408, "invalid_request_error", true},
		{CodeRequestIDConflict, 409, "invalid_request_error", false},
		{CodeRequestTooLarge, 413, "invalid_request_error", false},
		{CodeRateLimited, 429, "rate_limit_error", true},
		{CodeQueueFull, 429, "rate_limit_error", true},
		{CodeUpstreamError, 502, "server_error", true},
		{CodeUpstreamTruncated, 502, "server_error", true},
		{CodeQueueTimeout, 503, "server_error", true},
		{CodeNoReplica, 503, "server_error", true},
		{CodeColdStartTimeout, 503, "server_error", true},
		{CodeGatewayUnavailable, 503, "server_error", true},
		{CodeUpstreamTimeout, 504, "server_error", true},
		{Code("new"), 500, "server_error", false},
	} {
		e := Errorf(c.code, "why")
		if e.HTTPStatus() != c.status || e.Type() != c.kind || e.Retryable() != c.retryable {
			t.Errorf("%s: %d, %s, retryable %v; want %d, %s, %v", c.code, e.HTTPStatus(), e.Type(), e.Retryable(),
				c.status, c.kind, c.retryable)
		}
		if (e.RetryAfterSeconds() != "") != c.retryable {
			t.Errorf("%s: Retry-After %q", c.code, e.RetryAfterSeconds())
		}
	}
	if e := (&Error{Code: CodeInvalidRequest, Status: 415}); e.HTTPStatus() != 415 {
		t.Errorf("a status of its own does not win: %d", e.HTTPStatus())
	}
}

func TestErrorRetryAfter(t *testing.T) {
	t.Parallel()
	for after, want := range map[time.Duration]string{
		0: "1", time.Millisecond: "1", time.Second: "1", time.Second + 1: "2", 90 * time.Second: "90", -time.Second: "1",
	} {
		if got := (&Error{Code: CodeRateLimited, RetryAfter: after}).RetryAfterSeconds(); got != want {
			t.Errorf("after %v: Retry-After %q; want %q", after, got, want)
		}
	}
}

func TestErrorBody(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  *Error
		want string
	}{
		{Errorf(CodeModelNotFound, "no %s", `"x"`),
			`{"error":{"message":"no \"x\"","type":"invalid_request_error","code":"model_not_found","param":null}}`},
		{&Error{Code: CodeInvalidRequest, Message: "model is missing.", Param: "model"},
			`{"error":{"message":"model is missing.","type":"invalid_request_error","code":"invalid_request","param":"model"}}`},
	} {
		if diff := cmp.Diff(c.want, string(c.err.Body())); diff != "" {
			t.Error(diff)
		}
	}
	var target *Error
	if err := error(Errorf(CodeQueueFull, "full")); !errors.As(err, &target) || err.Error() != "queue_full: full" {
		t.Errorf("as an error: %v", err)
	}
}

func TestModelList(t *testing.T) {
	t.Parallel()
	created := time.Unix(1700000000, 5)
	for want, list := range map[string]ModelList{
		`{"object":"list","data":[]}`: NewModelList(),
		`{"object":"list","data":[{"id":"m","object":"model","created":1700000000,"owned_by":"sluice"}]}`: NewModelList(
			NewModelCard("m", "sluice", created)),
	} {
		if got, err := json.Marshal(list); err != nil || string(got) != want {
			t.Errorf("%s, %v; want %s", got, err, want)
		}
	}
}

func TestR9_ParseRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2030, 5, 4, 3, 2, 1, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"": 0, "0": 0, "7": 7 * time.Second, "-1": 0, "soon": 0, "1.5": 0, "99999999999999": 0, "999999999": 24 * time.Hour,
		"Sat, 04 May 2030 03:02:31 GMT": 30 * time.Second, "Sat, 04 May 2030 03:02:00 GMT": 0,
	} {
		if got := ParseRetryAfter(value, now); got != want {
			t.Errorf("%q: %v, want %v", value, got, want)
		}
	}
	for status, want := range map[int]Code{400: CodeInvalidRequest, 401: CodeUpstreamError, 404: CodeInvalidRequest, 408: CodeUpstreamTimeout,
		413: CodeRequestTooLarge, 422: CodeInvalidRequest, 429: CodeRateLimited, 500: CodeUpstreamError, 503: CodeUpstreamError, 504: CodeUpstreamTimeout} {
		if got := CodeOfStatus(status); got != want {
			t.Errorf("%d: %s, want %s", status, got, want)
		}
	}
}

// TestR6_ShouldRetry: clients must not repeat by themselves what their own timeout has ended, and
// may repeat what failed on the side of the gateway.
func TestR6_ShouldRetry(t *testing.T) {
	t.Parallel()
	for code, want := range map[Code]string{
		CodeRequestTimeout: "false", CodeClientTooSlow: "false", CodeRequestIDConflict: "false",
		CodeInvalidAPIKey: "false", CodeExpiredAPIKey: "false", CodeInsufficientQuota: "false",
		CodeRateLimited: "", CodeNoReplica: "", CodeUpstreamError: "", CodeInvalidRequest: "",
	} {
		w := httptest.NewRecorder()
		(&Error{Code: code}).Answer(w)
		if got := w.Header().Get("x-should-retry"); got != want {
			t.Errorf("%s: x-should-retry %q, want %q", code, got, want)
		}
	}
}

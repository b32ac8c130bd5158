package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Each filter of the admin API is a flag of the command requests.
func TestO8_RequestsHasTheFiltersOfTheAPI(t *testing.T) {
	t.Parallel()
	var asked url.Values
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.URL.Query()
		_, _ = w.Write([]byte(`{"running":0,"requests":[]}`))
	}))
	defer server.Close()
	for _, test := range []struct {
		args []string
		want url.Values
	}{
		{nil, url.Values{"limit": {"20"}}},
		{[]string{"--model", "org/a b", "--tenant", "acme", "--replica", "chat-0", "--status", "5xx", "--code", "queue_full", "--state", "queued",
			"--client-request-id", "mine&1", "--limit", "3"},
			url.Values{"model": {"org/a b"}, "tenant": {"acme"}, "replica": {"chat-0"}, "status": {"5xx"}, "code": {"queue_full"}, "state": {"queued"},
				"client_request_id": {"mine&1"}, "limit": {"3"}}},
	} {
		c, out := newRequestsCommand(), new(bytes.Buffer)
		c.SetArgs(append(test.args, "--admin", server.URL))
		c.SetOut(out)
		if err := c.Execute(); err != nil || out.String() != "There is no request.\n" {
			t.Errorf("%v: %v, %q", test.args, err, out)
		}
		if diff := cmp.Diff(test.want, asked); diff != "" {
			t.Errorf("%v: %s", test.args, diff)
		}
	}
}

// A request that has no model is shown by its path, so that it can be told from others.
func TestO8_RequestsWithoutAModelShowTheirPath(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	requestList{Running: 1, Requests: []requestRow{
		{RequestID: "a", State: "streaming", Path: "/v1/chat/completions", Model: "chat"},
		{RequestID: "b", State: "done", Status: 404, Code: "model_not_found", Path: "/schedule"},
	}}.write(&out)
	want := `(?s)^REQUEST +STATE +STATUS +MODEL OR PATH .*\na +streaming +- +chat .*\nb +done +404 model_not_found +/schedule .*\n1 request runs\.\n$`
	if !regexp.MustCompile(want).MatchString(out.String()) {
		t.Errorf("%s", &out)
	}
}

package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/console"
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
	}}.write(&out, 0)
	want := `(?s)^REQUEST +STATE +STATUS +MODEL OR PATH .*\na +streaming +- +chat .*\nb +done +404 model_not_found +/schedule .*\n1 request runs\.\n$`
	if !regexp.MustCompile(want).MatchString(out.String()) {
		t.Errorf("%s", &out)
	}
}

// On a terminal no line of a table is wider than the terminal, and ids that other commands take are
// whole, as are the reasons of replicas.
func TestO8_TablesFitTheTerminal(t *testing.T) {
	t.Parallel()
	const id, replica, reason = "0b8c4766-437a-421f-9e6b-5a83702869f3", "mistral-small-0", "it has answered its health check for ten minutes with status 503, so Sluice starts it again"
	requests := requestList{Running: 1, Requests: []requestRow{{RequestID: id, State: "done", Status: 503, Code: "gateway_unavailable", Tenant: "a-tenant-of-the-file",
		Model: "mistralai/Mistral-Small-3.2-24B-Instruct-2506", Route: "managed", Replica: replica, DurationMS: 1234}}}
	replicas := []replicaRow{{ID: replica, Model: "mistralai/Mistral-Small-3.2-24B-Instruct-2506", State: "failed", Node: "node-of-the-rack-7", Address: "10.20.30.40:51234", Reason: reason}}
	for _, columns := range []int{0, 60, 80, 120, 400} {
		var table, list bytes.Buffer
		requests.write(&table, columns)
		writeReplicas(&list, replicas, columns)
		for _, text := range []string{table.String(), list.String()} {
			for line := range strings.Lines(text) {
				if isReason := strings.HasPrefix(line, replica+": "); columns > 0 && !isReason && console.Columns(strings.TrimSpace(line)) > columns {
					t.Errorf("wider than %d columns: %s", columns, line)
				}
			}
		}
		if !strings.Contains(table.String(), id) || !strings.Contains(list.String(), replica+" ") || !strings.Contains(list.String(), reason) {
			t.Errorf("an id or a reason is cut at %d columns:\n%s%s", columns, &table, &list)
		}
	}
}

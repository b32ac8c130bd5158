package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

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
	want := `(?s)^REQUEST +STATE +STATUS +MODEL OR PATH .*\na +streaming +- +chat .*\nb +done +404 model_not_found +/schedule .*\n1 request runs or waits\.\n$`
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

// A terminal of 80 columns shows how long a request took and what became of it.
func TestO8_RequestsShowTheirDurationOn80Columns(t *testing.T) {
	t.Parallel()
	const id = "0b8c4766-437a-421f-9e6b-5a83702869f3"
	list := requestList{Requests: []requestRow{
		{RequestID: id, State: "done", Status: 429, Code: "tenant_queue_timeout", Model: "meta-llama-3.1-70b-instruct", Tenant: "a-tenant", DurationMS: 30012},
		{RequestID: id, State: "streaming", Status: 200, Model: "chat", DurationMS: 421},
		{RequestID: id, State: "done", Status: 200, Model: "chat", DurationMS: 77},
	}}
	for _, columns := range []int{80, 100, 140} {
		var out bytes.Buffer
		list.write(&out, columns)
		want := `(?s)^REQUEST +STATE .* DURATION.*\n\S+ +429 tenant.* 30.01s.*\n\S+ +streaming .* 421ms.*\n\S+ +200 +chat .* 77ms`
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("%d columns:\n%s", columns, &out)
		}
	}
}

// The tables of models and keys fit a terminal of 80 columns. That of usage shows whole numbers,
// and below it their units.
func TestO8_OtherTablesOn80Columns(t *testing.T) {
	t.Parallel()
	var models, keys, usage bytes.Buffer
	writeModels(&models, []modelRow{{Name: "meta-llama-3.1-70b-instruct", State: "ready", Launcher: "kubernetes"}}, 80)
	keyList{Keys: []keyRow{{UsageKey: "a-tenant-of-the-file/0649943b", Name: "the laptop of someone", Models: []string{"*"}, Source: "runtime"}}}.write(&keys, 80)
	for line := range strings.Lines(models.String() + keys.String()) {
		if console.Columns(strings.TrimSpace(line)) > 80 {
			t.Errorf("wider than 80 columns: %s", line)
		}
	}
	answer := usageAnswer{Usage: []usageRow{{Tenant: "acme", Key: "acme/0649943b", Model: "meta-llama-3.1-70b", Requests: 12345678, PromptTokens: 1234567890123, CompletionTokens: 98765432109, Cost: 1234567.8}}}
	answer.write(&usage, []string{"tenant", "key", "model"}, 80)
	if want := `(?s)^KEY +MODEL +REQUESTS +PROMPT +COMPLETION +COST\nacme/0649943b .* 1234567890123 +98765432109 +1234567.8000\n`; !regexp.MustCompile(want).MatchString(usage.String()) {
		t.Errorf("%s", &usage)
	}
	if want := "\nPROMPT and COMPLETION count tokens. COST is in the currency of the prices.\n"; !strings.HasSuffix(usage.String(), want) {
		t.Errorf("%s, want units of the columns that it has", &usage)
	}
	usage.Reset()
	answer.write(&usage, []string{"model"}, 0)
	if want := "\nPROMPT, CACHED and COMPLETION count tokens. COST is in the currency of the prices.\nESTIMATED counts the requests whose tokens are estimated.\n"; !strings.HasSuffix(usage.String(), want) {
		t.Errorf("%s, want units of all columns", &usage)
	}
	usage.Reset()
	answer.Usage = append(answer.Usage, usageRow{Tenant: "by-a-proxy", Model: "meta-llama-3.1-70b", Requests: 1})
	answer.write(&usage, []string{"tenant", "key", "model"}, 80)
	if !strings.Contains(usage.String(), "\nby-a-proxy  ") {
		t.Errorf("nobody sees whose row has no key:\n%s", &usage)
	}
}

// The times of keys say that they are of UTC, whatever zone the gateway has told them in.
func TestO8_TimesOfKeysHaveAZone(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	ends := time.Date(2027, 1, 31, 18, 30, 0, 0, time.FixedZone("", 5*3600+1800))
	keyList{Keys: []keyRow{{UsageKey: "acme/0649943b", Models: []string{"*"}, Expires: ends, Source: "runtime"}}}.write(&out, 0)
	if !strings.Contains(out.String(), " 2027-01-31T13:00:00Z ") {
		t.Errorf("%s", &out)
	}
}

// The name of a model that leaves no room is cut, and stands whole below the table. The other
// columns of all models are there.
func TestO8_LongNamesLeaveTheOtherColumns(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"hf.co/unsloth/Qwen3-Coder-30B-A3B-Instruct-GGUF:UD-Q4_K_XL", strings.Repeat("m", 200)} {
		var out bytes.Buffer
		writeModels(&out, []modelRow{{Name: name, State: "failed", Queued: 7777}, {Name: "chat", State: "ready", Queued: 42}}, 80)
		table, below, _ := strings.Cut(out.String(), "Names that are cut above:\n")
		for line := range strings.Lines(table) {
			if console.Columns(strings.TrimSpace(line)) > 80 {
				t.Errorf("wider than 80 columns: %s", line)
			}
		}
		if want := `^MODEL +STATE .* QUEUED\n\S+… +failed .* 7777\nchat +ready .* 42\n$`; !regexp.MustCompile(want).MatchString(table) || below != name+"\n" {
			t.Errorf("the table of models is\n%s", &out)
		}
	}
}

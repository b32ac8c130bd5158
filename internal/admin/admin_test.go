package admin

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/request"
)

var noon = time.Date(2030, 5, 4, 12, 0, 0, 0, time.UTC)

// newSnapshot returns a fleet of three models. One is local, with a failed and a missing replica.
// One is discovered, and its name contains slashes and markup. One has no replicas.
func newSnapshot() *engines.Snapshot {
	f := engines.NewFleet()
	f.Set("test", engines.Part{
		Models: []engines.Model{
			{Name: "chat", Aliases: []string{"default"}, Task: engines.TextGeneration, Launcher: engines.Local, Desired: 3},
			{Name: "org/a<b>/limits", Launcher: engines.Upstream, Discovered: true},
			{Name: "empty", Launcher: engines.Local},
		},
		Replicas: []engines.Replica{
			{ID: "chat-0", Model: "chat", State: engines.Ready, Address: netip.MustParseAddrPort("127.0.0.1:41000"),
				Launcher: engines.Local, Node: "here", PID: 77, Since: noon, Restarts: 1, GPUs: "GPU-a,GPU-b", Resources: engines.Resources{CPU: 2, Memory: 1 << 30, GPU: 2}},
			{ID: "chat-1", Model: "chat", State: engines.Failed, Launcher: engines.Local, Node: "here", Reason: "exited with status 1\nout of memory",
				GPUs: "GPU-c", Resources: engines.Resources{CPU: 0.5, GPU: 0.25}},
			{ID: "10.0.0.5:8000", Model: "org/a<b>/limits", State: engines.Ready, Address: netip.MustParseAddrPort("10.0.0.5:8000"),
				Launcher: engines.Upstream},
		},
	})
	return f.Snapshot()
}

// newConfig returns a Config without limits of run time, and without what some tests set: Usage,
// Request, PlanReload, Actions, Keys, Chat, History and Events.
func newConfig() Config {
	snapshot := newSnapshot()
	return Config{
		Listen: "127.0.0.1:9090",
		Fleet:  func() *engines.Snapshot { return snapshot },
		Status: func() Status {
			nack := Nack{Type: "cluster", Resource: "model/chat", Message: "bad", Time: noon}
			return Status{
				Version: "1.2.3", PID: 7, Started: time.Now().Add(-time.Minute), Listen: "127.0.0.1:8080",
				Upgrade: UpgradeStatus{Failed: "exit status 1", FailedAt: noon, Predecessors: []Predecessor{{PID: 6, Version: "1.2.2", Requests: 4}}},
				Envoy: EnvoyStatus{State: "live", PID: 5, Version: "1.40.0", Adopted: true, Restarts: 2, Filter: "module",
					Predecessors: []Predecessor{{PID: 4, Version: "1.39.0", Requests: 38}}},
				XDS:    XDSStatus{Connected: true, Nacks: 1, LastNack: &nack},
				Config: ConfigStatus{Path: "/etc/sluice.yaml", Hash: "f00d", LoadedAt: noon, Faults: []string{"sluice.yaml:3: no"}, Held: true, NeedsRestart: []string{"listen"}},
				Shared: SharedStatus{Configured: true, Mode: "alone", Gateways: 3, Since: noon, LastError: "dial tcp"},
			}
		},
		NotReady: func() []string { return []string{"model chat has 1 of 3 replicas", "Envoy is starting"} },
		ModelLoad: func(model string) ModelLoad {
			if model != "chat" {
				return ModelLoad{Usable: min(len(snapshot.Models[model].Replicas), 1)}
			}
			return ModelLoad{Usable: 1, InFlight: 4, Queued: 2, QueuedBytes: 99,
				Limits: Limits{Weight: 2, MaxConcurrentRequests: 64, MaxTokensPerMinute: 600000, MaxPerReplica: 8, MaxQueue: 1000, QueueTimeout: time.Minute}}
		},
		ReplicaLoad: func(r engines.Replica) ReplicaLoad {
			if r.ID != "chat-0" {
				return ReplicaLoad{CloseDelimited: r.Launcher == engines.Upstream}
			}
			running, waiting, usage, tokens, age := 3, 0, 0.5, 16000, 1.5
			return ReplicaLoad{InFlight: 4, Served: 100, Max: 8, MaxFrom: "engine",
				Engine: &EngineNews{Name: "vllm", Running: &running, Waiting: &waiting, KVUsage: &usage, CacheTokens: &tokens, AgeSeconds: &age}}
		},
		Nodes: func() []engines.Node {
			return []engines.Node{{Name: "here", Labels: []string{"h100"}, Lost: true, Left: true, CPUs: 16, Memory: 64 << 30, Reason: "GPU 3 is lost", GPUs: []engines.GPU{
				{UUID: "GPU-a", Name: "A100", MemoryTotal: 40 << 30, MemoryUsed: 7}, {UUID: "GPU-b", Name: "A100", Index: 1},
				{UUID: "GPU-c", Name: "A100", Index: 2, MIG: true}, {UUID: "GPU-d", Name: "A100", Index: 2, MIG: true}}}, {}}
		},
		Upstreams: func() []Upstream {
			return []Upstream{{URL: "http://h:1", Replica: "h:1", Address: "10.0.0.5:1", Addresses: 4, State: "ready", Since: &noon,
				Discovered: true, List: true, Listed: []string{"a", "b"}, ListedCount: 2, Serves: []string{"a"}, Filtered: 1, Clashes: []string{"c"}, Refused: "odd"},
				{URL: "http://h:2", Replica: "h:2", State: "failed", Reason: "refused", Since: new(time.Time)}}
		},
		Requests: func(limit int) ([]request.Summary, int) {
			rows := []request.Summary{{ID: "r-1", ClientID: "mine", Method: "POST", Path: "/v1/chat/completions", Tenant: "acme", Model: "chat", Replica: "chat-0",
				Upstream: "127.0.0.1:41000", State: request.Done, Status: 200, Source: "engine", Stream: true, Attempts: 1, BytesIn: 10,
				Route: request.RouteManaged, Cause: request.CauseModeration, FinishReason: "content_filter", CompletionTokens: 7,
				Trace: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", BytesOut: 2000, Started: noon, Waited: 1500 * time.Microsecond, FirstByte: 20 * time.Millisecond, Duration: time.Second}}
			return rows[:min(limit, len(rows))], 3
		},
		Tenants: func() []Tenant {
			return []Tenant{{Name: "acme", InFlight: 1, Keys: 2, Priority: "interactive", Running: 3, Prefill: 1, Queued: 2,
				Quota:   map[string]LimitUse{"requests_per_minute": {Used: 100, Limit: 600, Remaining: 500, ResetsMS: 10000}},
				Budgets: []BudgetUse{{Per: "month", Of: "cost", Used: 41.5, Soft: 40, Hard: 50, Level: "soft", Resets: time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)}},
				Limits:  TenantLimits{Weight: 3, RequestsPerMinute: 600, TokensPerMinute: 5, MaxConcurrentStreams: 6, MaxPrefill: 8, MaxQueueBytes: 1 << 40}}}
		},
		Pools: func() []Pool {
			return []Pool{{Name: "auto", Models: []string{"chat", "empty"}, Queued: 2}, {Name: "none"}}
		},
		Pick: func(model string, q PickQuestion) (Pick, *openai.Error) {
			if q.Key == "bad" {
				return Pick{}, openai.Errorf(openai.CodeNoReplica, "The model `%s` has no replica.", model)
			}
			return Pick{Position: 1<<63 + 1, Picked: "chat-0", Reason: "cached", PromptTokens: 100, Replicas: []PickReplica{
				{ID: "chat-1", UncachedTokens: 100},
				{ID: "chat-0", Load: 4, Candidate: true, MatchedTokens: 64, UncachedTokens: 36, WaitingTokens: 500, Rate: 6000, Predicted: 90 * time.Millisecond}}}, nil
		},
		Conditions: func() []condition.Condition { return nil },
		Strategy:   func(string) string { return "" },
		Limits:     func(string) (v, file map[string]int64, patched []string, ok bool) { return nil, nil, nil, false },
		Access:     func() *Access { return nil },
		Reload:     func(context.Context, bool) error { return nil },
		Metrics:    http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "sluice_queued 0\n") }),
	}
}

func get(h http.Handler, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequest("GET", path, nil)
	r.Host = "localhost:9090"
	h.ServeHTTP(w, r)
	return w
}

const chatLimits = `{"weight":2,"max_concurrent_requests":64,"max_tokens_per_minute":600000,"max_per_replica":8,"max_prefill_per_replica":0,"max_queue":1000,
	"queue_timeout":"1m","patched":[],"file":{}}`

const noLimits = `{"weight":0,"max_concurrent_requests":0,"max_tokens_per_minute":0,"max_per_replica":0,"max_prefill_per_replica":0,"max_queue":0,
	"queue_timeout":"0s","patched":[],"file":{}}`

const acmeLimits = `{"weight":3,"requests_per_minute":600,"tokens_per_minute":5,"max_concurrent_streams":6,"max_prefill":8,
	"max_queue_bytes":1099511627776,"patched":[],"file":{}}`

const chatPick = `{"model":"chat","position":"8000000000000001","first":"chat-1","picked":"chat-0","reason":"cached",
	"why":"chat-0 is about as fast as any other replica, and has most of the prompt in its cache: 64 of 100 tokens.","prompt_tokens":100,
	"order":[{"id":"chat-1","load":0,"candidate":false},{"id":"chat-0","load":4,"candidate":true}],
	"replicas":[
		{"id":"chat-1","load":0,"candidate":false,"matched_tokens":0,"uncached_tokens":100,"waiting_tokens":0,"rate":0,"predicted_ms":0,"in_ring_order":0},
		{"id":"chat-0","load":4,"candidate":true,"matched_tokens":64,"uncached_tokens":36,"waiting_tokens":500,"rate":6000,"predicted_ms":90,"in_ring_order":1}]}`

func TestAPI(t *testing.T) {
	t.Parallel()
	h := New(newConfig())
	for _, c := range []struct {
		path   string
		status int
		want   string
	}{
		{"/healthz", 200, `{"status":"ok"}`},
		{"/readyz", 503, `{"ready":false,"reasons":["Envoy is starting","model chat has 1 of 3 replicas"]}`},
		{"/api/v1/models", 200, `{"models":[
			{"name":"chat","aliases":["default"],"task":"text-generation","launcher":"local","discovered":false,"state":"degraded","desired":3,
			 "replicas":2,"ready":1,"in_flight":4,"queued":2,"queued_bytes":99,"weight":2,"limits":` + chatLimits + `},
			{"name":"empty","aliases":[],"task":"","launcher":"local","discovered":false,"state":"idle","desired":0,
			 "replicas":0,"ready":0,"in_flight":0,"queued":0,"queued_bytes":0,"weight":0,"limits":` + noLimits + `},
			{"name":"org/a<b>/limits","aliases":[],"task":"","launcher":"upstream","discovered":true,"state":"ready","desired":0,
			 "replicas":1,"ready":1,"in_flight":0,"queued":0,"queued_bytes":0,"weight":0,"limits":` + noLimits + `}]}`},
		{"/api/v1/replicas", 200, `{"replicas":[
			{"id":"chat-0","model":"chat","served_model":"chat","state":"ready","address":"127.0.0.1:41000","in_flight":4,"max":8,"max_from":"engine","served":100,"launcher":"local",
			 "pid":77,"node":"here","reason":"","since":"2030-05-04T12:00:00Z","restarts":1,"gpus":["GPU-a","GPU-b"],"failed_starts":0,"failure":"","next_start":null,"close_delimited":false,
			 "engine":{"name":"vllm","running":3,"waiting":0,"kv_usage":0.5,"cache_tokens":16000,"cached_tokens":null,"prefill_rate":null,"slots":null,"age_s":1.5,"fault":""}},
			{"id":"chat-1","model":"chat","served_model":"chat","state":"failed","address":"","in_flight":0,"max":0,"max_from":"","served":0,"launcher":"local",
			 "node":"here","reason":"exited with status 1\nout of memory","since":null,"restarts":0,"gpus":["GPU-c"],"failed_starts":0,"failure":"","next_start":null,"close_delimited":false,"engine":null},
			{"id":"10.0.0.5:8000","model":"org/a<b>/limits","served_model":"org/a<b>/limits","state":"ready","address":"10.0.0.5:8000","in_flight":0,"max":0,"max_from":"","served":0,
			 "launcher":"upstream","node":"","reason":"","since":null,"restarts":0,"gpus":[],"failed_starts":0,"failure":"","next_start":null,"close_delimited":true,"engine":null}]}`},
		{"/api/v1/nodes", 200, `{"nodes":[{"name":"here","labels":["h100"],"lost":true,"left":true,"cpus":{"total":16,"placed":2.5},"memory":{"total":68719476736,"placed":1073741824},"reason":"GPU 3 is lost","gpus":[
			{"uuid":"GPU-a","name":"A100","index":0,"mig":false,"memory":{"total":42949672960,"used":7},"free":0,"replicas":[{"id":"chat-0","model":"chat","share":1}]},
			{"uuid":"GPU-b","name":"A100","index":1,"mig":false,"memory":{"total":0,"used":0},"free":0,"replicas":[{"id":"chat-0","model":"chat","share":1}]},
			{"uuid":"GPU-c","name":"A100","index":2,"mig":true,"memory":{"total":0,"used":0},"free":0.75,"replicas":[{"id":"chat-1","model":"chat","share":0.25}]},
			{"uuid":"GPU-d","name":"A100","index":2,"mig":true,"memory":{"total":0,"used":0},"free":1,"replicas":[]}]}]}`},
		{"/api/v1/upstreams", 200, `{"upstreams":[
			{"url":"http://h:1","replica":"h:1","address":"10.0.0.5:1","addresses":4,"state":"ready","reason":"","since":"2030-05-04T12:00:00Z","discovered":true,"list":true,
			 "listed":["a","b"],"listed_count":2,"serves":["a"],"filtered":1,"clashes":["c"],"refused":"odd"},
			{"url":"http://h:2","replica":"h:2","address":"","addresses":0,"state":"failed","reason":"refused","since":null,"discovered":false,"list":false,
			 "listed":[],"listed_count":0,"serves":[],"filtered":0,"clashes":[],"refused":""}]}`},
		{"/api/v1/requests?limit=5", 200, `{"running":3,"requests":[
			{"request_id":"r-1","client_request_id":"mine","method":"POST","path":"/v1/chat/completions","tenant":"acme","model":"chat","replica":"chat-0",
			 "upstream":"127.0.0.1:41000","state":"done","status":200,"code":"","source":"engine",
			 "route":"managed","cause":"moderation","finish_reason":"content_filter","tokens_out":7,"finish_estimated":false,"tokens_in":0,"estimated":true,"trace_id":"0af7651916cd43dd8448eb211c80319c","flags":"","details":"","stream":true,
			 "queued_ms":1.5,"first_byte_ms":20,"duration_ms":1000,"bytes_in":10,"bytes_out":2000,"attempts":1,
			 "started":"2030-05-04T12:00:00Z"}]}`},
		{"/api/v1/tenants", 200, `{"tenants":[{"name":"acme","models":[],"in_flight":1,"keys":2,"priority":"interactive","running":3,
			"prefill":1,"queued":2,"quota":{"requests_per_minute":{"used":100,"limit":600,"remaining":500,"resets_ms":10000}},
			"budgets":[{"key":"","per":"month","of":"cost","used":41.5,"soft":40,"hard":50,"level":"soft","resets":"2026-12-01T00:00:00Z"}],"weight":3,"limits":` + acmeLimits + `}]}`},
		{"/api/v1/tenants/acme/limits", 200, acmeLimits},
		{"/api/v1/tenants/nope/limits", 404, "{\"error\":{\"message\":\"The tenant `nope` does not exist. GET /api/v1/tenants lists the tenants.\",\"type\":\"invalid_request_error\",\"code\":\"invalid_request\",\"param\":null}}"},
		{"/api/v1/tenants/acme", 404, `{"error":{"message":"Unknown admin URL.","type":"invalid_request_error","code":"invalid_request","param":null}}`},
		{"/api/v1/pools", 200, `{"pools":[{"name":"auto","models":["chat","empty"],"queued":2},{"name":"none","models":[],"queued":0}]}`},
		{"/api/v1/models/chat/limits", 200, chatLimits},
		{"/api/v1/models/default/limits", 200, chatLimits},
		{"/api/v1/models/org/a%3Cb%3E/limits/limits", 200, noLimits},
		{"/api/v1/models/org%2Fa%3Cb%3E%2Flimits/limits", 200, noLimits},
		{"/api/v1/models/chat/pick?key=hello", 200, chatPick},
		{"/api/v1/models/chat/pick?key=", 200, chatPick},
		{"/api/v1/models/chat/pick", 400, `{"error":{"message":"The query parameter key is missing: name a cache key with ?key=…","type":"invalid_request_error","code":"invalid_request","param":"key"}}`},
		{"/api/v1/models/chat/pick?key=bad", 503, "{\"error\":{\"message\":\"The model `chat` has no replica.\",\"type\":\"server_error\",\"code\":\"no_replica\",\"param\":null}}"},
		{"/api/v1/models/nope/limits", 404, "{\"error\":{\"message\":\"The model `nope` does not exist. `sluice models` lists the models.\",\"type\":\"invalid_request_error\",\"code\":\"model_not_found\",\"param\":null}}"},
		{"/api/v1/models/chat", 404, `{"error":{"message":"Unknown admin URL.","type":"invalid_request_error","code":"invalid_request","param":null}}`},
		{"/v1/models", 404, `{"error":{"message":"Unknown admin URL. This is the listener for operators. Clients call the address of ` + "`listen`" + `.","type":"invalid_request_error","code":"invalid_request","param":null}}`},
		{"/nothing", 404, `{"error":{"message":"Unknown admin URL.","type":"invalid_request_error","code":"invalid_request","param":null}}`},
		{"/api/v1/requests?limit=x", 400, `{"error":{"message":"limit is \"x\": it must be a number from 1 to 1000.","type":"invalid_request_error","code":"invalid_request","param":"limit"}}`},
		{"/api/v1/requests?limit=1001", 400, `{"error":{"message":"limit is \"1001\": it must be a number from 1 to 1000.","type":"invalid_request_error","code":"invalid_request","param":"limit"}}`},
	} {
		w := get(h, c.path)
		if w.Code != c.status {
			t.Errorf("%s: status %d, want %d", c.path, w.Code, c.status)
		}
		if diff := cmp.Diff(parse(t, c.want), parse(t, w.Body.String())); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", c.path, diff)
		}
	}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	got := parse(t, get(New(newConfig()), "/api/v1/status").Body.String()).(map[string]any)
	if up := got["uptime_s"].(float64); up < 59 || up > 120 {
		t.Errorf("uptime_s is %v, want about 60", up)
	}
	delete(got, "uptime_s")
	delete(got, "started")
	want := parse(t, `{"version":"1.2.3","pid":7,"listen":"127.0.0.1:8080","tls":false,"ready":false,"reasons":["Envoy is starting","model chat has 1 of 3 replicas"],
		"envoy":{"state":"live","pid":5,"version":"1.40.0","adopted":true,"restarts":2,"reason":"","filter":"module",
			"predecessors":[{"pid":4,"version":"1.39.0","requests":38}]},
		"xds":{"connected":true,"nacks":1,"refused":[],
		       "last_nack":{"type":"cluster","resource":"model/chat","message":"bad","time":"2030-05-04T12:00:00Z"}},
		"config":{"path":"/etc/sluice.yaml","loaded_at":"2030-05-04T12:00:00Z","faults":["sluice.yaml:3: no"],"held":true,"needs_restart":["listen"]},
		"shared":{"configured":true,"up":false,"mode":"alone","gateways":3,"since":"2030-05-04T12:00:00Z","last_error":"dial tcp"},
		"upgrade":{"failed":"exit status 1","failed_at":"2030-05-04T12:00:00Z","predecessors":[{"pid":6,"version":"1.2.2","requests":4}]}}`)
	if diff := cmp.Diff(want, any(got)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestReady(t *testing.T) {
	t.Parallel()
	c := newConfig()
	c.NotReady = func() []string { return nil }
	w := get(New(c), "/readyz")
	if got := strings.TrimSpace(w.Body.String()); w.Code != 200 || got != `{"ready":true,"reasons":[]}` {
		t.Errorf("/readyz without a reason answers %d %s, want 200 and ready", w.Code, got)
	}
}

func TestModelState(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		desired int
		states  []engines.State
		want    string
	}{
		{0, nil, "idle"},
		{2, nil, "starting"},
		{2, []engines.State{engines.Pending, engines.Failed}, "starting"},
		{2, []engines.State{engines.Failed, engines.Failed}, "failed"},
		{2, []engines.State{engines.Ready, engines.Starting}, "degraded"},
		{1, []engines.State{engines.Ready, engines.Draining}, "ready"},
		{0, []engines.State{engines.Ready, engines.Failed}, "degraded"},
		{0, []engines.State{engines.Draining, engines.Stopped}, "draining"},
		{0, []engines.State{engines.Stopped}, "idle"},
	} {
		m, usable := &engines.ModelSnapshot{Model: engines.Model{Desired: c.desired}}, 0
		for _, s := range c.states {
			m.Replicas = append(m.Replicas, engines.Replica{State: s})
			if s == engines.Ready {
				usable++
			}
		}
		if got := modelState(m, ModelLoad{Usable: usable}); got != c.want {
			t.Errorf("%d replicas are desired and %v exist: state %s, want %s", c.desired, c.states, got, c.want)
		}
	}
}

// TestStateOfAModelWhoseReplicasGetNoRequests: replicas that are ready count once Envoy knows them.
func TestStateOfAModelWhoseReplicasGetNoRequests(t *testing.T) {
	t.Parallel()
	m := &engines.ModelSnapshot{Model: engines.Model{Desired: 2}, Replicas: []engines.Replica{{State: engines.Ready}, {State: engines.Ready}}}
	for want, load := range map[string]ModelLoad{
		"starting": {}, "starting ": {DrainedReplicas: 1}, "degraded": {DrainedReplicas: 2}, "degraded ": {Usable: 1}, "ready": {Usable: 2},
	} {
		if got := modelState(m, load); got != strings.TrimSpace(want) {
			t.Errorf("%+v: state %s, want %s", load, got, want)
		}
		c := newConfig()
		c.ModelLoad = func(string) ModelLoad { return load }
		if got := (&handler{Config: c}).viewModel(m).Ready; got != load.Usable {
			t.Errorf("%+v: %d are ready", load, got)
		}
	}
}

func TestReload(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		body   string
		force  bool
		err    error
		status int
		want   string
	}{
		{"", false, nil, 200, `{"reloaded":true}`},
		{"{}", false, nil, 200, `{"reloaded":true}`},
		{`{"force":true}`, true, nil, 200, `{"reloaded":true}`},
		{`{"force":"yes"}`, false, nil, 400, `{"error":{"message":"The body must be {} or {\"force\": true}: json: cannot unmarshal string into Go struct field .force of type bool.","type":"invalid_request_error","code":"invalid_request","param":null}}`},
		{`{"forse":true}`, false, nil, 400, `{"error":{"message":"The body must be {} or {\"force\": true}: json: unknown field \"forse\".","type":"invalid_request_error","code":"invalid_request","param":null}}`},
		{"{}", false, errors.New("sluice.yaml:3: no"), 422, `{"error":{"message":"sluice.yaml:3: no","type":"invalid_request_error","code":"invalid_request","param":null}}`},
	} {
		cfg := newConfig()
		cfg.Reload = func(_ context.Context, force bool) error {
			if c.status == 400 {
				t.Errorf("%s: reloaded", c.body)
			}
			if force != c.force {
				t.Errorf("%s: forced %t", c.body, force)
			}
			return c.err
		}
		w := httptest.NewRecorder()
		r := httptest.NewRequest("POST", "/api/v1/reload", strings.NewReader(c.body))
		r.Host = "localhost"
		r.Header.Set("Content-Type", "application/json; charset=utf-8")
		New(cfg).ServeHTTP(w, r)
		if got := strings.TrimSpace(w.Body.String()); w.Code != c.status || got != c.want {
			t.Errorf("Reload returned %v: the answer is %d %s, want %d %s", c.err, w.Code, got, c.status, c.want)
		}
	}
}

func parse(t *testing.T, s string) any {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(s), &v); err != nil {
		t.Fatalf("%v: %s", err, s)
	}
	return v
}

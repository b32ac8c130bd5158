package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// parsed returns the configuration of a file without faults.
func parsed(t *testing.T, file string) *Config {
	t.Helper()
	c, err := Parse("testdata/f", []byte(file))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// defaultColdStart is what a model has that sets none of it.
var defaultColdStart = ColdStart{Wait: 10 * time.Minute, LoadTimeout: 30 * time.Minute, Stall: 5 * time.Minute}

// allStatuses is the default of fail_over_on.
var allStatuses = []StatusClass{Status429, Status503, Status5xx}

// TestDefaults checks the defaults of a file with one model, one tenant and one engine.
func TestDefaults(t *testing.T) {
	t.Parallel()
	c := parsed(t, "models: [{name: a, engine: sim, task: embedding}]\ntenants: [{name: t, keys: ["+zeros+"]}]\n"+
		"engines: [{name: e, versions: [{version: 1, tasks: [rerank], command: [run]}]}]")
	home, err := os.UserHomeDir()
	if err != nil {
		t.Fatal(err)
	}
	if state := os.Getenv("XDG_STATE_HOME"); state == "" && c.StateDir != filepath.Join(home, ".local/state/sluice") {
		t.Errorf("state_dir: %s", c.StateDir)
	}
	c.StateDir, c.Hash = "", ""
	want := &Config{
		Listen:        "0.0.0.0:8080",
		Admin:         "127.0.0.1:9090",
		MaxBody:       32 << 20,
		MaxQueueBytes: 1 << 30,
		MaxHeaders:    100, MaxHeaderBytes: 60 << 10,
		Connections:  Connections{FirstRequest: 10 * time.Second},
		Upload:       Upload{MinRate: 32 << 10, Grace: 10 * time.Second},
		Envoy:        Envoy{HangTimeout: 30 * time.Second, Filter: FilterAuto},
		Memory:       Memory{MaxAnswer: 64 << 20},
		Realtime:     Realtime{MaxSockets: 10_000, Idle: 10 * time.Minute},
		DrainTimeout: 30 * time.Second, UpgradeTimeout: time.Hour,
		OrphanGrace:   time.Minute,
		ReplicaHeader: true,
		LogRequests:   true,
		AccessLog:     AccessLog{To: AccessLogAuto, MaxSize: 100 << 20, MaxFiles: 5, Sample: 1},
		RedisTimeout:  50 * time.Millisecond,
		TaskLease:     15 * time.Minute,
		TaskLifetime:  4 * time.Hour,
		Usage:         Usage{HourlyDays: 90, DailyDays: 1095},
		Auth:          Auth{Mode: AuthKeys},
		Tenants: []Tenant{{Name: "t", Keys: []Key{{Hash: zeros, Priority: DefaultPriority}}, Models: []string{"*"}, Weight: 1,
			Priority: DefaultPriority}},
		Engines: []Engine{{Name: "e", Versions: []EngineVersion{{Version: "1", Tasks: []engines.Task{engines.Rerank}, Command: []string{"run"},
			Ready:  ReadyProbe{Path: "/health", Every: 500 * time.Millisecond},
			Health: HealthProbe{Path: "/health", Every: 10 * time.Second}}}}},
		Models: []Model{{
			Name: "a", Task: engines.Embedding, Engine: "sim", Version: "1", Table: "1", Launcher: engines.Local, Protocol: ProtocolHTTP, RerankAPI: RerankOpenAI,
			Routes: OptionalRoutes(), Usage: engines.UsageContinuous,
			Replicas: Replicas{Min: 1, Max: 1}, Hosts: 1, Placement: Spread,
			Evict: EvictNever, Cooldown: 5 * time.Minute, ColdStart: defaultColdStart,
			UnhealthyOn: []Failure{FailConnect, Fail5xx}, FailOverOn: allStatuses,
			Routing: Routing{Strategy: Prefix, VirtualNodesPerReplica: 100, LoadFactor: 1.25, LoadFloor: 8, SlowStart: 10 * time.Second,
				MaxUserMessagesForCache: 2},
			Admission: Admission{Weight: 1, MaxPerReplica: 0, MaxQueue: 1000, QueueTimeout: time.Minute},
			Stream:    streamWith(StreamAuto, 30*time.Minute),
		}},
		Discovered: Discovered{
			Routing: Routing{Strategy: Prefix, VirtualNodesPerReplica: 100, LoadFactor: 1.25, LoadFloor: 8, SlowStart: 10 * time.Second,
				MaxUserMessagesForCache: 2},
			Admission: Admission{Weight: 1, MaxQueue: 1000, QueueTimeout: time.Minute}, Stream: streamWith(StreamAuto, 30*time.Minute),
			UnhealthyOn: []Failure{FailConnect, FailReset, Fail5xx, Fail503}, FailOverOn: allStatuses,
		},
	}
	if diff := cmp.Diff(want, c, ignorePrivate); diff != "" {
		t.Error(diff)
	}
}

// TestEveryField checks a file that sets every field.
func TestEveryField(t *testing.T) {
	t.Parallel()
	c, err := Load("testdata/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	here, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	c.Hash = ""
	schema := map[string]any{"type": "object", "additionalProperties": false, "properties": map[string]any{
		"dtype": map[string]any{"enum": []any{"auto", "half"}, "default": "auto"}}}
	want := &Config{
		Listen: "127.0.0.1:80", Admin: "[::1]:81", MaxBody: 1 << 20, MaxQueueBytes: 2e6, DrainTimeout: time.Second, UpgradeTimeout: 2 * time.Hour, MaxHeaders: 50, MaxHeaderBytes: 8 << 10,
		Connections: Connections{Max: 900, PerSource: 100, TrustedProxies: []string{"10.0.0.5", "fd00::/8"}, FirstRequest: 5 * time.Second},
		Upload:      Upload{MinRate: 1 << 10, Grace: 5 * time.Second, MaxBytes: 64 << 20, PerTenant: 16},
		Envoy:       Envoy{Memory: 512 << 20, HangTimeout: time.Minute, Filter: FilterExtProc},
		Memory:      Memory{Limit: 1 << 30, Relay: 256 << 20, MaxAnswer: 32 << 20},
		Realtime:    Realtime{MaxSockets: 500, PerTenant: 20, Idle: 5 * time.Minute},
		StateDir:    filepath.Join(here, "state"), OrphanGrace: 90 * time.Second, Control: Control{Nodes: "127.0.0.1:82"},
		LogRequests: true, AccessLog: AccessLog{To: AccessLogFile, Path: filepath.Join(here, "access.log"), MaxSize: 1 << 20, MaxFiles: 2, Sample: 0.5},
		Redis: &Redis{URL: "rediss://sluice:pass@10.0.0.9:6380,10.0.0.10/2", ServerName: "redis.internal",
			Sentinel: &Sentinel{Master: "main", Username: "watcher", Password: "12"}},
		RedisTimeout: 300 * time.Millisecond,
		TaskLease:    time.Minute, TaskLifetime: 2 * time.Minute, Auth: Auth{Mode: AuthNone}, CORS: CORS{Origins: []string{"https://app.example.com", "http://localhost:5173"}}, Usage: Usage{HourlyDays: 30, DailyDays: 400},
		Tenants: []Tenant{{Name: "acme", Keys: []Key{{Hash: zeros, Priority: Interactive}, {Hash: ones, Priority: Batch, Expires: time.Date(2027, 1, 31, 0, 0, 0, 0, time.UTC)}},
			Models: []string{"chat", "any"}, Weight: 3, Priority: Interactive, Limits: TenantLimits{RequestsPerMinute: 600,
				TokensPerMinute: 200000, MaxConcurrentStreams: 50, MaxPrefill: 8, MaxQueueBytes: 16 << 20}}},
		Engines: []Engine{{Name: "own", Versions: []EngineVersion{{
			Version: "0.10", Tasks: []engines.Task{engines.TextGeneration, engines.Embedding}, Schema: schema,
			TaskVariables: map[engines.Task]map[string]any{engines.Embedding: {"runner": "pooling"}},
			Command:       []string{"own", "{{.Model}}", "--port", "{{.Port}}", "{{.Flags}}"}, Image: "own/own:0.10",
			Kubernetes: "spec: {template: {spec: {nodeSelector: {zone: a}}}}",
			Ready:      ReadyProbe{Path: "/ready", Every: time.Second},
			Health:     HealthProbe{Path: "/live", Every: 2 * time.Second}, Slots: Slots{Default: 16},
			Flags:   FlagStyle{Underscores: true, BooleanValues: true, Lists: engines.ListArguments},
			Env:     map[string]string{"OWN_DTYPE": "{{.Variables.dtype}}"},
			Metrics: Metrics{Path: "/metrics", Running: "own_running", Waiting: "own_waiting", KVUsage: "own_kv_usage"}}}}},
		Registries: []Registry{{Name: "hub", Kind: HuggingFace}, {Name: "local", Kind: Directory, Path: filepath.Join(here, "models")},
			{Name: "volume", Kind: Directory, Path: "/weights", Claim: "weights"}},
		Nodes:      []Node{{Name: "gpu-1", Labels: []string{"h100", "rack-1"}}},
		Kubernetes: &Kubernetes{Kubeconfig: filepath.Join(here, "kube"), Context: "prod", Namespace: "llm", Name: "own"},
		Ray:        &Ray{Address: "http://head:8265", Name: "own", Ports: "30000-30999", FirstPort: 30000, LastPort: 30999},
		Models: []Model{
			{Name: "chat", Aliases: []string{"default"}, Adapters: []string{"chat-sql"}, Task: engines.TextGeneration, Engine: "own", Version: "0.10", Table: "0.10",
				Source: &Source{Registry: "local", Name: "a.gguf"}, Launcher: engines.Local, Protocol: ProtocolHTTP, RerankAPI: RerankOpenAI, Cluster: "h100", Replicas: Replicas{Min: 2, Max: 3},
				Scale:     Scale{Target: ScaleTarget{Running: 4}},
				Resources: &Resources{CPU: 1.5, Memory: 16 << 30, GPU: 0.5}, Hosts: 1, Placement: Pack, Evict: EvictIdle,
				Prices:      Prices{Prompt: 0.15, Cached: new(0.05), Completion: 0.6},
				UnhealthyOn: []Failure{FailConnect, Fail503}, FailOverOn: []StatusClass{Status429}, PermitFields: []GuardedField{"chat_template", "rid"},
				MediaHosts: []string{"public", "*.images.lan:9000", "10.0.0.0/8"},
				Variables:  map[string]any{"dtype": "half"}, Env: map[string]string{"HOME": "/models", "N": "010"}, Cooldown: 5 * time.Minute, ColdStart: ColdStart{Wait: time.Minute, LoadTimeout: 30 * time.Minute, Stall: 5 * time.Minute}, ColdStartTimeout: time.Minute,
				Routing: Routing{Strategy: CHWBL, VirtualNodesPerReplica: 50, LoadFactor: 2, MaxUserMessagesForCache: 1},
				Admission: Admission{Weight: 3, MaxConcurrentRequests: 64, MaxTokensPerMinute: 600000, MaxPerReplica: 4, MaxPrefillPerReplica: 2,
					MaxQueue: 10, QueueTimeout: time.Second},
				Stream: streamWith(StreamNative, time.Hour)},
			{Name: "fast", Launcher: engines.Upstream, Protocol: ProtocolHTTP, RerankAPI: RerankOpenAI, Upstreams: []Upstream{{URL: "http://10.0.0.5:8000", Resolve: ResolveFirst}, {URL: "http://gpu-1:80", APIPath: "/v1beta/openai", Resolve: ResolveFirst},
				{URL: "https://gpu-2:443/api", Headers: map[string]string{"X-Team": "a"}, RequestHeaders: map[string]string{"x-team": "a"}, InsecureSkipVerify: true, Resolve: ResolveFirst}}, Hosts: 1, Placement: Spread, Evict: EvictNever, Cooldown: 5 * time.Minute, ColdStart: defaultColdStart,
				UnhealthyOn: []Failure{FailConnect, FailReset, Fail5xx, Fail503}, FailOverOn: allStatuses,
				Routing:   Routing{Strategy: RoundRobin, VirtualNodesPerReplica: 100, LoadFactor: 1.25, SlowStart: time.Minute, MaxUserMessagesForCache: 2},
				Admission: Admission{Weight: 1, MaxQueue: 1000, QueueTimeout: time.Minute}, Stream: streamWith(StreamAuto, 30*time.Minute)},
			{Name: "pods", Task: engines.TextGeneration, Engine: "own", Version: "0.10", Table: "0.10", Source: &Source{Registry: "volume", Name: "b.gguf"},
				Launcher: engines.Kubernetes, Protocol: ProtocolHTTP, RerankAPI: RerankOpenAI, Cluster: "other/llm-2", Replicas: Replicas{Min: 1, Max: 1}, Resources: &Resources{GPU: 0.5},
				GPUResource: "nvidia.com/gpu.shared", Hosts: 1, Placement: Spread, Evict: EvictNever, Secrets: map[string]string{"HF_TOKEN": "hf/token"},
				Cooldown: 5 * time.Minute, ColdStart: defaultColdStart, UnhealthyOn: []Failure{FailConnect, Fail5xx}, FailOverOn: allStatuses,
				Routing: Routing{Strategy: Prefix, VirtualNodesPerReplica: 100, LoadFactor: 1.25, LoadFloor: 8, SlowStart: 10 * time.Second,
					MaxUserMessagesForCache: 2},
				Admission: Admission{Weight: 1, MaxQueue: 1000, QueueTimeout: time.Minute},
				Stream:    streamWith(StreamAuto, 30*time.Minute)},
			{Name: "elsewhere", Launcher: engines.None, Protocol: ProtocolHTTP, RerankAPI: RerankOpenAI, Hosts: 1, Placement: Spread, Evict: EvictNever, Cooldown: 5 * time.Minute, ColdStart: defaultColdStart,
				Routing: Routing{Strategy: Prefix, VirtualNodesPerReplica: 100, LoadFactor: 1.25, LoadFloor: 8, SlowStart: 10 * time.Second,
					MaxUserMessagesForCache: 2},
				Admission: Admission{Weight: 1, MaxConcurrentRequests: 5, MaxQueue: 1000, QueueTimeout: time.Minute},
				Stream:    streamWith(StreamAuto, 30*time.Minute)},
		},
		Upstreams: []Upstream{{URL: "http://[::1]:8000", Slots: 8, Models: []string{"qwen*", "chat"}, Resolve: ResolveAll, Health: UpstreamHealth{Path: "/live"}}},
		Discovered: Discovered{
			Routing:   Routing{Strategy: LeastConnections, VirtualNodesPerReplica: 100, LoadFactor: 1.25, SlowStart: time.Second, MaxUserMessagesForCache: 2},
			Admission: Admission{Weight: 2, MaxPerReplica: 3, MaxQueue: 1000, QueueTimeout: time.Minute}, Stream: streamWith(StreamNative, time.Hour),
			UnhealthyOn: []Failure{FailConnect}, FailOverOn: []StatusClass{Status503}, PermitFields: []GuardedField{"models"}, MediaHosts: []string{}, StrategySet: true,
		},
		Pools: []Pool{{Name: "any", Models: []string{"chat", "discovered", "elsewhere"}}},
		File:  "testdata/full.yaml",
	}
	if diff := cmp.Diff(want, c, ignorePrivate); diff != "" {
		t.Error(diff)
	}
}

func TestLoadWithoutAFile(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]string{
		"testdata/none.yaml": "testdata/none.yaml: cannot be read: no such file or directory",
		"testdata":           "testdata: cannot be read: is a directory",
	} {
		c, err := Load(file)
		var faults Faults
		if c != nil || !errors.As(err, &faults) || err.Error() != want {
			t.Errorf("%v, %v", c, err)
		}
	}
	refused := unreadableFile("sluice.yaml", &os.PathError{Op: "open", Path: "sluice.yaml", Err: syscall.EACCES}).Error()
	if want := fmt.Sprintf("permission denied: user %d needs the right to read it", os.Geteuid()); !strings.Contains(refused, want) {
		t.Errorf("a file of another user: %s, want %s", refused, want)
	}
	large := filepath.Join(t.TempDir(), "large.yaml")
	if err := os.WriteFile(large, make([]byte, maxFile+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(large); err == nil || !strings.HasSuffix(err.Error(), "it is larger than 8MiB") {
		t.Error(err)
	}
}

// TestAliasesAreBounded checks that a small file with many aliases is refused, before it uses much
// time and memory.
func TestAliasesAreBounded(t *testing.T) {
	t.Parallel()
	const head = "engines: [{name: e, versions: [{version: 1, tasks: [rerank], command: [run], schema: {a: &a "
	lists := "[x, x, x, x, x, x, x, x, x, x]"
	for _, name := range []string{"b", "c", "d", "e", "f", "g", "h", "i"} {
		last := string(name[0] - 1)
		lists += ", " + name + ": &" + name + " [" + strings.Repeat("*"+last+", ", 9) + "*" + last + "]"
	}
	for what, schema := range map[string]string{
		"lists of lists": lists,
		"a long name":    "{? " + strings.Repeat("n", 1<<20) + " : 1}, b: [" + strings.Repeat("*a, ", 10_000) + "*a]",
	} {
		faults := faultsOf(t, head+schema+"}}]}]\n")
		if len(faults) != 1 || !strings.HasSuffix(faults[0], "the file is too large or too deep when its aliases are resolved: use fewer aliases") {
			t.Errorf("%s: %.300q", what, faults)
		}
	}
}

func TestFileWithoutFieldsIsComplete(t *testing.T) {
	t.Parallel()
	c := parsed(t, "{}")
	if c.Listen != "0.0.0.0:8080" || c.File != "" || len(c.Models) != 0 {
		t.Errorf("%+v", c)
	}
}

func TestForUpstreams(t *testing.T) {
	t.Parallel()
	c, err := ForUpstreams([]string{"http://h:1/v1", "http://10.0.0.1"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if c.Listen != "127.0.0.1:8080" || c.Auth.Mode != AuthNone || c.File != "" || len(c.Warnings()) > 0 {
		t.Errorf("%+v, warnings %q", c, c.Warnings())
	}
	if diff := cmp.Diff([]Upstream{{URL: "http://h:1", Resolve: ResolveFirst}, {URL: "http://10.0.0.1:80", Resolve: ResolveFirst}}, c.Upstreams); diff != "" {
		t.Error(diff)
	}
	if c, err := ForUpstreams([]string{"http://h:1", "h:2"}, 0); c != nil || err == nil ||
		err.Error() != "--upstream: [1]: must be a URL such as http://10.0.0.5:8000" {
		t.Errorf("%v, %v", c, err)
	}
}

// TestU1_SlotsOfTheCommandLine hold for each server of the command line.
func TestU1_SlotsOfTheCommandLine(t *testing.T) {
	t.Parallel()
	c, err := ForUpstreams([]string{"http://h:1", "http://h:2"}, 8)
	if err != nil || len(c.Upstreams) != 2 || c.Upstreams[0].Slots != 8 || c.Upstreams[1].Slots != 8 {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := ForUpstreams([]string{"http://h:1"}, -1); err == nil || err.Error() != "--upstream: [0].slots: must be at least 0, is -1" {
		t.Error(err)
	}
}

func TestExamplesLoad(t *testing.T) {
	t.Parallel()
	for _, file := range examples(t) {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		copied := filepath.Join(t.TempDir(), "sluice.yaml")
		models := filepath.Join(filepath.Dir(copied), "models")
		if err := os.Mkdir(models, 0o700); err != nil {
			t.Fatal(err)
		}
		for path, data := range map[string][]byte{copied: data, models + "/chat.gguf": nil, models + "/embed.gguf": nil} {
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		testutil.NewAuthority(t, "authority").Issue(t, filepath.Dir(copied), "server", "127.0.0.1")
		c, err := Load(copied)
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		if warnings := c.Warnings(); len(warnings) > 0 {
			t.Errorf("%s: %q", file, warnings)
		}
	}
}

// TestQuickstart checks what the documents say about the file of the quick start. Requests that
// name no model are for chat (R5).
func TestQuickstart(t *testing.T) {
	t.Parallel()
	c, err := Load("../../examples/quickstart/sluice.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if c.Auth.Mode != AuthNone || c.Listen != "127.0.0.1:8080" || c.Admin != "127.0.0.1:9090" || len(c.Models) != 2 {
		t.Fatalf("%+v", c)
	}
	if c.DefaultModel != "chat" {
		t.Errorf("the default model is %q", c.DefaultModel)
	}
	chat, embed := c.Models[0], c.Models[1]
	if chat.Name != "chat" || chat.Engine != "sim" || chat.Replicas.Min != 3 || chat.Task != engines.TextGeneration {
		t.Errorf("%+v", chat)
	}
	if embed.Name != "embed" || embed.Engine != "sim" || embed.Task != engines.Embedding {
		t.Errorf("%+v", embed)
	}
}

// ignorePrivate excludes the unexported fields of Config from comparisons.
var ignorePrivate = cmpopts.IgnoreUnexported(Config{})

// streamWith returns the defaults of Stream with another mode and max_duration.
func streamWith(mode StreamMode, maxDuration time.Duration) Stream {
	return Stream{Mode: mode, Heartbeat: 15 * time.Second, HeartbeatAs: HeartbeatComment, MaxDuration: maxDuration, Resume: 5 * time.Second}
}

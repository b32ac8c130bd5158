package join

import (
	"encoding/base64"
	"encoding/json"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/local"
	"github.com/sluice-gateway/sluice/internal/weights"
)

// fullMessages returns an order and a report that have a value in every field.
func fullMessages() (order, report) {
	m := model("chat", 0, 3)
	m.Aliases, m.Adapters, m.MaxReplicas = []string{"c"}, []string{"c"}, 9
	m.Version = engines.Version{Version: "1", Tasks: []engines.Task{engines.Embedding},
		Schema:        map[string]any{"properties": map[string]any{"n": map[string]any{"default": 8192}}},
		TaskVariables: map[engines.Task]map[string]any{engines.Embedding: {"pooling": 1}},
		Command:       []string{"x", "{{.Flags}}"}, Env: map[string]string{"K": "{{.Name}}"},
		Ready: engines.Probe{Path: "/r", Every: time.Second}, Health: engines.Probe{Path: "/h", Every: time.Minute},
		Slots: engines.Slots{Variable: "n", Default: 4}}
	m.Launch.Variables = map[string]any{"whole": 8192, "part": 0.9, "huge": uint64(1) << 63, "list": []any{1, "two"}, "on": true, "text": "1e3"}
	m.Weights = &weights.Source{Repository: "org/name", Revision: "v1", File: "a.gguf", GGUF: true, Endpoint: "https://hub", CacheDir: "/cache", Token: "t"}
	m.Resources = &engines.Resources{CPU: 1.5, Memory: 1 << 34, GPU: 0.5}
	m.Placement, m.Cluster, m.EvictIdle = local.Pack, "fast", true
	m.StartTimeout, m.DrainTimeout = 30*time.Second, 30*time.Second
	o := order{LostAfter: time.Second, Assignment: &assignment{Models: []local.Model{m}, Stop: time.Minute, Restarts: map[string]string{"chat-0": "x"}},
		InFlight: &inFlight{Seen: 7, Requests: map[string]int{"chat-0": 2}},
		Logs:     []logRequest{{ID: "y", Replica: "chat-0", Tail: 5, Search: "error", Follow: true}}, Silent: []string{"chat-0"}}
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	r := report{Hello: &hello{Protocol: protocol, Revision: revision, Clock: at}, Stopping: true,
		Inventory: &engines.Node{Name: "n", CPUs: 8, Memory: 1 << 35, Reason: "why",
			GPUs: []engines.GPU{{UUID: "GPU-1", Name: "H100", Index: 1, MIG: true, MemoryTotal: 3, MemoryUsed: 2}}},
		Replicas: &replicaSnapshot{Sequence: 7, Clock: at, Replicas: []engines.Replica{{ID: "chat-0", Model: "chat", State: engines.Ready,
			Address: netip.MustParseAddrPort("10.0.0.2:80"), PID: 5, Reason: "r", Slots: 4, Since: at, Restarts: 2, GPUs: "GPU-1",
			Resources: engines.Resources{GPU: 1}, Fetch: engines.Fetch{Done: 1, Total: 3, Rate: 2}}}}}
	return o, r
}

// TestWireForm compares the JSON of messages with a file, because gateways and nodes of different
// releases exchange them. If the test fails, keep the JSON readable for the other side or raise
// protocol.
func TestWireForm(t *testing.T) {
	t.Parallel()
	o, r := fullMessages()
	data, err := json.MarshalIndent([]any{o, r}, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	const path = "testdata/wire.json"
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(path, append(data, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.TrimSpace(string(want)), string(data)); diff != "" {
		t.Errorf("the form has changed (UPDATE_GOLDEN=1 accepts it): %s", diff)
	}
}

func TestMessagesArriveAsTheyWere(t *testing.T) {
	t.Parallel()
	o, r := fullMessages()
	for _, message := range []any{&o, &r} {
		data, err := codec{}.Marshal(message)
		if err != nil {
			t.Fatal(err)
		}
		got := reflect.New(reflect.TypeOf(message).Elem()).Interface()
		if err := (codec{}).Unmarshal(data, got); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(message, got) {
			t.Errorf("sent %+v, arrived %+v", message, got)
		}
	}
}

func TestCheckName(t *testing.T) {
	t.Parallel()
	for name, good := range map[string]bool{"gpu-2": true, "a.example.com": true, "A_1": true, "": false, ".": false, "..": false, "a/b": false,
		"a b": false, "ä": false, strings.Repeat("a", 63): true, strings.Repeat("a", 64): false, "a\n": false, "a%41": false} {
		if err := checkName(name); (err == nil) != good {
			t.Errorf("checkName(%q) = %v", name, err)
		}
	}
}

func TestParseToken(t *testing.T) {
	t.Parallel()
	text, err := Token(t.TempDir(), TokenRequest{Node: "n"})
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := parseToken(" " + text + "\n")
	if err != nil || text != base64.RawURLEncoding.EncodeToString(parsed.authority[:])+"."+parsed.secret {
		t.Errorf("parseToken returned another token, or the error %v", err)
	}
	for _, wrong := range []string{"", ".", "x.y", text + "A", "A" + text, strings.Replace(text, ".", "", 1), strings.Split(text, ".")[0] + "."} {
		if _, err := parseToken(wrong); err == nil {
			t.Errorf("parseToken(%q) takes it", wrong)
		} else if strings.Contains(err.Error(), wrong) && len(wrong) > 2 {
			t.Errorf("the error shows the token: %v", err)
		}
	}
}

// FuzzMessages checks that foreign bytes are a message or an error, and that a decoded message can
// be encoded again.
func FuzzMessages(f *testing.F) {
	o, r := fullMessages()
	for _, message := range []any{o, r, joinRequest{Secret: "s", renewRequest: renewRequest{[]byte{1}}}} {
		data, err := json.Marshal(message)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`{"wish":{"models":[{"Launch":{"Variables":{"n":1e999,"l":[[1]]}}}]}}`))
	f.Add([]byte(`{"wish":{"models":[{"Name":"x","Desired":-5}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var o order
		if err := (codec{}).Unmarshal(data, &o); err == nil {
			if o.Assignment != nil {
				assignedIDs(withoutReplicas(o.Assignment.Models))
			}
			if _, err := (codec{}).Marshal(o); err != nil {
				t.Errorf("a decoded order cannot be encoded: %v", err)
			}
		}
		var r report
		if err := (codec{}).Unmarshal(data, &r); err == nil && r.Replicas != nil {
			for _, good := range (&session{node: &Node{name: "n"}}).acceptReplicas(r.Replicas.Replicas) {
				if engines.ReplicaIndex(good.Model, good.ID) < 0 {
					t.Errorf("%+v was accepted", good)
				}
			}
		}
		var j joinRequest
		if err := (codec{}).Unmarshal(data, &j); err == nil {
			_, _, _ = parseSigningRequest(j.Request)
		}
		_, _, _ = parsePEM(data)
		_, _ = parseToken(string(data))
	})
}

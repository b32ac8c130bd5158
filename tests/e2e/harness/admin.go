package harness

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/condition"
)

// AwaitQueued waits until exactly n requests wait for the model.
func (g *Gateway) AwaitQueued(model string, n int) {
	g.T.Helper()
	g.AwaitModel(model, fmt.Sprint(n, " queued"), func(m Model) bool { return m.Queued == n })
}

// EnvoyAdmin returns what a GET on Envoy's own admin socket answers.
func (g *Gateway) EnvoyAdmin(path string) string {
	g.T.Helper()
	sockets, _ := filepath.Glob(filepath.Join(g.Dir, "*", "envoy.sock"))
	if direct := filepath.Join(g.Dir, "envoy.sock"); len(sockets) == 0 {
		sockets = []string{direct}
	}
	unix := &http.Client{Transport: &http.Transport{DialContext: dialUnix(sockets[0]), DisableKeepAlives: true}}
	req, err := http.NewRequest(http.MethodGet, "http://envoy"+path, nil)
	if err != nil {
		g.T.Fatal(err)
	}
	return string(g.Do(unix, req).Content)
}

// Get decodes the JSON answer of a GET on the admin listener. It fails the test if the GET fails.
func (g *Gateway) Get(path string, into any) {
	g.T.Helper()
	if err := g.TryGet(path, into); err != nil {
		g.T.Fatal(err)
	}
}

// TryGet is Get for tests that expect errors: it returns the error.
func (g *Gateway) TryGet(path string, into any) error {
	req, err := http.NewRequest(http.MethodGet, g.Admin+path, nil)
	if err != nil {
		return err
	}
	if g.AdminToken != "" {
		req.Header.Set("Authorization", "Bearer "+g.AdminToken)
	}
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if r.StatusCode != 200 {
		return fmt.Errorf("%s: %s", path, r.Status)
	}
	return json.NewDecoder(r.Body).Decode(into)
}

// Replica is what the tests read of a replica in the admin API.
type Replica struct {
	ID, Model, State, Address, Reason, Node string
	ServedModel                             string `json:"served_model"`
	PID                                     int
	InFlight                                int `json:"in_flight"`
	// Max is how many requests the replica takes at once, and MaxFrom where the number comes from.
	Max     int
	MaxFrom string `json:"max_from"`
	// Engine is nil while the engine has not been asked.
	Engine *EngineNews
	// Fetching is nil while no weights are fetched.
	Fetching *Fetching
}

// Fetching is how far weights have been fetched, in bytes.
type Fetching struct{ Done, Total int64 }

// EngineNews is what the engine of a replica says of itself. A nil number is one that it does not
// tell.
type EngineNews struct {
	Name, Fault      string
	Running, Waiting *int
	KVUsage          *float64 `json:"kv_usage"`
	CacheTokens      *int     `json:"cache_tokens"`
	CachedTokens     *int     `json:"cached_tokens"`
	PrefillRate      *float64 `json:"prefill_rate"`
	AgeSeconds       *float64 `json:"age_s"`
}

// AwaitEngineNews waits until the engine of a replica has said what ok accepts.
func (g *Gateway) AwaitEngineNews(replica string, ok func(n EngineNews) bool) EngineNews {
	g.T.Helper()
	var last EngineNews
	Eventually(g.T, "news of the engine of "+replica, func() error {
		n := g.Replicas()[replica].Engine
		if n == nil || n.AgeSeconds == nil || !ok(*n) {
			text, _ := json.Marshal(n)
			return fmt.Errorf("%s", text)
		}
		last = *n
		return nil
	})
	return last
}

// Replicas returns all replicas by their ids.
func (g *Gateway) Replicas() map[string]Replica {
	g.T.Helper()
	var list struct{ Replicas []Replica }
	g.Get("/api/v1/replicas", &list)
	all := map[string]Replica{}
	for _, r := range list.Replicas {
		all[r.ID] = r
	}
	return all
}

// Model is what the tests read of a model in the admin API.
type Model struct {
	Name, State             string
	Replicas, Ready, Queued int
	InFlight                int `json:"in_flight"`
	Desired                 int
	// Fetching is that of a replica.
	Fetching *Fetching
	// Scaled is the last change of Desired.
	Scaled struct {
		From, To int
		Reason   string
	}
}

// Model returns the model of that name. It returns the zero Model if the gateway has none.
func (g *Gateway) Model(name string) Model {
	g.T.Helper()
	var list struct{ Models []Model }
	g.Get("/api/v1/models", &list)
	for _, m := range list.Models {
		if m.Name == name {
			return m
		}
	}
	return Model{}
}

// AwaitModel waits until ok accepts the model. what names in the failure what was awaited.
func (g *Gateway) AwaitModel(name, what string, ok func(m Model) bool) {
	g.T.Helper()
	Eventually(g.T, what, func() error {
		if m := g.Model(name); !ok(m) {
			return fmt.Errorf("%+v", m)
		}
		return nil
	})
}

// AwaitIdle waits until no request of the model is in flight or queued.
func (g *Gateway) AwaitIdle(name string) {
	g.T.Helper()
	g.AwaitModel(name, "idle", func(m Model) bool { return m.InFlight == 0 && m.Queued == 0 })
}

// AdminText returns the body that a GET on the admin listener answers.
func (g *Gateway) AdminText(path string) string {
	g.T.Helper()
	req, err := http.NewRequest(http.MethodGet, g.Admin+path, nil)
	if err != nil {
		g.T.Fatal(err)
	}
	return string(g.Do(Client, req).Content)
}

// dialUnix returns a dialer for http.Transport that connects to the Unix socket, whatever the
// address.
func dialUnix(path string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
}

// AwaitAdmin waits until the admin listener answers. The gateway need not be ready then.
func (g *Gateway) AwaitAdmin() {
	g.T.Helper()
	Eventually(g.T, "the admin listener answers", func() error { return g.TryGet("/api/v1/status", new(struct{})) })
}

// Conditions returns the conditions of this type that need attention, by subject.
func (g *Gateway) Conditions(kind condition.Type) (map[string]condition.Condition, error) {
	var answer struct{ Conditions []condition.Condition }
	if err := g.TryGet("/api/v1/conditions", &answer); err != nil {
		return nil, err
	}
	all := map[string]condition.Condition{}
	for _, c := range answer.Conditions {
		if c.Type == kind && !c.Normal() {
			all[c.Subject] = c
		}
	}
	return all, nil
}

// AwaitCondition waits until a condition of this type needs attention for the subject, and returns
// it.
func (g *Gateway) AwaitCondition(kind condition.Type, subject string) condition.Condition {
	g.T.Helper()
	var found condition.Condition
	Eventually(g.T, fmt.Sprintf("condition %s of %q", kind, subject), func() error {
		all, err := g.Conditions(kind)
		if err != nil {
			return err
		}
		c, ok := all[subject]
		if !ok {
			return fmt.Errorf("only %v", all)
		}
		found = c
		return nil
	})
	return found
}

// AwaitNoCondition waits until no condition of this type needs attention.
func (g *Gateway) AwaitNoCondition(kind condition.Type) {
	g.T.Helper()
	Eventually(g.T, fmt.Sprintf("no condition %s", kind), func() error {
		all, err := g.Conditions(kind)
		if err == nil && len(all) > 0 {
			err = fmt.Errorf("%v", all)
		}
		return err
	})
}

// AwaitSharedState waits until the gateway reports that Redis is reachable, or not, as up says. If
// up is true, so many gateways must share the Redis.
func (g *Gateway) AwaitSharedState(up bool, gateways int) {
	g.T.Helper()
	Eventually(g.T, fmt.Sprintf("shared state up: %v", up), func() error {
		var s struct {
			Shared struct {
				Configured, Up bool
				Mode           string
				Gateways       int
			}
		}
		if err := g.TryGet("/api/v1/status", &s); err != nil {
			return err
		}
		if !s.Shared.Configured || s.Shared.Up != up || (s.Shared.Mode == "shared") != up || up && s.Shared.Gateways != gateways {
			return fmt.Errorf("%+v", s.Shared)
		}
		return nil
	})
}

// Generations returns how many chat requests the simulated replica has received.
func (g *Gateway) Generations(replica string) int {
	g.T.Helper()
	r, err := http.Get("http://" + g.Replicas()[replica].Address + "/sim/requests")
	if err != nil {
		g.T.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		g.T.Fatal(err)
	}
	return bytes.Count(b, []byte(`"/v1/chat/completions"`))
}

// Metric returns the value of a series of the gateway's metrics, and 0 if there is no such
// series. The name includes the labels.
func (g *Gateway) Metric(name string) float64 {
	g.T.Helper()
	for line := range strings.Lines(g.AdminText("/metrics")) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			f, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				g.T.Fatal(err)
			}
			return f
		}
	}
	return 0
}

// EngineMetric returns the sum of the series of that name in the engine's own metrics.
func EngineMetric(t testing.TB, address, name string) float64 {
	t.Helper()
	r, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	sum, found := 0.0, false
	for lines := bufio.NewScanner(r.Body); lines.Scan(); {
		var value float64
		if rest, ok := strings.CutPrefix(lines.Text(), name+"{"); ok {
			if _, err := fmt.Sscan(rest[strings.LastIndex(rest, " ")+1:], &value); err == nil {
				sum, found = sum+value, true
			}
		}
	}
	if !found {
		t.Fatalf("%s does not tell %s", address, name)
	}
	return sum
}

// AwaitReplicas waits until the model has exactly n replicas, in any state.
func (g *Gateway) AwaitReplicas(model string, n int) {
	g.T.Helper()
	g.AwaitModel(model, fmt.Sprint(n, " replicas of ", model), func(m Model) bool { return m.Replicas == n })
}

// AwaitReadyReplicas waits until exactly n replicas of the model are ready.
func (g *Gateway) AwaitReadyReplicas(model string, n int) {
	g.T.Helper()
	g.AwaitModel(model, fmt.Sprint(n, " ready replicas of ", model), func(m Model) bool { return m.Ready == n })
}

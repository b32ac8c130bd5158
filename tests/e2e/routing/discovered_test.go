package routing

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// TestE2E_U17_SettingsOfDiscoveredModels: the section discovered holds for discovered models, also
// after a reload, and the filter of a server says which models are discovered.
func TestE2E_U17_SettingsOfDiscoveredModels(t *testing.T) {
	t.Parallel()
	held := harness.StartHeldUpstream(t)
	other := startListing(t, `{"data":[{"id":"qwen-7b"},{"id":"llama"}]}`)
	config := func(most int) string {
		return fmt.Sprintf("upstreams: [%s, {url: %s, models: [qwen*]}]\ndiscovered: {admission: {max_per_replica: %d, max_concurrent_requests: 2}, stream: {mode: managed}}\n",
			held.URL, other, most)
	}
	g := harness.Start(t, config(3))
	var list struct{ Models []harness.Model }
	g.Get("/api/v1/models", &list)
	if names := namesOf(list.Models); !slices.Equal(names, []string{"m", "qwen-7b"}) {
		t.Errorf("discovered %v", names)
	}
	expect := func(most int) {
		harness.Eventually(t, "the limit of the section discovered", func() error {
			if r := g.Replicas()[held.ID()]; r.Max != most || r.MaxFrom != "max_per_replica" {
				text, _ := json.Marshal(r)
				return fmt.Errorf("%s", text)
			}
			return nil
		})
	}
	expect(3)
	answers := make(chan error, 3)
	for range cap(answers) {
		go func() {
			_, err := g.TryPost(context.Background(), "/v1/completions", `{"model":"m","prompt":"x","stream":true}`)
			answers <- err
		}()
	}
	g.AwaitQueued("m", 1) // by max_concurrent_requests
	for range cap(answers) {
		held.Release <- struct{}{}
	}
	for range cap(answers) {
		if err := harness.Receive(t, answers, "a request is answered"); err != nil {
			t.Error(err)
		}
	}
	harness.Eventually(t, "the requests were managed", func() error {
		if text := g.AdminText("/api/v1/requests"); !slices.Contains(routesOf(t, text), "managed") {
			return fmt.Errorf("%s", text)
		}
		return nil
	})
	g.Configure(config(5))
	expect(5)
}

func namesOf(models []harness.Model) (names []string) {
	for _, m := range models {
		names = append(names, m.Name)
	}
	return names
}

// routesOf returns the routes of the requests in the list of the admin API.
func routesOf(t *testing.T, text string) (routes []string) {
	t.Helper()
	var list struct{ Requests []struct{ Route string } }
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		t.Fatal(err)
	}
	for _, r := range list.Requests {
		routes = append(routes, r.Route)
	}
	return routes
}

package engines

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// TestE2E_U1_DiscoveredLlamaServerRunsItsSlots: a server with four slots that somebody else runs
// works on four requests at once and on no fifth, whether it shows metrics or not.
func TestE2E_U1_DiscoveredLlamaServerRunsItsSlots(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, llamaServer(t, "chat", "text-generation")+`
    replicas: {min: 1, max: 1}
    variables: {parallel: 4, ctx_size: 8192, threads: 1, metrics: false}
`)
	g.AwaitReplicas("chat", 1)
	address := g.Replicas()["chat-0"].Address
	finder := harness.Start(t, "upstreams: ['http://"+address+"']\n")
	harness.Eventually(t, "the slots of the server", func() error {
		if r := finder.Replicas()[address]; r.Max != 4 || r.MaxFrom != "engine" || r.Engine.Name != "llama-cpp" {
			return fmt.Errorf("%+v, engine %+v", r, r.Engine)
		}
		return nil
	})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var callers sync.WaitGroup
	for i := range 8 {
		callers.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				a, err := finder.TryPost(context.Background(), "/v1/chat/completions", harness.ChatBody("chat", true, 200, fmt.Sprint("text ", i, n)))
				if err == nil {
					err = harness.CheckWholeStream(a.Content)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	harness.Eventually(t, "four slots of the server work", func() error {
		busy := 0
		for _, slot := range slotsOf(t, address) {
			if slot.Working {
				busy++
			}
		}
		if waiting := finder.Model("chat").Queued; busy != 4 || waiting == 0 {
			return fmt.Errorf("%d work and %d requests wait in the gateway", busy, waiting)
		}
		return nil
	})
	stop()
	callers.Wait()
}

// llamaSlot is a slot of a llama-server.
type llamaSlot struct {
	Working bool `json:"is_processing"`
}

// slotsOf asks a llama-server for its slots.
func slotsOf(t *testing.T, address string) (all []llamaSlot) {
	t.Helper()
	a, err := http.Get("http://" + address + "/slots")
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	if err := json.NewDecoder(a.Body).Decode(&all); err != nil {
		t.Fatal(err)
	}
	return all
}

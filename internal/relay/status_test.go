package relay

import (
	"testing"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// A heartbeat shows the phase to every tenant, and the engine's log line only to a tenant that may
// read it.
func TestX15_OnlySomeTenantsReadTheEngineLog(t *testing.T) {
	fleet := engines.NewFleet()
	fleet.Set("test", engines.Part{
		Models:   []engines.Model{{Name: "m", Launcher: engines.Local, Desired: 1}},
		Replicas: []engines.Replica{{ID: "m-0", Model: "m", State: engines.Starting, Reason: "connecting to 10.0.0.7"}},
	})
	controller := admission.New(admission.Config{})
	dispatcher := dispatch.New(dispatch.Config{Fleet: fleet, Admission: controller})
	r := New(Config{Dispatcher: dispatcher})
	t.Cleanup(func() { r.Close(t.Context()); controller.Close() })
	for mayRead, want := range map[bool]string{true: "connecting to 10.0.0.7", false: ""} {
		scan, fault := openai.Scan(openai.Chat, "application/json", []byte(hello))
		if fault != nil {
			t.Fatal(fault)
		}
		c := &Call{Tenant: &authz.Tenant{Name: "t", Models: []string{"*"}, EngineLog: mayRead}, Scan: scan, Path: "/v1/chat/completions", Body: []byte(hello)}
		asked := c.Asked()
		asked.Watch = new(dispatch.Wait)
		ticket, pending, fault := dispatcher.Begin(t.Context(), &asked)
		if pending == nil {
			t.Fatalf("the request does not wait: %v, %v", ticket, fault)
		}
		g := r.newGeneration(c, pending)
		if p := g.progress(); p.Phase != Starting || p.Note != want {
			t.Errorf("a tenant with engine_log %v: %+v, want the note %q", mayRead, p, want)
		}
		g.cancel(nil)
		pending.Cancel()
	}
}

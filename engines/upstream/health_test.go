package upstream

import (
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/engines"
)

// TestU2_TheLastServerThatIsNotDrainedStays: a failed request
// takes a server out of a model whose other server an operator has drained.
func TestU2_TheLastServerThatIsNotDrainedStays(t *testing.T) {
	a, b := newTestServer(t, "/v1/models", "chat"), newTestServer(t, "/v1/models", "chat")
	l, fleet := newTestLauncher(t, Desired{Discover: discover(a.URL, b.URL)})
	var drained string
	l.Drained = func(replica string) bool { return replica == drained }
	l.CheckOnce(t.Context())
	want := func(a1, b1 engines.State) {
		t.Helper()
		expectStates(t, fleet, map[string]states{"chat": {a.id(): a1, b.id(): b1}})
	}
	drained = a.id()
	l.RecordFailure(b.id(), "chat", "answered 503")
	want(engines.Ready, engines.Ready)
	l.RecordFailure(a.id(), "chat", "answered 503") // The other one takes requests.
	want(engines.Failed, engines.Ready)
	l.CheckOnce(t.Context())
	drained = ""
	l.RecordFailure(b.id(), "chat", "answered 503")
	want(engines.Ready, engines.Failed)
}

// TestU2_HealthIsByServerAndModel: a server is taken out of the model that fails there, although it
// is the last server of another model.
func TestU2_HealthIsByServerAndModel(t *testing.T) {
	a, b := newTestServer(t, "/v1/models", "chat"), newTestServer(t, "/v1/models", "chat", "embed", "only-b")
	c := newTestServer(t, "/v1/models", "embed")
	l, fleet := newTestLauncher(t, Desired{Discover: discover(a.URL, b.URL, c.URL)})
	l.CheckOnce(t.Context())
	want := func(chat, embed engines.State) {
		t.Helper()
		expectStates(t, fleet, map[string]states{
			"chat":  {a.id(): engines.Ready, b.id(): chat},
			"embed": {b.id(): embed, c.id(): engines.Ready}, "only-b": {b.id(): engines.Ready}})
	}
	l.RecordFailure(b.id(), "chat", "answered 500")
	l.RecordFailure(a.id(), "chat", "answered 500") // It is the last one now.
	want(engines.Failed, engines.Ready)
	faults := map[string]Fault{b.URL: {Models: []string{"chat"}, Reason: "answered 500"}}
	if d := cmp.Diff(faults, l.Faults()); d != "" {
		t.Errorf("faults (-want +got):\n%s", d)
	}
	l.CheckOnce(t.Context())
	want(engines.Ready, engines.Ready)
	if got := l.Faults(); len(got) != 0 {
		t.Errorf("faults after a good check: %v", got)
	}
	l.RecordFailure(b.id(), "", "refused a connection") // It concerns all models but the one that has no other server.
	want(engines.Failed, engines.Failed)
	b.status.Store(http.StatusServiceUnavailable)
	l.CheckOnce(t.Context())
	if f := l.Faults()[b.URL]; f.Models != nil {
		t.Errorf("a server that fails its check is out of %v only", f.Models)
	}
}

package upstream

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/engines"
)

// TestU17_MalformedItemsAreSkipped: an item of a list that is no model is skipped by itself. The
// operator is told of it, and of a server that lists nothing.
func TestU17_MalformedItemsAreSkipped(t *testing.T) {
	var list atomic.Value
	list.Store(`{"data":[{"id":7},{"id":"chat"},null,{"object":"model"}]}`)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, list.Load().(string)) }))
	t.Cleanup(s.Close)
	l, fleet := newTestLauncher(t, Desired{Discover: discover(s.URL)})
	if idle := l.Idle(); len(idle) != 0 {
		t.Errorf("before the first check %v lists nothing", idle)
	}
	l.CheckOnce(t.Context())
	expectStates(t, fleet, map[string]states{"chat": {replicaID(s.URL): engines.Ready}})
	want := RefusedNames{Server: s.URL, Malformed: 3, FirstMalformed: `"{\"id\":7}"`}
	if d := cmp.Diff([]RefusedNames{want}, l.RefusedNames()); d != "" {
		t.Errorf("refused (-want +got):\n%s", d)
	}
	if s := l.Servers(); len(s) != 1 || !s[0].Checked || s[0].Fault != "" || !cmp.Equal(s[0].Serves, []string{"chat"}) || s[0].Refused != want.Message() {
		t.Errorf("servers: %+v", s)
	}
	text := "The server " + s.URL + ` lists 3 items that name no model and are skipped, first of all: "{\"id\":7}".`
	if got := l.RefusedNames()[0].Message(); got != text {
		t.Errorf("told %s", got)
	}
	if idle := l.Idle(); len(idle) != 0 {
		t.Errorf("a server with a model lists nothing: %v", idle)
	}

	list.Store(`{"data":[]}`)
	l.CheckOnce(t.Context())
	expectStates(t, fleet, map[string]states{})
	if d := cmp.Diff([]string{s.URL}, l.Idle()); d != "" {
		t.Errorf("servers that list nothing (-want +got):\n%s", d)
	}
	if refused := l.RefusedNames(); len(refused) != 0 {
		t.Errorf("refused in an empty list: %+v", refused)
	}
	// The file says what the server serves, whatever the server lists.
	l.Set(Desired{Discover: discover(s.URL), Models: []Model{{Model: engines.Model{Name: "named", Launcher: engines.Upstream}, URLs: []string{s.URL}}}})
	if idle := l.Idle(); len(idle) != 0 {
		t.Errorf("a server with a model of the file lists nothing: %v", idle)
	}
}

package admin

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/engines"
)

// TestU19_FetchIsShown: a replica and its model show how far the weights are, and nothing once they
// are there.
func TestU19_FetchIsShown(t *testing.T) {
	t.Parallel()
	const want = `"fetching":{"done":1,"total":4,"per_second":2}`
	for fetch, shown := range map[engines.Fetch]bool{{Done: 1, Total: 4, Rate: 2}: true, {}: false} {
		m := &engines.ModelSnapshot{Replicas: []engines.Replica{{}, {Fetch: fetch}}}
		for _, view := range []any{viewReplica(m.Replicas[1], ReplicaLoad{}), modelView{Fetching: modelFetch(m)}} {
			text, err := json.Marshal(view)
			if err != nil || strings.Contains(string(text), want) != shown || strings.Contains(string(text), "fetching") != shown {
				t.Errorf("%+v is shown as %s, %v", fetch, text, err)
			}
		}
	}
}

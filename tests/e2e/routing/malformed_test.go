package routing

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

func startListing(t *testing.T, list string) string {
	return harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/models") {
			io.WriteString(w, list)
			return
		}
		io.WriteString(w, `{"choices":[{"text":"ok"}]}`)
	})
}

// TestE2E_U17_MalformedItemsAreSkipped: a server whose list has a malformed item serves its other
// models, and conditions tell of the item and of a server that lists nothing.
func TestE2E_U17_MalformedItemsAreSkipped(t *testing.T) {
	t.Parallel()
	odd := startListing(t, `{"data":[{"id":7},{"id":"good"}]}`)
	empty := startListing(t, `{"data":[]}`)
	g := harness.Start(t, fmt.Sprintf("upstreams: [%s, %s]\n", odd, empty))
	if a := g.Post("/v1/completions", `{"model":"good","prompt":"x"}`); a.StatusCode != 200 {
		t.Errorf("the good model of the list: %s", a)
	}
	if c := g.AwaitCondition(condition.NamesRefused, odd); !strings.Contains(c.Message, "lists an item that names no model and is skipped") {
		t.Errorf("the operator is told %q", c.Message)
	}
	var seen struct {
		Upstreams []struct {
			URL, Refused string
			Listed       []string
			Serves       []string
		}
	}
	g.Get("/api/v1/upstreams", &seen)
	for _, u := range seen.Upstreams {
		if u.URL == odd && (!slices.Equal(u.Serves, []string{"good"}) || !strings.Contains(u.Refused, "names no model")) || u.URL == empty && len(u.Serves)+len(u.Listed) > 0 {
			t.Errorf("the operator is shown %+v", u)
		}
	}
	if len(seen.Upstreams) != 2 {
		t.Errorf("the operator is shown %+v", seen.Upstreams)
	}
	if c := g.AwaitCondition(condition.UpstreamUnreachable, empty); c.Reason != "NoModels" {
		t.Errorf("the operator is told %+v", c)
	}
}

package routing

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// TestE2E_X18_SeriesOfWhatHasGone: the metrics of a replica and of a model vanish with them, and
// those of the others go on.
func TestE2E_X18_SeriesOfWhatHasGone(t *testing.T) {
	t.Parallel()
	a, b := startNamed(t, "a"), startNamed(t, "b")
	const models = `
models:
  - {name: stays, launcher: upstream, upstreams: [%s], routing: {strategy: round_robin}}
`
	g := harness.Start(t, fmt.Sprintf(models, a+", "+b)+"  - {name: goes, launcher: upstream, upstreams: ["+b+"]}\n")
	servers(g, "stays")
	servers(g, "goes")
	series := func(part string) (n int) {
		for line := range strings.Lines(g.AdminText("/metrics")) {
			if strings.Contains(line, part) && !strings.HasPrefix(line, "sluice_condition{") {
				n++
			}
		}
		return n
	}
	ofA, ofB := fmt.Sprintf("upstream=%q", strings.TrimPrefix(a, "http://")), fmt.Sprintf("upstream=%q", strings.TrimPrefix(b, "http://"))
	harness.Eventually(t, "all are measured", func() error {
		if series(ofA) == 0 || series(ofB) == 0 || series(`model="goes"`) == 0 {
			return fmt.Errorf("%d, %d, %d", series(ofA), series(ofB), series(`model="goes"`))
		}
		return nil
	})
	g.Configure(fmt.Sprintf(models, a))
	harness.Eventually(t, "the series have gone", func() error {
		if series(ofB) != 0 || series(`model="goes"`) != 0 {
			return fmt.Errorf("%d of the replica, %d of the model", series(ofB), series(`model="goes"`))
		}
		return nil
	})
	if series(ofA) == 0 || series(`model="stays"`) == 0 {
		t.Error("the series of what stays have gone too")
	}
}

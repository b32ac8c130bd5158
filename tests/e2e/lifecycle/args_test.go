package lifecycle

import (
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// TestE2E_U11_ArgsReachTheEngineAsTheyAre: an argument with everything that a shell would touch
// arrives at the engine as it is. The operator sees the command. The release in the file has the
// newest version below it.
func TestE2E_U11_ArgsReachTheEngineAsTheyAre(t *testing.T) {
	t.Parallel()
	g := harness.Prepare(t, `models:
  - name: chat
    engine: sim
    version: 1.7.2
    variables: {token_interval: 0s}
    args: ["--name", "it's $HOME {{.Name}} | co; *"]
`)
	t.Cleanup(g.Stop)
	g.Launch()
	g.AwaitReady()
	answer := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 64, "who are you?")).String()
	if !strings.Contains(answer, "it's $HOME {{.Name}} | co; *") {
		t.Errorf("the engine is not named by its argument: %s", answer)
	}
	var all struct {
		Replicas []struct{ Command string }
	}
	if err := g.TryGet("/api/v1/replicas", &all); err != nil {
		t.Fatal(err)
	}
	if len(all.Replicas) != 1 || !strings.HasSuffix(all.Replicas[0].Command, `--name 'it'\''s $HOME {{.Name}} | co; *'`) {
		t.Errorf("the command is shown as %+v", all.Replicas)
	}
	if c := g.AwaitCondition(condition.VersionNotListed, "chat"); !strings.Contains(c.Message, "sim 1.7.2") {
		t.Errorf("the condition: %+v", c)
	}
}

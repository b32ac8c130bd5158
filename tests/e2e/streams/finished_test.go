package streams

import (
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// A client that has every event of a finished stream is told so. The list of models says what can
// be called, and whether it would be served at once.
func TestE2E_R11_FinishedStreamsAndModels(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, `
models:
  - {name: m, task: text-generation, engine: sim, launcher: local, variables: {prefill_rate: 0, token_interval: 1ms}}
  - {name: cold, engine: sim, launcher: local, replicas: {min: 0, max: 1}}
  - {name: elsewhere, launcher: none}
pools:
  - {name: tasks, models: [elsewhere]}
`)
	answer := g.Post(harness.ChatPath, harness.ChatBody("m", true, 3, "hello"), "Idempotency-Key: finished")
	events := strings.Count(string(answer.Content), "\nid: ") + 1
	if answer.StatusCode != 200 || events < 3 {
		t.Fatalf("%d events: %s", events, answer)
	}
	last := answer.Content[strings.LastIndex(string(answer.Content), "id: ")+len("id: "):]
	number, _, _ := strings.Cut(string(last), "\n")
	if again := g.Fetch("/v1/streams/finished?after=" + number); again.StatusCode != 204 || len(again.Content) > 0 {
		t.Errorf("after event %s: %s", number, again)
	}
	list := string(g.Fetch("/v1/models").Content)
	for _, want := range []string{`"task":"text-generation","state":"ready"`, `"state":"cold"`} {
		if !strings.Contains(list, want) {
			t.Errorf("the list lacks %s: %s", want, list)
		}
	}
	if strings.Contains(list, "elsewhere") || strings.Contains(list, "tasks") {
		t.Errorf("the list has what cannot be called: %s", list)
	}
}

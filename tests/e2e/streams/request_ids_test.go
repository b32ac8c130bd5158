package streams

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	llmv1 "github.com/sluice-gateway/sluice/api/llm/v1"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// TestE2E_R4_TheClientsOwnIDIsShown: the id that a client gives its request is in the list of
// requests and in the log, whichever way the request comes. It is also with the requests that
// resume and cancel it.
func TestE2E_R4_TheClientsOwnIDIsShown(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, harness.OneSim)
	stream := strings.Replace(harness.ChatBody("chat", true, 3, "hello"), "{", `{"request_id":"in-the-body",`, 1)
	if a := g.Post(harness.ChatPath, stream); a.StatusCode != 200 {
		t.Fatal(a)
	}
	if a := g.Post(harness.ChatPath, harness.ChatBody("chat", false, 3, "hello"), "Idempotency-Key: in-a-header"); a.StatusCode != 200 {
		t.Fatal(a)
	}
	if a := g.Post(harness.ChatPath, harness.ChatBody("no-such-model", false, 3, "hello"), "Idempotency-Key: refused"); a.StatusCode != 404 {
		t.Fatal(a)
	}
	g.Fetch("/v1/streams/in-the-body?after=0")
	g.Post("/v1/streams/not%20there/cancel", "")
	ws := g.Realtime("")
	harness.SendMessage(t, ws, harness.Message{"type": "start", "request_id": "on-a-socket", "model": "chat",
		"messages": []harness.Message{{"role": "user", "content": "hello"}}, "params": harness.Message{"max_tokens": 3}})
	readMessages(t, ws, "final")
	if _, _, err := generate(t.Context(), dialGRPC(g), &llmv1.StartRequest{RequestId: "by-grpc", Model: "chat", Messages: []string{"hello"},
		MaxTokens: 3}); err != nil {
		t.Fatal(err)
	}
	want := []string{"in-the-body /v1/chat/completions", "in-a-header /v1/chat/completions", "refused /v1/chat/completions",
		"in-the-body /v1/streams/in-the-body", "not there /v1/streams/not%20there/cancel", "on-a-socket /v1/chat/completions", "by-grpc /llm.v1.Inference/Stream"}
	harness.Eventually(t, "all requests are listed", func() error {
		var list struct {
			Requests []struct {
				ID   string `json:"client_request_id"`
				Path string
			}
		}
		g.Get("/api/v1/requests", &list)
		var got []string
		for _, r := range list.Requests {
			got = append(got, r.ID+" "+r.Path)
		}
		text := g.LogText()
		for _, w := range want {
			id, _, _ := strings.Cut(w, " /")
			if line := fmt.Sprintf(`"client_request_id":%q`, id); !slices.Contains(got, w) || !strings.Contains(text, line) {
				return fmt.Errorf("no %q in %q, or no %s in the log", w, got, line)
			}
		}
		return nil
	})
}

package routing

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/grpc"

	llmv1 "github.com/sluice-gateway/sluice/api/llm/v1"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// worker speaks llm.v1.
type worker struct {
	llmv1.UnimplementedInferenceServer
}

// Stream implements llmv1.InferenceServer.
func (worker) Stream(_ *llmv1.StartRequest, out grpc.ServerStreamingServer[llmv1.StreamChunk]) error {
	if err := out.Send(&llmv1.StreamChunk{Payload: &llmv1.StreamChunk_Delta{Delta: &llmv1.TokenDelta{Text: "hi"}}}); err != nil {
		return err
	}
	return out.Send(&llmv1.StreamChunk{Payload: &llmv1.StreamChunk_Final{Final: &llmv1.FinalResult{InputTokens: 3, OutputTokens: 1}}})
}

// A server of upstreams that speaks llm.v1 is called as it is probed: by its name, with the
// authority of its entry.
func TestE2E_T6_AnUpstreamSpeaksGRPCWithTLS(t *testing.T) {
	t.Parallel()
	calls := grpc.NewServer()
	llmv1.RegisterInferenceServer(calls, worker{})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("content-type") == "application/grpc" {
			calls.ServeHTTP(w, r)
		} else if !harness.ServeModelList(w, r, "m") {
			http.NotFound(w, r)
		}
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	ca := certificateFile(t, server.Certificate().Raw)
	g := harness.Start(t, fmt.Sprintf("models:\n  - {name: m, launcher: upstream, protocol: grpc, upstreams: [{url: %q, ca_file: %s, slots: 4}]}\n", server.URL, ca))
	g.AwaitReplicas("m", 1)
	for _, stream := range []bool{true, false} {
		if a := g.Post(harness.ChatPath, harness.ChatBody("m", stream, 5, "Hello")); a.StatusCode != 200 || !strings.Contains(string(a.Content), `"content":"hi"`) {
			t.Errorf("stream %v: %s", stream, a)
		}
	}
}

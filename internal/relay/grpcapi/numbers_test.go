package grpcapi

import (
	"strings"
	"testing"

	pb "github.com/sluice-gateway/sluice/api/llm/v1"
)

// TestX14_NoLimitByGRPC: max_tokens -1 counts as not given.
func TestX14_NoLimitByGRPC(t *testing.T) {
	t.Parallel()
	body, fault := chatBody(&pb.StartRequest{Model: "m", Messages: []string{"a"}, MaxTokens: -1})
	if fault != nil || strings.Contains(string(body), "max_tokens") {
		t.Errorf("%s, %v", body, fault)
	}
	for _, bad := range []*pb.StartRequest{{Model: "m", MaxTokens: -2}, {Model: "m", TimeoutMs: -1}} {
		if _, fault := chatBody(bad); fault == nil {
			t.Errorf("%v is accepted", bad)
		}
	}
}

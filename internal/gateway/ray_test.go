package gateway

import (
	"testing"

	"github.com/sluice-gateway/sluice/engines"
)

// TestN4_ReplicasOnRayArePrivate: two gateways have installations of their own on Ray, so chat-0 of
// one is not chat-0 of the other, and what is in their caches must not be mixed.
func TestN4_ReplicasOnRayArePrivate(t *testing.T) {
	t.Parallel()
	fleet := engines.NewFleet()
	fleet.Set("test", engines.Part{Models: []engines.Model{{Name: "chat"}}, Replicas: []engines.Replica{
		{ID: "chat-0", Model: "chat", Launcher: engines.Ray}, {ID: "chat-1", Model: "chat", Launcher: engines.Local},
		{ID: "chat-pod", Model: "chat", Launcher: engines.Kubernetes},
	}})
	r := &remoteRouting{fleet: fleet}
	for replica, want := range map[string]bool{"chat-0": true, "chat-1": true, "chat-pod": false} {
		if got := r.private(replica); got != want {
			t.Errorf("%s is private: %v, want %v", replica, got, want)
		}
	}
	if a, b := rayIdentity("/one"), rayIdentity("/two"); a == b || a != rayIdentity("/one") {
		t.Errorf("the identities are %s and %s", a, b)
	}
}

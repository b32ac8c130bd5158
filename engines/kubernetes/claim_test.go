package kubernetes

import (
	"strings"
	"testing"
)

// TestU14_ModelsShareAClaimUnderAQuota: the claim of a cache is there for a second model, although
// the quota of the namespace allows no further claim. A model whose claim is refused says why.
func TestU14_ModelsShareAClaimUnderAQuota(t *testing.T) {
	s := newTestNamespace(t, nil)
	s.Apply(t, s.namespace, `{apiVersion: v1, kind: ResourceQuota, metadata: {name: q}, spec: {hard: {persistentvolumeclaims: "1"}}}`)
	// The controller that does this is not part of the test's control plane.
	s.Kubectl(t, "patch", "resourcequota", "q", "-n", s.namespace, "--subresource=status", "--type=merge",
		"-p", `{"status": {"hard": {"persistentvolumeclaims": "1"}, "used": {"persistentvolumeclaims": "0"}}}`)
	g := s.gateway("g", nil)
	fetched := func(name, claim string) Model {
		w := Weights{Claim: claim, Size: 1 << 20, Path: "/w", Link: "sluice/k", Image: "nothing:1", Repository: "org/" + name}
		return engine(name, 1, func(m *Model) { m.Weights = &w })
	}
	g.Set([]Model{fetched("first", "shared")})
	waitUntil(t, "the first Job", func() bool { return len(s.weightsJobs(t)) == 1 })
	g.Set([]Model{fetched("first", "shared"), fetched("second", "shared"), fetched("third", "other")})
	waitUntil(t, "the second Job", func() bool { return len(s.weightsJobs(t)) == 2 })
	waitUntil(t, "the refused claim is told", func() bool {
		blocked := g.Status().Blocked
		return len(blocked) == 1 && strings.Contains(blocked["third"], "exceeded quota")
	})
}

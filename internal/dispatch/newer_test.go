package dispatch

import (
	"testing"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// TestE3_AModelOfTheFleetIsKnownAtOnce: a request finds a model that the fleet shows, although
// nobody has followed the change of the fleet yet.
func TestE3_AModelOfTheFleetIsKnownAtOnce(t *testing.T) {
	t.Parallel()
	s := newStage(Policy{})
	s.put("old", replicas("old-0")...)
	add := func(name string, launcher engines.Launcher) {
		s.fleet.Set(name, engines.Part{Models: []engines.Model{{Name: name, Launcher: launcher, Desired: 1}}})
	}
	add("a", engines.Local)
	if first := s.FirstModel(newRequest("a", "")); first != "a" {
		t.Errorf("the model is not known, but %q", first)
	}
	add("b", engines.Local)
	if _, wait, fault := s.Begin(t.Context(), newRequest("b", "")); fault != nil || wait == nil {
		t.Errorf("the request was to wait for the first replica: %v", fault)
	} else {
		wait.Cancel()
	}
	add("c", engines.None)
	if _, _, fault := s.Schedule(t.Context(), TaskRequest{Tenant: "t", Model: "c", Tokens: 1}); fault != nil {
		t.Errorf("a task: %v", fault)
	}
	add("d", engines.Local)
	scan := openai.Request{}
	if fault := s.SetModel(&scan, &authz.Tenant{Name: "t", Models: []string{"d"}}); fault != nil || scan.Model != "d" {
		t.Errorf("the only model: %q %v", scan.Model, fault)
	}
	if _, _, fault := s.Begin(t.Context(), newRequest("e", "")); fault == nil || fault.Code != openai.CodeModelNotFound {
		t.Errorf("no model has this name: %v", fault)
	}
}

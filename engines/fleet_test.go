package engines_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/engines"
)

func TestFleetMergesItsSources(t *testing.T) {
	f := engines.NewFleet()
	f.Set("local", engines.Part{
		Models:   []engines.Model{{Name: "chat", Launcher: engines.Local, Aliases: []string{"default", "embed"}, Desired: 2}},
		Replicas: []engines.Replica{{ID: "chat-10", Model: "chat"}, {ID: "chat-2", Model: "chat", State: engines.Ready}},
	})
	f.Set("upstream", engines.Part{
		Models: []engines.Model{{Name: "chat", Launcher: engines.Upstream}, {Name: "embed", Launcher: engines.Upstream},
			{Name: "default", Launcher: engines.Upstream, Discovered: true}},
		Replicas: []engines.Replica{{ID: "10.0.0.5:80", Model: "chat"}, {ID: "10.0.0.5:80", Model: "embed"}, {ID: "x", Model: "gone"}},
	})
	s := f.Snapshot()
	chat, ok := s.Resolve("default")
	if !ok || chat.Name != "chat" || chat.Launcher != engines.Local {
		t.Fatalf("the first source to bring a model defines it; got %+v", chat)
	}
	var ids []string
	for _, r := range chat.Replicas {
		ids = append(ids, r.ID)
	}
	if d := cmp.Diff([]string{"chat-2", "chat-10", "10.0.0.5:80"}, ids); d != "" {
		t.Error(d)
	}
	if m, _ := s.Resolve("embed"); m.Name != "embed" {
		t.Error("an alias must not hide a model of that name")
	}
	if ready := chat.Ready(); len(ready) != 1 || ready[0].ID != "chat-2" {
		t.Errorf("ready: %v", ready)
	}
	if _, ok := s.Resolve("nobody"); ok {
		t.Error("found a model that nobody brought")
	}
}

func TestFleetTellsOfChangesOnly(t *testing.T) {
	f := engines.NewFleet()
	part := func(n int) engines.Part {
		p := engines.Part{Models: []engines.Model{{Name: "m"}}}
		for i := range n {
			p.Replicas = append(p.Replicas, engines.Replica{ID: fmt.Sprint("m-", i), Model: "m"})
		}
		return p
	}
	f.Set("a", part(1))
	old, changed := f.Watch()
	f.Set("a", part(1))
	select {
	case <-changed:
		t.Fatal("nothing changed")
	default:
	}
	f.Set("a", part(2))
	<-changed
	if now := f.Snapshot(); now.Version != old.Version+1 || len(old.Models["m"].Replicas) != 1 {
		t.Errorf("version %d after %d; the old snapshot has %d replicas", now.Version, old.Version, len(old.Models["m"].Replicas))
	}
}

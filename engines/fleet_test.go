package engines_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

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

// TestFleetTellsOfEachFieldOfAModel: a reload may change one field of a model and none of its
// replicas.
func TestFleetTellsOfEachFieldOfAModel(t *testing.T) {
	f := engines.NewFleet()
	models := reflect.TypeFor[engines.Model]()
	f.Set("a", engines.Part{Models: []engines.Model{{Name: "m"}}})
	for i := range models.NumField() {
		field := models.Field(i)
		if field.Name == "Name" {
			continue
		}
		m := engines.Model{Name: "m"}
		switch v := reflect.ValueOf(&m).Elem().Field(i); v.Kind() {
		case reflect.String:
			v.SetString("other")
		case reflect.Int:
			v.SetInt(7)
		case reflect.Bool:
			v.SetBool(true)
		default:
			v.Set(reflect.ValueOf([]string{"other"}))
		}
		f.Set("a", engines.Part{Models: []engines.Model{m}})
		if got := f.Snapshot().Models["m"].Model; !reflect.DeepEqual(got, m) {
			t.Errorf("after a change of %s the fleet has %+v", field.Name, got)
		}
		f.Set("a", engines.Part{Models: []engines.Model{{Name: "m"}}})
	}
}

// TestFleetIsWhatItsSourcesSay makes random changes. The fleet always equals one that was set at
// once, and a model is a new pointer exactly if it has changed.
func TestFleetIsWhatItsSourcesSay(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	sources := []string{"local", "kubernetes", "upstream"}
	parts := map[string]engines.Part{}
	f := engines.NewFleet()
	for step := range 600 {
		source := sources[random.IntN(len(sources))]
		parts[source] = mutate(random, parts[source])
		old := f.Snapshot()
		f.Set(source, parts[source])
		now := f.Snapshot()
		fresh := engines.NewFleet()
		for name, part := range parts {
			fresh.Set(name, part)
		}
		want := fresh.Snapshot()
		if d := cmp.Diff(want, now, cmpopts.IgnoreFields(engines.Snapshot{}, "Version"), cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.AddrPort{})); d != "" {
			t.Fatalf("step %d, want - got +\n%s", step, d)
		}
		changed := !cmp.Equal(old.Names, now.Names) || len(old.Models) != len(now.Models)
		for name, m := range now.Models {
			before := old.Models[name]
			if same := before != nil && cmp.Equal(before, m, cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.AddrPort{})); same != (before == m) {
				t.Fatalf("step %d: %s is the same: %t, is the same value: %t", step, name, same, before == m)
			}
			changed = changed || before != m
		}
		if changed != (old != now) || changed != (now.Version == old.Version+1) {
			t.Fatalf("step %d: changed: %t, version %d after %d", step, changed, now.Version, old.Version)
		}
	}
}

// mutate makes one random change to a part, or none.
func mutate(random *rand.Rand, p engines.Part) engines.Part {
	p = engines.Part{Models: slices.Clone(p.Models), Replicas: slices.Clone(p.Replicas)}
	name := func() string { return fmt.Sprint("m", random.IntN(12)) }
	switch n := random.IntN(10); {
	case n == 0 && len(p.Models) > 0:
		i := random.IntN(len(p.Models))
		p.Models = slices.Delete(p.Models, i, i+1)
	case n == 1 && len(p.Models) > 0:
		p.Models[random.IntN(len(p.Models))].Desired = random.IntN(3)
	case n == 2 && len(p.Models) > 0:
		p.Models[random.IntN(len(p.Models))].Aliases = []string{name()}
	case n == 3:
		p.Models = append(p.Models, engines.Model{Name: name(), Discovered: random.IntN(2) == 0})
	case n == 4 && len(p.Replicas) > 0:
		i := random.IntN(len(p.Replicas))
		p.Replicas = slices.Delete(p.Replicas, i, i+1)
	case n < 7 && len(p.Replicas) > 0:
		p.Replicas[random.IntN(len(p.Replicas))].Slots = random.IntN(3)
	case n < 9:
		i := random.IntN(len(p.Replicas) + 1)
		p.Replicas = slices.Insert(p.Replicas, i, engines.Replica{ID: fmt.Sprint("r", random.Uint32()), Model: name()})
	}
	return p
}

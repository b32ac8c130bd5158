package gateway

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/admin"
	"github.com/sluice-gateway/sluice/internal/config"
)

// What an operator has set is in force in the next process: drains under any file, numbers of
// replicas under the same file. What was taken back is not there any more.
func TestO8_DrainsAndScalesOutliveTheProcess(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	dir := claimed(t, path)
	const models = "models: [{name: a, engine: sim}, {name: b, engine: sim}]\n"
	c := parse(t, path, models)
	set := newGateway(t, dir, c).operator
	set.DrainModel("a", true)
	set.DrainModel("b", true)
	set.DrainModel("b", false)
	set.DrainReplica("b-0", true)
	for _, to := range []*admin.Bounds{{Min: 2, Max: 4}, nil, {Min: 1, Max: 3}} {
		if _, fault := set.SetScale("b", to); fault != nil {
			t.Fatal(fault)
		}
	}
	restored := func(c *config.Config) (models, replicas map[string]bool, scale admin.Scale) {
		g := newGateway(t, dir, c)
		g.operator.restore()
		models, replicas = g.dispatcher.Drained()
		return models, replicas, *g.launchers.scaleOf("b")
	}
	m, r, scale := restored(c)
	if diff := cmp.Diff([]map[string]bool{{"a": true}, {"b-0": true}}, []map[string]bool{m, r}); diff != "" {
		t.Error(diff)
	}
	if scale.Bounds != (admin.Bounds{Min: 1, Max: 3}) || !scale.Overridden {
		t.Errorf("b has %+v", scale)
	}
	m, _, scale = restored(parse(t, path, models+"drain_timeout: 7s\n"))
	if !m["a"] || scale.Overridden {
		t.Errorf("with another file: %v, %+v", m, scale)
	}
}

// A model that lacks only replicas that are drained is not starting.
func TestO8_ADrainedReplicaIsNotStarting(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		usable, needed int
		drained        map[string]bool
		want           string
	}{
		{1, 2, map[string]bool{"m-1": true}, "ReplicaDrained"},
		{1, 2, nil, "Starting"},
		{1, 3, map[string]bool{"m-1": true}, "Starting"},
		{2, 2, map[string]bool{"m-1": true}, "Ready"},
	} {
		s := modelStanding{usable: test.usable, needed: test.needed, model: &engines.ModelSnapshot{Model: engines.Model{Name: "m"},
			Replicas: []engines.Replica{{ID: "m-0", State: engines.Ready}, {ID: "m-1", State: engines.Ready}}}}
		c := withDrained(modelCondition(s.model, s.usable, s.needed), s, test.drained)
		if c.Reason != test.want || strings.Contains(c.Message, "m-1") != (test.want == "ReplicaDrained") {
			t.Errorf("%+v: %+v", test, c)
		}
	}
}

// A file that a later version or a damaged disk has written stops no start, and is kept.
func TestO8_DamagedDrainsAreNotRestored(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	dir := claimed(t, path)
	c := parse(t, path, "models: [{name: a, engine: sim}]\n")
	newGateway(t, dir, c).operator.DrainModel("a", true)
	file := filepath.Join(dir.Path(), operatorFile)
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	data[len(`{"drained_models":["`)] ^= 2
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	g := newGateway(t, dir, c)
	g.operator.restore()
	if m, r := g.dispatcher.Drained(); m != nil || r != nil {
		t.Errorf("restored %v, %v", m, r)
	}
	if kept, err := os.ReadFile(file + ".bad"); err != nil || string(kept) != string(data) {
		t.Errorf("%v: %s", err, kept)
	}
}

// A changed file ends the numbers of replicas for the next process too. The same file leaves them.
func TestO8_AReloadEndsScalesForTheNextProcess(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	dir := claimed(t, path)
	c := parse(t, path, "models: [{name: a, engine: sim}]\n")
	g := newGateway(t, dir, c)
	if _, fault := g.operator.SetScale("a", &admin.Bounds{Min: 1, Max: 3}); fault != nil {
		t.Fatal(fault)
	}
	if err := g.reload(c); err != nil {
		t.Fatal(err)
	}
	if s := g.launchers.scaleOf("a"); !s.Overridden {
		t.Errorf("after a reload of the same file: %+v", s)
	}
	c = parse(t, path, "models: [{name: a, engine: sim}]\n# changed\n")
	if err := g.reload(c); err != nil {
		t.Fatal(err)
	}
	next := newGateway(t, dir, c)
	next.operator.restore()
	if s := next.launchers.scaleOf("a"); s.Overridden {
		t.Errorf("after a reload: %+v", s)
	}
}

// Once the disk has room again, drains are written without another change.
func TestO8_DrainsThatCouldNotBeWritten(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	g := newGateway(t, claimed(t, path), parse(t, path, "models: [{name: a, engine: sim}]\n"))
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = g.operator.run(ctx) })
	defer running.Wait()
	defer cancel()
	file := filepath.Join(path, operatorFile)
	if err := os.MkdirAll(filepath.Join(file, "full"), 0o700); err != nil { // the write fails, as on a full disk
		t.Fatal(err)
	}
	g.operator.DrainModel("a", true)
	if err := os.RemoveAll(file); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the drain is stored", func() bool {
		s, err := readOperatorState(file)
		return err == nil && slices.Equal(s.DrainedModels, []string{"a"})
	})
}

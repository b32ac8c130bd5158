package local

import (
	"context"
	"encoding/json"
	"maps"
	"sync"

	"github.com/sluice-gateway/sluice/engines"
)

// visible is the variable that tells CUDA which devices there are. Ours are named by UUID, so that no order of theirs matters.
const visible = "CUDA_VISIBLE_DEVICES"

// devices is what the replica's environment says of its GPUs. A model with resources sees what it was given and nothing else; one
// without sees what we see.
func (r *runner) devices(m *Model) []string {
	if r.replica.GPUs == "" && (m.Resources == nil || r.launcher.hasNoGPUs()) {
		return nil
	}
	return []string{visible + "=" + r.replica.GPUs}
}

// turns lets the replicas that share a GPU start one after another: an engine looks how much memory is free and takes it, and two that look
// at once take the same.
type turns struct {
	mu sync.Mutex
	// starting is the replica that starts, by device; guarded by mu
	starting map[string]string
	// changed is closed when a device becomes free, and replaced; guarded by mu
	changed chan struct{}
}

func newTurns() *turns { return &turns{starting: map[string]string{}, changed: make(chan struct{})} }

// take gives the replica its turn on all the devices, or tells which replica has one of them and when to ask again.
func (t *turns) take(id string, devices []string) (holder string, again <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, d := range devices {
		if other, ok := t.starting[d]; ok && other != id {
			return other, t.changed
		}
	}
	for _, d := range devices {
		t.starting[d] = id
	}
	return "", nil
}

// done ends the turn of a replica, if it has one.
func (t *turns) done(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := len(t.starting)
	maps.DeleteFunc(t.starting, func(_, holder string) bool { return holder == id })
	if len(t.starting) < before {
		close(t.changed)
		t.changed = make(chan struct{})
	}
}

// awaitTurn waits until nobody else starts on the replica's GPUs, or until staying ends.
func (r *runner) awaitTurn(staying context.Context) {
	for {
		holder, again := r.launcher.turns.take(r.id, r.replica.Devices())
		if holder == "" {
			return
		}
		r.report(staying, engines.Pending, "waits for "+holder+", which starts on the same GPU")
		select {
		case <-again:
		case <-staying.Done():
			return
		}
	}
}

// resources is what the replica takes, for its record.
func (r *runner) resources() string {
	data, _ := json.Marshal(r.replica.Resources) // numbers that came from text: they always marshal
	return string(data)
}

// resourcesOf reads what a record says. An older one says nothing.
func resourcesOf(text string) engines.Resources {
	var r engines.Resources
	_ = json.Unmarshal([]byte(text), &r) // what cannot be read is nothing
	return r
}

package local

import (
	"context"
	"encoding/json"
	"maps"
	"sync"

	"github.com/sluice-gateway/sluice/engines"
)

// visible is the variable that tells CUDA which devices there are. The launcher names them by UUID,
// so that their order does not matter.
const visible = "CUDA_VISIBLE_DEVICES"

// devices returns the replica's environment about GPUs. A replica of a model with resources sees
// only its own GPUs. Without resources, it sees the GPUs that the launcher sees.
func (r *runner) devices(m *Model) []string {
	if r.replica.GPUs == "" && (m.Resources == nil || r.launcher.hasNoGPUs()) {
		return nil
	}
	return visibleDevices(r.replica.Devices())
}

// startLocks lets only one of the replicas that share a GPU start at a time. An engine allocates
// memory by what is free when it starts, so two that start together would both count on the same
// memory.
type startLocks struct {
	mu sync.Mutex
	// starting is the id of the replica that starts, by device; guarded by mu
	starting map[string]string
	// changed is closed when a device is unlocked, and replaced; guarded by mu
	changed chan struct{}
}

func newStartLocks() *startLocks {
	return &startLocks{starting: map[string]string{}, changed: make(chan struct{})}
}

// tryLock locks all the devices for the replica. If another replica has locked one of them, tryLock
// returns its id and a channel that is closed when trying again makes sense.
func (l *startLocks) tryLock(id string, devices []string) (holder string, unlocked <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range devices {
		if other, ok := l.starting[d]; ok && other != id {
			return other, l.changed
		}
	}
	for _, d := range devices {
		l.starting[d] = id
	}
	return "", nil
}

// unlock unlocks the devices of a replica, if it has locked any.
func (l *startLocks) unlock(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := len(l.starting)
	maps.DeleteFunc(l.starting, func(_, holder string) bool { return holder == id })
	if len(l.starting) < before {
		close(l.changed)
		l.changed = make(chan struct{})
	}
}

// awaitStartLock waits until no other replica starts on the replica's GPUs, or until ctx ends.
func (r *runner) awaitStartLock(ctx context.Context) {
	for {
		holder, unlocked := r.launcher.startLocks.tryLock(r.id, r.replica.Devices())
		if holder == "" {
			return
		}
		r.report(ctx, engines.Pending, "waits for "+holder+", which starts on the same GPU")
		select {
		case <-unlocked:
		case <-ctx.Done():
			return
		}
	}
}

// resources returns the replica's resources for its record.
func (r *runner) resources() string {
	data, _ := json.Marshal(r.replica.Resources) // numbers that came from text: they always marshal
	return string(data)
}

// resourcesOf parses the resources in a record. It returns none for an older record, which has
// none.
func resourcesOf(text string) engines.Resources {
	var r engines.Resources
	_ = json.Unmarshal([]byte(text), &r) // what cannot be parsed counts as nothing
	return r
}

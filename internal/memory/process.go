package memory

import (
	"context"
	"math"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
	"time"

	"github.com/sluice-gateway/sluice/internal/beat"
)

// SetLimit sets the soft limit of this process's memory, and returns the limit in force and whether
// the environment variable GOMEMLIMIT has set it, which comes first. Go's garbage collector works
// harder as the process comes near the limit.
func SetLimit(limit int64) (inForce int64, byEnvironment bool) {
	if os.Getenv("GOMEMLIMIT") != "" {
		return debug.SetMemoryLimit(-1), true
	}
	if limit <= 0 {
		limit = math.MaxInt64
	}
	debug.SetMemoryLimit(limit)
	return limit, false
}

// Monitor measures the memory of this process, and gives memory back to the operating system. It
// does so after the budget was used much more than it is now, and while the process has little to
// do.
type Monitor struct {
	Budget *Budget

	inUse atomic.Int64
	// room is what Reserve has reserved. Nobody reads or writes it.
	room []byte
	// allocated is how many bytes the process had allocated at the last call of settle. settled is
	// when settle has given memory back last. busy tells that the process had much to do since
	// then. Only Run's goroutine uses the three.
	allocated uint64
	settled   time.Time
	busy      bool
}

const (
	// interval is the time between two measurements.
	interval = 2 * time.Second
	// garbageRoom is how many bytes of garbage Go may keep at least. Go itself collects after as
	// many bytes as the live heap has, which are few in a gateway without long streams. It then
	// collects several times a second.
	garbageRoom = 16 << 20
	// worthFreeing is how many bytes must have been released before memory is given back, which
	// costs a whole garbage collection.
	worthFreeing = 32 << 20
	// quietBytes is how many bytes a process that has little to do allocates between two
	// measurements at most.
	quietBytes = 4 << 20
	// worthSettling is how many bytes a quiet process must be able to give back: so many, and this
	// share of its live heap. settleInterval is the least time between two times. A process that
	// was quiet since the last time makes garbage slowly, and would take again what it gives back.
	// It waits for idleInterval.
	worthSettling  = 4 << 20
	settleShare    = 4
	settleInterval = 30 * time.Second
	idleInterval   = 10 * time.Minute
)

// Reserve makes room for garbage, so that Go collects less often. The room is memory that is never
// touched: it counts as live for Go, and takes none of the machine. The soft limit grows by as
// much. Nothing is reserved if the environment variable GOGC says how much garbage there may be.
// Call Reserve once, after SetLimit and before Run.
func (m *Monitor) Reserve() {
	if os.Getenv("GOGC") != "" {
		return
	}
	m.room = make([]byte, garbageRoom)
	if limit := debug.SetMemoryLimit(-1); limit < math.MaxInt64-garbageRoom {
		debug.SetMemoryLimit(limit + garbageRoom)
	}
}

// Run measures until ctx ends.
func (m *Monitor) Run(ctx context.Context) error {
	for {
		m.measure()
		select {
		case <-ctx.Done():
			m.release()
			return nil
		case <-beat.After(interval):
		}
		if !m.free() {
			m.settle(time.Now())
		}
	}
}

// release gives back the room for garbage and all that is free. The process may stay for long, with
// nobody to settle it.
func (m *Monitor) release() {
	if m.room != nil {
		m.room = nil
		if limit := debug.SetMemoryLimit(-1); limit < math.MaxInt64 {
			debug.SetMemoryLimit(limit - garbageRoom)
		}
	}
	debug.FreeOSMemory()
}

// InUse returns how many bytes of memory this process uses, as Go counts them for its limit.
func (m *Monitor) InUse() int64 { return m.inUse.Load() }

// measure reads what the runtime counts.
func (m *Monitor) measure() {
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	m.inUse.Store(int64(samples[0].Value.Uint64()) - int64(samples[1].Value.Uint64()) - int64(len(m.room)))
}

// free gives memory back if much less of the budget is in use than before. Go itself would keep it
// until its next collection, which comes late when little is allocated.
func (m *Monitor) free() (freed bool) {
	if m.Budget == nil {
		return false
	}
	now := m.Budget.Total()
	if peak := m.Budget.peak.Load(); peak-now < worthFreeing || now > peak/4 {
		return false
	}
	m.Budget.resetPeak()
	debug.FreeOSMemory()
	m.measure()
	return true
}

// settle gives memory back while the process has little to do: what the start or a load has left,
// and the garbage that would wait for minutes. It costs a collection of the live heap.
func (m *Monitor) settle(now time.Time) (settled bool) {
	samples := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/free:bytes"}}
	metrics.Read(samples)
	value := func(i int) uint64 { return samples[i].Value.Uint64() }
	before := m.allocated
	m.allocated = value(0)
	room := uint64(len(m.room))
	live, held := value(1)-min(value(1), room), value(2)+value(3)-room
	wait := idleInterval
	if m.busy {
		wait = settleInterval
	}
	switch {
	case before == 0 || m.allocated-before > quietBytes: // the first measurement, or a busy process
		m.busy = true
		return false
	case m.settled.IsZero(): // the start has left something
	case now.Sub(m.settled) < wait || held < live+max(worthSettling, live/settleShare):
		return false
	}
	m.settled, m.busy = now, false
	debug.FreeOSMemory()
	UnmapProgram()
	m.measure()
	return true
}

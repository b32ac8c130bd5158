package memory

import (
	"context"
	"math"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
	"time"
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

// Monitor measures the memory of this process, and gives memory back to the operating system after
// the budget was used much more than it is now.
type Monitor struct {
	Budget *Budget
	// Interval is the time between two measurements. 0: 2 s.
	Interval time.Duration

	inUse atomic.Int64
}

const (
	defaultInterval = 2 * time.Second
	// worthFreeing is how many bytes must have been released before memory is given back, which
	// costs a whole garbage collection.
	worthFreeing = 32 << 20
)

// Run measures until ctx ends.
func (m *Monitor) Run(ctx context.Context) error {
	interval := m.Interval
	if interval <= 0 {
		interval = defaultInterval
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		m.measure()
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		m.free()
	}
}

// InUse returns how many bytes of memory this process uses, as Go counts them for its limit.
func (m *Monitor) InUse() int64 { return m.inUse.Load() }

// measure reads what the runtime counts.
func (m *Monitor) measure() {
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	m.inUse.Store(int64(samples[0].Value.Uint64()) - int64(samples[1].Value.Uint64()))
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

package realtime

import "sync"

// Phases of a turn that waits for its client, beside those of stream.
const (
	phasePaused = "paused"
	phaseCredit = "credit"
)

// gate holds back what a client does not want yet: it has paused, or has given credit and used it up.
type gate struct {
	mu       sync.Mutex
	paused   bool
	windowed bool // credit counts
	credit   int64
	// changed is closed when another take may succeed; nil: nobody waits
	changed chan struct{}
}

// newGate lets everything pass, or so many messages if there is a credit.
func newGate(credit *int64) *gate {
	g := &gate{windowed: credit != nil}
	if credit != nil {
		g.credit = *credit
	}
	return g
}

// take lets one message pass, or says what it waits for and when to try again.
func (g *gate) take() (waits string, changed <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.paused:
		waits = phasePaused
	case g.windowed && g.credit == 0:
		waits = phaseCredit
	default:
		if g.windowed {
			g.credit--
		}
		return "", nil
	}
	if g.changed == nil {
		g.changed = make(chan struct{})
	}
	return waits, g.changed
}

// pause holds everything back, or lets it go.
func (g *gate) pause(on bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.paused = on
	g.wakeLocked()
}

// give adds credit; false when none is counted.
func (g *gate) give(n int64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.windowed {
		return false
	}
	g.credit = min(g.credit+n, 1<<62) // both are far below: no overflow
	g.wakeLocked()
	return true
}

func (g *gate) wakeLocked() {
	if g.changed != nil {
		close(g.changed)
		g.changed = nil
	}
}

package realtime

import "sync"

// Phases of a turn that waits for its client, beside those of the relay.
const (
	phasePaused = "paused"
	phaseCredit = "credit"
)

// gate holds back messages that the client does not want yet, because it has paused the turn or has
// used up its credit.
type gate struct {
	mu           sync.Mutex
	paused       bool
	countsCredit bool // the client has given credit
	credit       int64
	// changed is closed when another acquire may succeed. nil: nobody waits.
	changed chan struct{}
}

// newGate returns a gate that lets every message pass, or only so many if there is a credit.
func newGate(credit *int64) *gate {
	g := &gate{countsCredit: credit != nil}
	if credit != nil {
		g.credit = *credit
	}
	return g
}

// acquire lets one message pass, or returns the phase that the turn waits in, and a channel that is
// closed when it should try again.
func (g *gate) acquire() (waits string, changed <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.paused:
		waits = phasePaused
	case g.countsCredit && g.credit == 0:
		waits = phaseCredit
	default:
		if g.countsCredit {
			g.credit--
		}
		return "", nil
	}
	if g.changed == nil {
		g.changed = make(chan struct{})
	}
	return waits, g.changed
}

// setPaused pauses or resumes the turn.
func (g *gate) setPaused(on bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.paused = on
	g.wakeLocked()
}

// addCredit adds credit. It returns false if credit is not counted.
func (g *gate) addCredit(n int64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.countsCredit {
		return false
	}
	g.credit = min(g.credit+n, 1<<62) // both are far below the bound, so the sum does not overflow
	g.wakeLocked()
	return true
}

func (g *gate) wakeLocked() {
	if g.changed != nil {
		close(g.changed)
		g.changed = nil
	}
}

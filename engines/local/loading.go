package local

import (
	"fmt"
	"time"

	"github.com/sluice-gateway/sluice/internal/process"
)

const (
	// stallLooks is how often within Model.StartStall the data of a silent process is counted.
	stallLooks = 30
	// minTransferred is how many bytes between two looks are progress. Probes and timers transfer
	// less.
	minTransferred = 256 << 10
)

// loading watches whether a starting process makes progress: its log grows, or it reads or writes
// much.
type loading struct {
	process        *process.Process
	timeout, stall time.Duration
	// began is when the process was started or adopted, moved when it made progress last.
	began, moved time.Time
	// logSize is the size of the log at the last look. transferred are the bytes at countedAt.
	logSize     int64
	transferred uint64
	countedAt   time.Time
}

func newLoading(p *process.Process, m *Model) *loading {
	now := time.Now()
	return &loading{process: p, timeout: m.startTimeout(), stall: m.startStall(), began: now, moved: now, logSize: p.LogSize(), countedAt: now}
}

// fault returns why the process is given up at now. It is empty while the process may load.
func (l *loading) fault(now time.Time) string {
	l.look(now)
	switch {
	case now.Sub(l.began) > l.timeout:
		return fmt.Sprintf("not ready after %v", l.timeout)
	case now.Sub(l.moved) > l.stall:
		return fmt.Sprintf("no progress for %v", l.stall)
	}
	return ""
}

// look sets moved if the process has made progress.
func (l *loading) look(now time.Time) {
	if size := l.process.LogSize(); size != l.logSize {
		l.logSize, l.moved = size, now
	}
	if now.Sub(l.countedAt) < l.stall/stallLooks || now.Sub(l.countedAt) < progressInterval {
		return
	}
	before := l.transferred
	l.transferred, l.countedAt = l.process.Transferred(), now
	if l.transferred >= before+minTransferred {
		l.moved = now
	}
}

package relay

import (
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/internal/dispatch"
)

// Phase is what a call waits for.
type Phase string

// The phases of a call, in their order.
const (
	// Queued: the call waits for a ticket.
	Queued Phase = "queued"
	// Starting: the call waits for a replica that is being started.
	Starting Phase = "starting"
	// Prefill: the call waits for the first token.
	Prefill Phase = "prefill"
	// Decode: the call waits for the next token.
	Decode Phase = "decode"
)

// Progress tells a client what its call waits for.
type Progress struct {
	Phase Phase
	// Position is the place in the queue, from 1. 0: it is not known.
	Position int
	// Waited is the time since the call was received.
	Waited time.Duration
	// Note says how much of the weights has been fetched, or is the last line that the starting
	// replica has logged, without a line break. Empty: there is none, or the tenant may not read
	// it.
	Note string
}

// String returns the progress as the comment of a heartbeat. parseProgress reads it.
func (p Progress) String() string {
	var b strings.Builder
	b.WriteString(string(p.Phase))
	if p.Position > 0 {
		b.WriteString(" position=" + strconv.Itoa(p.Position))
	}
	b.WriteString(" waited_ms=" + strconv.FormatInt(p.Waited.Milliseconds(), 10))
	if p.Note != "" {
		b.WriteString(" " + p.Note)
	}
	return b.String()
}

// parseProgress reads what Progress.String has written, from the bytes of a comment. What cannot be
// read is zero.
func parseProgress(comment []byte) (p Progress) {
	phase, rest, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(string(comment)), ": "), " ")
	p.Phase = Phase(phase)
	if text, ok := strings.CutPrefix(rest, "position="); ok {
		text, rest, _ = strings.Cut(text, " ")
		p.Position, _ = strconv.Atoi(text)
	}
	if text, ok := strings.CutPrefix(rest, "waited_ms="); ok {
		text, p.Note, _ = strings.Cut(text, " ")
		ms, _ := strconv.ParseInt(text, 10, 64)
		p.Waited = time.Duration(ms) * time.Millisecond
	}
	return p
}

// generationStatus is what is known of a generation while it runs. Any goroutine may call its
// methods.
type generationStatus struct {
	// mu guards the fields below. It may be locked under the locks of the broadcast and of its
	// subscribers, not the other way round.
	mu    sync.Mutex
	phase Phase
	// wait describes the wait for a ticket. nil: the generation does not wait for one.
	wait *dispatch.Wait
	// result is the result so far.
	result Result
	// header has the headers of responses that say how much the tenant may still ask for.
	header map[string]string
}

// enter sets the phase. wait describes the wait for a ticket; nil: there is none.
func (s *generationStatus) enter(p Phase, wait *dispatch.Wait) {
	s.mu.Lock()
	s.phase, s.wait = p, wait
	s.mu.Unlock()
}

// admitted replaces the result so far after a ticket was given. header says how much the tenant may
// still ask for.
func (s *generationStatus) admitted(r Result, header map[string]string) {
	s.mu.Lock()
	s.result, s.header = r, header
	s.mu.Unlock()
}

// update changes the result so far.
func (s *generationStatus) update(change func(*Result)) {
	s.mu.Lock()
	change(&s.result)
	s.mu.Unlock()
}

// resultSoFar returns the result for a subscriber that leaves before the end.
func (s *generationStatus) resultSoFar() Result {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.result
}

// responseHeader returns the replica that answers, empty if there is none yet, and further headers
// for the response.
func (s *generationStatus) responseHeader() (replica string, header map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.result.Replica, s.header
}

// progress returns what the generation waits for.
func (g *generation) progress() Progress {
	s := &g.status
	s.mu.Lock()
	p := Progress{Phase: s.phase, Waited: time.Since(g.call.Received)}
	wait := s.wait
	s.mu.Unlock()
	if p.Phase == Queued && wait != nil {
		w := wait.Progress(g.relay.config.Dispatcher)
		if p.Position = w.Position; w.Starting {
			p.Phase = Starting
		}
		if w.Public || g.call.Tenant.EngineLog {
			p.Note = w.Note
		}
	}
	return p
}

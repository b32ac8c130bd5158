package admin

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-gateway/sluice/internal/history"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/request"
)

const (
	// eventInterval is the shortest time between two events of the same kind.
	eventInterval = time.Second
	// maxWatchers bounds the clients of /api/v1/events.
	maxWatchers = 100
	// maxFrames is how many events may wait for one client. A client that reads more slowly is
	// dropped. It comes back by itself and gets the whole state.
	maxFrames = 32
	// maxEventRequests is how many finished requests one event has at most.
	maxEventRequests = 200
	// heartbeatInterval is the longest time without a byte for a client.
	heartbeatInterval = 15 * time.Second
	// writeTimeout is how long a client may take to read one event.
	writeTimeout = 10 * time.Second
)

// Events sends what happens at the gateway to the clients of /api/v1/events. Each event is encoded
// once for all of them, and nothing is encoded while there is none. Make it with NewEvents. Its
// methods are safe for concurrent use.
type Events struct {
	// watching is the number of watchers, for a look without a lock.
	watching atomic.Int32
	// wake has a value when somebody has joined or left.
	wake chan struct{}
	// ended is closed by End.
	ended chan struct{}

	mu sync.Mutex
	// watchers are all clients; those in joining have got nothing yet. Guarded by mu.
	watchers map[*watcher]bool
	joining  []*watcher
	// running: there is a goroutine that encodes; guarded by mu.
	running bool
	// finished are requests for the next event, dropped counts those that did not fit; guarded by
	// mu.
	finished []request.Summary
	dropped  int
	// spare is memory for finished. Only run uses it.
	spare []request.Summary
	// handlers runs once for each client, until its response is complete.
	handlers sync.WaitGroup
}

// watcher is one client. frames is closed when the client is dropped.
type watcher struct{ frames chan []byte }

// NewEvents returns Events without watchers. It starts nothing.
func NewEvents() *Events {
	return &Events{wake: make(chan struct{}, 1), ended: make(chan struct{}), watchers: map[*watcher]bool{}}
}

// Finished tells of a request that has ended (see request.Subscribers).
func (e *Events) Finished(q request.Summary) {
	if e.watching.Load() == 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.finished) == maxEventRequests {
		e.dropped++
		return
	}
	e.finished = append(e.finished, q)
}

// Sampled tells of a new sample of the history (see history.Config).
func (e *Events) Sampled(at time.Time, s history.Sample) {
	if e.watching.Load() > 0 {
		e.send(frame("sample", encodeSample(at, s)))
	}
}

// End ends the responses to all clients and refuses new ones, for example before the listener is
// closed. It returns when the responses are complete, or after the time. Only the first call does
// something.
func (e *Events) End(within time.Duration) {
	e.mu.Lock()
	select {
	case <-e.ended:
	default:
		close(e.ended)
	}
	e.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	go func() {
		e.handlers.Wait()
		cancel()
	}()
	<-ctx.Done()
}

// join adds a client. look returns what the state is made of.
func (e *Events) join(look func() present) (*watcher, *openai.Error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	select {
	case <-e.ended:
		return nil, refusal(http.StatusServiceUnavailable, "The gateway ends, or another process serves it now. Ask again.")
	default:
	}
	if len(e.watchers) >= maxWatchers {
		return nil, refusal(http.StatusTooManyRequests, "As many clients read /api/v1/events as may. Close one of them.")
	}
	w := &watcher{make(chan []byte, maxFrames)}
	e.watchers[w] = true
	e.joining = append(e.joining, w)
	e.watching.Store(int32(len(e.watchers)))
	e.handlers.Add(1)
	if !e.running {
		e.running = true
		go e.run(look)
	}
	e.wakeUp()
	return w, nil
}

// leave removes a client whose response is complete.
func (e *Events) leave(w *watcher) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.removeLocked(w)
	e.handlers.Done()
	e.wakeUp()
}

func (e *Events) removeLocked(w *watcher) {
	delete(e.watchers, w)
	e.watching.Store(int32(len(e.watchers)))
}

// wakeUp has run look at the clients.
func (e *Events) wakeUp() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// send gives an encoded event to each client that has the state, and drops those that are slow.
func (e *Events) send(frame []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for w := range e.watchers {
		if slices.Contains(e.joining, w) {
			continue
		}
		select {
		case w.frames <- frame:
		default:
			close(w.frames)
			e.removeLocked(w)
		}
	}
}

// run encodes events until nobody watches.
func (e *Events) run(look func() present) {
	tick := time.NewTicker(eventInterval)
	defer tick.Stop()
	state := newState()
	state.update(look())
	for {
		if !e.welcome(state) {
			return
		}
		select {
		case <-e.wake:
		case <-tick.C:
			if changes, ok := state.update(look()); ok {
				e.send(frame("state", changes))
			}
			if requests, dropped := e.takeFinished(); len(requests) > 0 {
				e.send(frame("requests", encodeFinished(requests, dropped)))
			}
		}
	}
}

// welcome sends the whole state to new clients. It reports false, and run may be started again, if
// nobody watches.
func (e *Events) welcome(s *state) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.watchers) == 0 {
		e.running, e.joining, e.finished, e.dropped = false, nil, nil, 0
		return false
	}
	if len(e.joining) > 0 {
		whole := frame("state", s.whole())
		for _, w := range e.joining {
			w.frames <- whole // the first of maxFrames
		}
		e.joining = nil
	}
	return true
}

// takeFinished returns the requests that have ended since the last call, and how many others. The
// caller may use the requests until the next call.
func (e *Events) takeFinished() (requests []request.Summary, dropped int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	requests, dropped = e.finished, e.dropped
	clear(e.spare) // the texts of the requests before
	e.finished, e.spare, e.dropped = e.spare[:0], requests, 0
	return requests, dropped
}

// frame returns an event of the format of the WHATWG, section 9.2. data has no line break.
func frame(event string, data []byte) []byte {
	b := make([]byte, 0, len(event)+len(data)+18)
	b = append(append(b, "event: "...), event...)
	b = append(append(b, "\ndata: "...), data...)
	return append(b, "\n\n"...)
}

// events answers with a stream of events that ends with the client, with its right to read them, or
// with the listener.
func (h *handler) events(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodHead {
		w.Header().Set("Content-Type", "text/event-stream")
		return
	}
	watcher, fault := h.Events.join(h.present)
	if fault != nil {
		writeError(w, fault)
		return
	}
	defer h.Events.leave(watcher)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // for proxies that would hold the events back
	out := http.NewResponseController(w)
	write := func(data []byte) bool {
		if _, fault := h.admit(r); fault != nil {
			return false
		}
		_ = out.SetWriteDeadline(time.Now().Add(writeTimeout)) // a test's writer has none
		_, err := w.Write(data)
		return err == nil && out.Flush() == nil
	}
	for ok := write([]byte("retry: 1000\n\n")); ok; {
		select {
		case data, more := <-watcher.frames:
			ok = more && write(data)
		case <-time.After(heartbeatInterval):
			ok = write([]byte(": heartbeat\n\n"))
		case <-h.Events.ended:
			write(frame("end", []byte("{}")))
			return
		case <-r.Context().Done():
			return
		}
	}
}

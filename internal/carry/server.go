package carry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/lack"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/request"
)

// Server counts what the predecessors of this process hold.
type Server struct {
	// Ended is told of each request that has ended at a predecessor, and whether its metrics are to
	// be counted here. It is set before Serve. nil: nobody is told.
	Ended func(q request.Summary, counts bool)
	// Used is told of the tokens that a predecessor has counted apart from the end of a request.
	// See request.Summary.UsedApart. It is set as Ended is.
	Used func(q request.Summary)
	// Retried is told of each attempt that a predecessor has repeated at another replica. It is
	// set as Ended is.
	Retried func(model, tenant, reason string)

	dispatcher *dispatch.Dispatcher
	log        *zap.Logger

	mu sync.Mutex
	// predecessors are connected now; guarded by mu
	predecessors map[*predecessor]struct{}
	// synced is closed and replaced when a predecessor has told everything; guarded by mu
	synced chan struct{}
	// stopAt is when all streams must have ended; the zero value means that the gateway does not
	// stop. Guarded by mu.
	stopAt time.Time
}

// predecessor is the connection of one predecessor.
type predecessor struct {
	conn net.Conn
	// process, held and synced are guarded by Server.mu. held is changed by the connection's
	// goroutine alone.
	process Process
	held    map[uint64]*dispatch.CarriedRequest
	synced  bool
}

// Predecessor is a predecessor as operators see it.
type Predecessor struct {
	Process
	// Requests is the number of requests that it holds.
	Requests int
}

// NewServer returns a Server without predecessors.
func NewServer(d *dispatch.Dispatcher, log *zap.Logger) *Server {
	return &Server{dispatcher: d, log: log, predecessors: map[*predecessor]struct{}{}, synced: make(chan struct{})}
}

// Serve accepts predecessors on l until ctx ends. Then it closes l and all connections, so that
// the predecessors connect to the next process, and frees what they hold. Serve returns nil, or why
// accepting has failed.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	defer context.AfterFunc(ctx, func() { l.Close() })()
	defer l.Close()
	var connections sync.WaitGroup
	defer connections.Wait()
	failed := func(err error) { s.log.Warn("connection of an earlier process not accepted", zap.Error(err)) }
	for {
		conn, err := lack.Accept(l.Accept, failed)
		switch {
		case err == nil:
			connections.Go(func() { s.serve(ctx, conn) })
		case ctx.Err() != nil:
			return nil
		default:
			return err
		}
	}
}

// serve counts what one predecessor holds until its connection ends.
func (s *Server) serve(ctx context.Context, conn net.Conn) {
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	p := &predecessor{conn: conn, held: map[uint64]*dispatch.CarriedRequest{}}
	s.mu.Lock()
	s.predecessors[p] = struct{}{}
	stopAt := s.stopAt
	s.mu.Unlock()
	if !stopAt.IsZero() {
		p.drain(time.Until(stopAt))
	}
	in := json.NewDecoder(conn)
	for {
		var m message
		if err := in.Decode(&m); err != nil {
			break
		}
		s.handle(p, &m)
	}
	conn.Close()
	s.mu.Lock()
	delete(s.predecessors, p)
	s.mu.Unlock()
	if ctx.Err() != nil { // this process is being replaced in its turn: the successor counts them
		for _, r := range p.held {
			r.LeaveTask()
		}
		return
	}
	for _, r := range p.held {
		r.Release()
	}
	s.log.Info("earlier process disconnected", zap.Int("pid", p.process.PID), zap.Int("requests", len(p.held)))
}

// handle applies a message. Only the goroutine of the predecessor's connection calls it.
func (s *Server) handle(p *predecessor, m *message) {
	switch {
	case m.Hello != nil:
		s.mu.Lock()
		p.process = *m.Hello
		s.mu.Unlock()
	case m.Hold != nil:
		if before := p.held[m.Hold.Ref]; before != nil { // its slot has moved
			before.LeaveTask()
		}
		s.replace(p, m.Hold.Ref, s.dispatcher.Carry(m.Hold.request()))
	case m.Correct != nil:
		if r := p.held[m.Correct.Ref]; r != nil {
			r.Correct(m.Correct.Tokens)
		}
	case m.Learned != nil:
		s.dispatcher.RestoreResponses([]dispatch.ReplicaResponses{*m.Learned})
	case m.Ended != nil:
		if q, ok := readSummary(m.Ended); ok && s.Ended != nil {
			s.Ended(q, m.Counts)
		}
	case m.Used != nil:
		if q, ok := readSummary(m.Used); ok && s.Used != nil {
			s.Used(q)
		}
	case m.Retried != nil:
		if s.Retried != nil {
			s.Retried(m.Retried.Model, m.Retried.Tenant, m.Retried.Reason)
		}
	case m.Release != 0:
		s.replace(p, m.Release, nil)
	case m.Synced:
		s.mu.Lock()
		p.synced = true
		close(s.synced)
		s.synced = make(chan struct{})
		s.mu.Unlock()
		s.log.Info("earlier process carries its streams on", zap.Int("pid", p.process.PID),
			zap.String("version", p.process.Version), zap.Int("requests", len(p.held)))
	}
}

// replace sets what counts for a request of a predecessor, and releases what counted before. nil
// means that nothing counts any more.
func (s *Server) replace(p *predecessor, ref uint64, r *dispatch.CarriedRequest) {
	s.mu.Lock()
	before := p.held[ref]
	if r != nil {
		p.held[ref] = r
	} else {
		delete(p.held, ref)
	}
	s.mu.Unlock()
	if before != nil {
		before.Release()
	}
}

// Await waits until n predecessors have told everything that they hold. It fails when ctx ends
// before.
func (s *Server) Await(ctx context.Context, n int) error {
	for {
		s.mu.Lock()
		known, changed := 0, s.synced
		for p := range s.predecessors {
			if p.synced {
				known++
			}
		}
		s.mu.Unlock()
		if known >= n {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.New("an earlier process has not told what it holds")
		case <-changed:
		}
	}
}

// Predecessors lists the predecessors that are connected, the oldest first.
func (s *Server) Predecessors() []Predecessor {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Predecessor
	for p := range s.predecessors {
		if p.synced {
			all = append(all, Predecessor{p.process, len(p.held)})
		}
	}
	slices.SortFunc(all, func(a, b Predecessor) int { return a.Started.Compare(b.Started) })
	return all
}

// Drain tells all predecessors that their streams must have ended within timeout, because the
// gateway stops.
func (s *Server) Drain(timeout time.Duration) {
	s.mu.Lock()
	s.stopAt = time.Now().Add(timeout)
	all := slices.Collect(maps.Keys(s.predecessors))
	s.mu.Unlock()
	for _, p := range all {
		p.drain(timeout)
	}
}

// drain tells the predecessor to drain.
func (p *predecessor) drain(timeout time.Duration) {
	timeout = max(timeout, 0)
	p.tell(order{Drain: &timeout})
}

// tell sends an order. A predecessor that is gone needs no telling.
func (p *predecessor) tell(o order) {
	_ = p.conn.SetWriteDeadline(time.Now().Add(writeTimeout))
	_ = json.NewEncoder(p.conn).Encode(o)
}

// minBegun is from how many bytes on the beginning of a response shows of which API it is.
const minBegun = 128

// Begun tells the predecessors that the response of a request has begun with these bytes, which
// this process does not know. It returns true if a longer beginning may say more: the id of a
// response of the Responses API, or its first token. The caller may then call again with that.
func (s *Server) Begun(id string, begin []byte) (wantsMore bool) {
	s.mu.Lock()
	all := slices.Collect(maps.Keys(s.predecessors))
	s.mu.Unlock()
	if len(all) == 0 || id == "" {
		return false
	}
	stored := bytes.Contains(begin, []byte(`"response`))
	if len(begin) < minBegun && !stored || stored && openai.ResponseID(begin) == "" {
		return true
	}
	for _, p := range all {
		p.tell(order{Begun: &begun{id, begin}})
	}
	return stored && begin[0] != '{' && !bytes.Contains(begin, []byte(`.delta"`))
}

package envoy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/connections"
	"github.com/sluice-gateway/sluice/internal/process"
)

const (
	// predecessorPrefix begins the names of the records of predecessors.
	predecessorPrefix = "envoy/predecessor/"
	// predecessorPoll is the interval at which a predecessor is asked for its requests. It begins
	// with drainPoll.
	predecessorPoll = time.Second
	// idleTime is how long a predecessor may have connections without any request before it ends.
	// Clients keep an idle connection for less.
	idleTime = 2 * time.Minute
	// steerTime is how long a predecessor still accepts connections that were being made when new
	// ones began to go to its successor.
	steerTime = time.Second
)

// Predecessor is an Envoy that another one has replaced and that still has requests.
type Predecessor struct {
	PID     int
	Version string
	// Since is when that was.
	Since time.Time
	// Requests is how many requests it had when it was last asked.
	Requests int
}

// Instance is an Envoy that runs for a state directory.
type Instance struct {
	PID     int
	Version string
	// Node is the id of its node in xDS.
	Node  string
	Admin Admin
	// Inlets is the path of BootstrapConfig.Inlets.Socket.
	Inlets string
	// Filter is what Config.Filter has returned.
	Filter string
	// Predecessor means that another Envoy has replaced it.
	Predecessor bool
}

// Running lists the Envoys of a state directory, and first the one that accepts requests, if it
// runs. c is the bootstrap of the directory.
func Running(dir *process.Dir, c BootstrapConfig) []Instance {
	var all []Instance
	known := map[int]bool{}
	// The name of the one that accepts requests comes first.
	for _, r := range dir.Records() {
		predecessor := strings.HasPrefix(r.Name, predecessorPrefix)
		if r.Name != RecordName && !predecessor || known[r.PID] {
			continue
		}
		known[r.PID] = true // after a crash in Process.Rename there are two records
		at := c.at(ordinalOf(r))
		all = append(all, Instance{
			PID: r.PID, Version: r.Meta[metaVersion], Node: at.nodeID(), Admin: adminOf(r),
			Inlets: at.Inlets.Socket, Filter: r.Meta[metaFilter], Predecessor: predecessor,
		})
	}
	return all
}

// PredecessorNodes returns the nodes of the predecessors of a state directory.
func PredecessorNodes(dir *process.Dir, c BootstrapConfig) []string {
	var nodes []string
	for _, i := range Running(dir, c) {
		if i.Predecessor {
			nodes = append(nodes, i.Node)
		}
	}
	return nodes
}

// adminOf returns the admin interface of a recorded Envoy.
func adminOf(r process.Record) Admin { return Admin{Socket: r.Meta[metaAdmin]} }

// ordinalOf returns the ordinal of a recorded Envoy, see BootstrapConfig.at.
func ordinalOf(r process.Record) int {
	if n, err := strconv.Atoi(r.Meta[metaOrdinal]); err == nil {
		return n
	}
	return 1
}

// at returns the bootstrap for the Envoy with an ordinal. Envoys that run at the same time have
// different ordinals, from 1, and so sockets and a name in xDS of their own.
func (c BootstrapConfig) at(ordinal int) BootstrapConfig {
	if ordinal > 1 {
		beside := func(path string) string {
			extension := filepath.Ext(path)
			return fmt.Sprintf("%s-%d%s", strings.TrimSuffix(path, extension), ordinal, extension)
		}
		c.NodeID = fmt.Sprintf("%s-%d", c.nodeID(), ordinal)
		c.AdminSocket, c.Inlets.Socket = beside(c.AdminSocket), beside(c.Inlets.Socket)
	}
	return c
}

// nodeID is NodeID or its default.
func (c BootstrapConfig) nodeID() string { return cmp.Or(c.NodeID, "sluice") }

// freeOrdinal returns the least ordinal that no running Envoy has.
func (e *Envoy) freeOrdinal() int {
	taken := map[int]bool{}
	for _, r := range e.cfg.Dir.Records() {
		if r.Name == RecordName || strings.HasPrefix(r.Name, predecessorPrefix) {
			taken[ordinalOf(r)] = true
		}
	}
	ordinal := 1
	for taken[ordinal] {
		ordinal++
	}
	return ordinal
}

// retire makes p a predecessor: another Envoy is to be started. p accepts connections until the
// other one does. Run then drains p.
func (e *Envoy) retire(p *process.Process) error {
	if err := p.SetMeta(metaReplaced, time.Now().UTC().Format(time.RFC3339)); err != nil {
		return err
	}
	if err := p.Rename(predecessorPrefix + strconv.Itoa(p.PID())); err != nil {
		return err
	}
	e.reportPredecessors()
	return nil
}

// reportPredecessors calls Config.OnPredecessors.
func (e *Envoy) reportPredecessors() {
	if e.cfg.OnPredecessors != nil {
		e.cfg.OnPredecessors(PredecessorNodes(e.cfg.Dir, e.cfg.Bootstrap))
	}
}

// predecessors returns the Envoys that were replaced and still run.
func (e *Envoy) predecessors() []*process.Process {
	var all []*process.Process
	for _, i := range Running(e.cfg.Dir, e.cfg.Bootstrap) {
		if p, ok := e.cfg.Dir.Adopt(predecessorPrefix + strconv.Itoa(i.PID)); i.Predecessor && ok {
			all = append(all, p)
		}
	}
	return all
}

// drainPredecessors stops each predecessor when its requests have ended. It returns before that
// when ctx ends or Stop is called.
func (e *Envoy) drainPredecessors(ctx context.Context, all []*process.Process) {
	if len(all) == 0 {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	closed := make(chan struct{})
	var stopping, ending sync.WaitGroup
	stopping.Go(func() {
		select {
		case <-e.stopped:
			cancel()
		case <-ctx.Done():
		}
	})
	for _, p := range all {
		ending.Go(func() { e.drainPredecessor(ctx, p, closed) })
	}
	if e.awaitSuccessor(ctx) {
		e.closeListeners(ctx, all)
		close(closed)
	}
	ending.Wait()
	cancel()
	stopping.Wait()
}

// awaitSuccessor waits until the Envoy that has no successor accepts connections. It returns false
// if ctx has ended.
func (e *Envoy) awaitSuccessor(ctx context.Context) bool {
	for !e.accepts(ctx) {
		if !pause(ctx, drainPoll) {
			return false
		}
	}
	return true
}

// closeListeners has predecessors accept no more connections. New connections go to the successor
// before, so that none waits at a listener when it is closed.
func (e *Envoy) closeListeners(ctx context.Context, all []*process.Process) {
	post := func() {
		for _, p := range all {
			// An error means that Envoy is gone or does not answer. Then PredecessorTimeout bounds
			// the wait.
			_, _ = adminOf(p.Record()).Post(ctx, "/drain_listeners")
		}
	}
	steering, workers, err := e.steer(ctx)
	if err != nil {
		post()
	} else {
		pause(ctx, steerTime)
		err = steering.Finish(func() {
			post()
			e.awaitListeners(ctx, workers)
		})
	}
	if err != nil && !errors.Is(err, connections.ErrNoOlder) && ctx.Err() == nil {
		e.log.Warn("connections not steered to the new envoy, some may have been reset", zap.Error(err))
	}
}

// steer has new connections go to the Envoy that has no successor. Each of its workers has a
// listening socket.
func (e *Envoy) steer(ctx context.Context) (s *connections.Steering, workers int, err error) {
	const concurrency = "server.concurrency"
	if !e.cfg.Listen.IsValid() {
		return nil, 0, connections.ErrNoOlder
	}
	stats, err := e.admin().Stats(ctx, "^"+concurrency+"$")
	if err != nil {
		return nil, 0, err
	}
	workers = int(stats[concurrency])
	s, err = connections.Steer(e.cfg.Listen, workers)
	return s, workers, err
}

// awaitListeners waits until the listeners of the predecessors are closed, which Envoy does
// after it has answered.
func (e *Envoy) awaitListeners(ctx context.Context, others int) {
	ctx, cancel := context.WithTimeout(ctx, steerTime)
	defer cancel()
	for {
		n, err := connections.Listeners(e.cfg.Listen)
		if err != nil || n <= others || !pause(ctx, time.Millisecond) {
			return
		}
	}
}

// drainPredecessor stops a predecessor, whose listener is closed, when its requests have ended.
func (e *Envoy) drainPredecessor(ctx context.Context, p *process.Process, closed <-chan struct{}) {
	ctx, cancel := e.life(ctx, p)
	defer cancel()
	r := p.Record()
	since, err := time.Parse(time.RFC3339, r.Meta[metaReplaced])
	if err != nil {
		since = time.Now()
	}
	a, l := adminOf(r), Predecessor{PID: p.PID(), Version: r.Meta[metaVersion], Since: since}
	l.Requests, _ = a.InFlight(ctx) // awaitEnd asks again
	e.showPredecessor(l)
	defer e.hidePredecessor(p.PID())
	select {
	case <-closed:
	case <-ctx.Done():
		return
	}
	_, _ = a.Post(ctx, "/healthcheck/fail") // responses ask clients to close their connections
	e.log.Info("replaced envoy accepts no more connections", zap.Int("pid", p.PID()))
	left := e.awaitEnd(ctx, a, l)
	if ctx.Err() != nil {
		return
	}
	if left > 0 {
		e.log.Warn("replaced envoy ended with requests", zap.Int("pid", p.PID()), zap.Int("requests", left))
	}
	if err := p.Stop(ctx, stopGrace); err != nil {
		e.log.Error("replaced envoy not ended", zap.Int("pid", p.PID()), zap.Error(err))
		return
	}
	e.log.Info("replaced envoy ended", zap.Int("pid", p.PID()))
}

// life returns a context that ends with ctx and with the process, of which it tells.
func (e *Envoy) life(ctx context.Context, p *process.Process) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-p.Done():
			e.reportPredecessors()
		case <-ctx.Done():
		}
		cancel()
	}()
	return ctx, cancel
}

// accepts reports whether the Envoy that has no successor accepts connections. Envoy is live a
// moment before its workers listen.
func (e *Envoy) accepts(ctx context.Context) bool {
	const started = "listener_manager.workers_started"
	if e.Status().State != StateLive {
		return false
	}
	stats, err := e.admin().Stats(ctx, "^"+started+"$")
	return err == nil && stats[started] == 1
}

// awaitEnd waits until a predecessor has no request and no connection of a client, or until
// its time is over. It returns how many requests are left.
func (e *Envoy) awaitEnd(ctx context.Context, a Admin, l Predecessor) (left int) {
	poll, busy := drainPoll, time.Now()
	for {
		requests, connections, err := a.downstream(ctx)
		if err == nil {
			l.Requests = requests
			e.showPredecessor(l)
		}
		if err != nil || requests > 0 {
			busy = time.Now()
		}
		switch {
		case err == nil && requests == 0 && (connections == 0 || time.Since(busy) > idleTime):
			pause(ctx, logTime)
			return 0
		case time.Since(l.Since) > e.cfg.PredecessorTimeout, !pause(ctx, poll):
			return l.Requests
		}
		poll = min(2*poll, predecessorPoll)
	}
}

// pause waits. It returns false if ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// showPredecessor has the status show a predecessor.
func (e *Envoy) showPredecessor(l Predecessor) {
	e.hidePredecessor(l.PID)
	e.updateStatus(func(s *Status) {
		s.Predecessors = append(s.Predecessors, l)
		slices.SortFunc(s.Predecessors, func(a, b Predecessor) int { return a.Since.Compare(b.Since) })
	})
}

// hidePredecessor has the status no longer show an Envoy. Earlier statuses keep their lists.
func (e *Envoy) hidePredecessor(pid int) {
	e.updateStatus(func(s *Status) {
		s.Predecessors = slices.DeleteFunc(slices.Clone(s.Predecessors), func(l Predecessor) bool { return l.PID == pid })
	})
}

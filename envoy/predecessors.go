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
	PID int
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
	for _, r := range records(dir) {
		predecessor := r.Name != RecordName
		if known[r.PID] {
			continue
		}
		known[r.PID] = true // after a crash in Process.Rename there are two records
		at := c.at(ordinalOf(r))
		all = append(all, Instance{
			PID: r.PID, Node: at.nodeID(), Admin: adminOf(r),
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

// records returns the records of the Envoys of a state directory. The name of the one that accepts
// requests comes first.
func records(dir *process.Dir) []process.Record {
	return slices.DeleteFunc(dir.Find(RecordName), func(r process.Record) bool {
		return r.Name != RecordName && !strings.HasPrefix(r.Name, predecessorPrefix)
	})
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
	for _, r := range records(e.cfg.Dir) {
		taken[ordinalOf(r)] = true
	}
	ordinal := 1
	for taken[ordinal] {
		ordinal++
	}
	return ordinal
}

// errStopped means that Stop was called.
var errStopped = errors.New("envoy is being stopped")

// retire makes p a predecessor: another Envoy is to be started. p accepts connections until the
// other one does. Run then drains p. If Stop was called, p is left to it.
func (e *Envoy) retire(p *process.Process) error {
	e.processMu.Lock()
	defer e.processMu.Unlock()
	if e.isStopped() {
		return errStopped
	}
	if err := p.SetMeta(metaReplaced, timeText(time.Now())); err != nil {
		return err
	}
	return p.Rename(predecessorPrefix + strconv.Itoa(p.PID()))
}

// timeText returns a time as records have it, and timeOf reads it. A text that is none gives the
// zero Time.
func timeText(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

func timeOf(text string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}
	}
	return t
}

func (e *Envoy) reportPredecessors() {
	if e.cfg.OnPredecessors == nil {
		return
	}
	e.reportMu.Lock()
	defer e.reportMu.Unlock()
	e.cfg.OnPredecessors(PredecessorNodes(e.cfg.Dir, e.cfg.Bootstrap))
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
	if e.closeListeners(ctx, all) {
		e.sharesPort.Store(false)
		close(closed)
	}
	ending.Wait()
	cancel()
	stopping.Wait()
}

// closeListeners has predecessors accept no more connections as soon as the Envoy that has no
// successor accepts some. It returns false if ctx has ended before.
//
// The last predecessor is the first: then the kernel still has the listeners in the order of the
// Envoys, see connections.Steering.
func (e *Envoy) closeListeners(ctx context.Context, all []*process.Process) bool {
	var begun time.Time
	for e.awaitSuccessor(ctx) {
		open := openPredecessors(all)
		if len(open) == 0 {
			return true
		}
		if begun.IsZero() {
			begun = time.Now()
		}
		last := open[len(open)-1]
		done, err := e.closeListener(ctx, last)
		if err != nil && ctx.Err() == nil {
			e.log.Warn("connections not steered to the new Envoy, some may have been reset", zap.Error(err))
		}
		switch {
		case done:
			begun = time.Time{}
			e.noteClosed(last)
			continue
		case e.cfg.HangTimeout >= 0 && time.Since(begun) >= e.cfg.HangTimeout:
			e.endSilent(ctx, last)
		}
		pause(ctx, predecessorPoll)
	}
	return false
}

// openPredecessors returns those that may accept connections, the one that was replaced last at the
// end.
func openPredecessors(all []*process.Process) []*process.Process {
	open := slices.DeleteFunc(slices.Clone(all), func(p *process.Process) bool {
		return hasEnded(p) || p.Record().Meta[metaClosed] != ""
	})
	slices.SortFunc(open, func(a, b *process.Process) int {
		return timeOf(a.Record().Meta[metaReplaced]).Compare(timeOf(b.Record().Meta[metaReplaced]))
	})
	return open
}

// noteClosed records when a predecessor has closed its listener. Its time begins then.
func (e *Envoy) noteClosed(p *process.Process) {
	e.log.Info("replaced Envoy accepts no more connections", zap.Int("pid", p.PID()))
	if err := p.SetMeta(metaClosed, timeText(time.Now())); err != nil && !hasEnded(p) {
		e.log.Warn("record of a replaced Envoy not written", zap.Int("pid", p.PID()), zap.Error(err))
	}
}

func hasEnded(p *process.Process) bool {
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}

// endSilent ends a predecessor that does not answer. Its listener would get connections that nobody
// serves.
func (e *Envoy) endSilent(ctx context.Context, p *process.Process) {
	if _, err := adminOf(p.Record()).ServerState(ctx); err == nil || ctx.Err() != nil {
		return
	}
	if !e.endHung(ctx, p) {
		return
	}
	if _, err := e.steer(ctx); err != nil && !errors.Is(err, connections.ErrNoOlder) {
		e.log.Warn("connections not steered to the new Envoy", zap.Error(err))
	}
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

// closeListener closes the listener of a predecessor and returns whether that is done. New
// connections go to the successor before, so that none waits at a listener when it is closed.
func (e *Envoy) closeListener(ctx context.Context, p *process.Process) (done bool, err error) {
	a := adminOf(p.Record())
	post := func() bool {
		_, err := a.Post(ctx, "/drain_listeners")
		return err == nil || hasEnded(p)
	}
	steering, err := e.steer(ctx)
	if err != nil {
		if errors.Is(err, connections.ErrNoOlder) {
			err = nil
		}
		return post(), err
	}
	if !pause(ctx, steerTime) || !e.accepts(ctx) {
		return false, steering.Stop()
	}
	workers, err := a.workers(ctx)
	if err != nil {
		if hasEnded(p) {
			return true, steering.Stop()
		}
		return false, nil // new connections go to the successor meanwhile
	}
	before, err := connections.Listeners(e.cfg.Listen)
	if err != nil {
		return false, err
	}
	err = steering.Close(func() bool {
		done = post() && e.awaitListeners(ctx, before-workers)
		return done
	})
	return done, err
}

// steer has new connections go to the Envoy that has no successor. Each of its workers has a
// listening socket.
func (e *Envoy) steer(ctx context.Context) (*connections.Steering, error) {
	if !e.cfg.Listen.IsValid() {
		return nil, connections.ErrNoOlder
	}
	workers, err := e.Admin().workers(ctx)
	if err != nil {
		return nil, err
	}
	return connections.Steer(e.cfg.Listen, workers)
}

// awaitListeners waits until no more than n listeners are left, and returns whether that is so.
// Envoy closes them after it has answered.
func (e *Envoy) awaitListeners(ctx context.Context, n int) bool {
	ctx, cancel := context.WithTimeout(ctx, steerTime)
	defer cancel()
	for {
		left, err := connections.Listeners(e.cfg.Listen)
		switch {
		case err == nil && left <= n:
			return true
		case err != nil, !pause(ctx, time.Millisecond):
			return false
		}
	}
}

// drainPredecessor stops a predecessor when its listener is closed and its requests have ended.
func (e *Envoy) drainPredecessor(ctx context.Context, p *process.Process, closed <-chan struct{}) {
	defer func() {
		if hasEnded(p) {
			e.reportPredecessors()
		}
	}()
	ctx, cancel := whileRunning(ctx, p)
	defer cancel()
	r := p.Record()
	a, l := adminOf(r), Predecessor{PID: p.PID(), Version: r.Meta[metaVersion], Since: timeOf(r.Meta[metaReplaced])}
	l.Requests, _ = a.InFlight(ctx) // awaitEnd asks again
	e.showPredecessor(l)
	defer e.hidePredecessor(p.PID())
	select {
	case <-closed:
	case <-ctx.Done():
		return
	}
	// An error means that Envoy is gone, or does not answer: PredecessorTimeout bounds the wait.
	_, _ = a.Post(ctx, "/healthcheck/fail") // responses ask clients to close their connections
	left := e.awaitEnd(ctx, p, l)
	if ctx.Err() != nil {
		return
	}
	if left > 0 {
		e.log.Warn("replaced Envoy ended with requests", zap.Int("pid", p.PID()), zap.Int("requests", left))
	}
	if err := p.Stop(ctx, stopGrace); err != nil {
		e.log.Error("replaced Envoy not ended", zap.Int("pid", p.PID()), zap.Error(err))
		return
	}
	e.log.Info("replaced Envoy ended", zap.Int("pid", p.PID()))
}

// whileRunning returns a context that ends with ctx and with the process.
func whileRunning(ctx context.Context, p *process.Process) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-p.Done():
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// accepts reports whether the Envoy that has no successor accepts connections. Envoy is live a
// moment before its workers listen, and also when it has refused its listener.
func (e *Envoy) accepts(ctx context.Context) bool {
	const started = "listener_manager.workers_started"
	if e.Status().State != StateLive {
		return false
	}
	stats, err := e.Admin().Stats(ctx, "^"+started+"$")
	if err != nil || stats[started] != 1 {
		return false
	}
	if !e.cfg.Listen.IsValid() {
		return true
	}
	listeners, err := e.Admin().listeners(ctx)
	return err == nil && slices.Contains(listeners, e.cfg.Listen)
}

// awaitEnd waits until a predecessor has no request and no connection of a client, or until its
// time is over. It returns how many requests are left.
func (e *Envoy) awaitEnd(ctx context.Context, p *process.Process, l Predecessor) (left int) {
	r := p.Record()
	a, poll, busy := adminOf(r), drainPoll, time.Now()
	begun, spent := time.Now(), time.Duration(0)
	if closed := timeOf(r.Meta[metaClosed]); !closed.IsZero() { // else it was not written
		spent = max(time.Since(closed), 0)
	}
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
		case spent+time.Since(begun) > e.cfg.PredecessorTimeout(), !pause(ctx, poll):
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

// showPredecessor has the status show a predecessor. Earlier statuses keep their lists.
func (e *Envoy) showPredecessor(l Predecessor) {
	e.updateStatus(func(s *Status) {
		s.Predecessors = append(without(s.Predecessors, l.PID), l)
		slices.SortFunc(s.Predecessors, func(a, b Predecessor) int { return a.Since.Compare(b.Since) })
	})
}

// hidePredecessor has the status no longer show an Envoy.
func (e *Envoy) hidePredecessor(pid int) {
	e.updateStatus(func(s *Status) { s.Predecessors = without(s.Predecessors, pid) })
}

// without returns a copy of a list without the Envoy of a process.
func without(all []Predecessor, pid int) []Predecessor {
	return slices.DeleteFunc(slices.Clone(all), func(p Predecessor) bool { return p.PID == pid })
}

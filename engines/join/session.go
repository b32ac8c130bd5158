package join

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/redact"
)

const (
	// countInterval is how often the gateway checks whether the counts of requests have changed.
	countInterval = 100 * time.Millisecond
	// maxReasonBytes limits the reasons in a node's reports.
	maxReasonBytes = 4 << 10
	// maxGPUs limits the GPUs, or MIG devices, of a node. The largest machines have 16 GPUs with at
	// most 7 MIG devices each.
	maxGPUs = 256
)

// The reasons for which the gateway ends a session. The node receives them.
var (
	errReplaced = status.Error(codes.Aborted, "the node has a newer connection")
	errSilent   = status.Error(codes.DeadlineExceeded, "the node was silent for too long")
)

// session is one stream of a node, on the gateway's side.
type session struct {
	node   *Node
	stream grpc.ServerStream
	// end ends the session. The first reason wins.
	end context.CancelCauseFunc
	// wakeup asks send to send an order at once. Its capacity is 1.
	wakeup chan struct{}
	// clockSkew is added to the node's timestamps to get the gateway's time. Guarded by node.mu.
	clockSkew time.Duration
	// isRemote is true if the node runs on another machine than the gateway. A loopback address in
	// its reports would then mean the gateway's machine.
	isRemote bool
	// peer is the address that the node connects from.
	peer netip.Addr
	// revision is the revision of the messages that the node knows.
	revision int

	// warned is true once the log has a line about replicas that nobody has assigned to the node.
	// Guarded by node.mu.
	warned bool
	// hasReported is true once the node has reported its replicas in this session. Guarded by
	// node.mu.
	hasReported bool
	// snapshots lists the snapshots that users of the fleet may not have applied yet, oldest first.
	// Guarded by node.mu.
	snapshots []publishedSnapshot
}

// publishedSnapshot is the number of a node's snapshot and when the gateway published it to the
// fleet.
type publishedSnapshot struct {
	sequence uint64
	at       time.Time
}

// run implements the RPC Run, which is the stream of a node.
func (s *Server) run(stream grpc.ServerStream) error {
	name, key, ok := caller(stream.Context())
	if !ok {
		return errNoCertificate()
	}
	if err := s.checkOwnName(name); err != nil {
		return err
	}
	var first report
	if err := s.receiveFirst(stream.Context(), func() error { return stream.RecvMsg(&first) }); err != nil {
		return err
	}
	if err := checkHello(first.Hello); err != nil {
		return err
	}
	ctx, end := context.WithCancelCause(stream.Context())
	defer end(nil)
	ses := &session{node: s.nodeByName(name), stream: stream, end: end, wakeup: make(chan struct{}, 1),
		clockSkew: clockSkewOf(first.Hello), isRemote: isRemote(stream.Context()), peer: peerIP(stream.Context()),
		revision: first.Hello.Revision}
	if err := ses.node.openSession(ses, key); err != nil {
		return err
	}
	defer ses.node.closeSession(ses)
	// A blocked stream ends only when this function returns. Serve waits for both goroutines.
	s.streamLoops.Go(func() { end(ses.receive(&first)) })
	s.streamLoops.Go(func() { end(ses.send(ctx)) })
	// The records are saved after the goroutines have started, because a slow disk may block.
	s.trySaveNodes()
	<-ctx.Done()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) && !errors.Is(cause, io.EOF) {
		return cause
	}
	return nil
}

// checkHello returns an error if the node speaks another version of the protocol.
func checkHello(h *hello) error {
	if h == nil {
		return status.Error(codes.InvalidArgument, "the first report of a stream must contain a hello")
	}
	if h.Protocol != protocol {
		return status.Errorf(codes.FailedPrecondition,
			"the gateway speaks version %d of the node protocol and the node version %d: "+
				"they need the same release of sluice", protocol, h.Protocol)
	}
	return nil
}

// clockSkewOf returns how far the node's clock is behind, in whole seconds. The time that the
// message took is thereby ignored.
func clockSkewOf(h *hello) time.Duration {
	if h.Clock.IsZero() {
		return 0
	}
	return time.Since(h.Clock).Round(time.Second)
}

// maxClockError is by how much clockSkew may be wrong, because messages take their time.
const maxClockError = 2 * time.Second

// followClock corrects clockSkew after the clock of the node, or of the gateway, was set. node.mu
// is held.
func (ses *session) followClock(clock time.Time) {
	if clock.IsZero() {
		return
	}
	if skew := time.Since(clock).Round(time.Second); (skew - ses.clockSkew).Abs() > maxClockError {
		ses.clockSkew = skew
	}
}

func (ses *session) wakeSender() { signal(ses.wakeup) }

// receive applies reports until the stream ends. r is the first one.
func (ses *session) receive(r *report) error {
	for {
		if !ses.node.applyReport(ses, r) {
			return nil // The function that replaced the session has ended the stream.
		}
		r = new(report)
		if err := ses.stream.RecvMsg(r); err != nil {
			return err
		}
	}
}

// send sends orders until ctx ends: a new assignment, new counts, or a heartbeat.
func (ses *session) send(ctx context.Context) error {
	c := ses.node.server.config
	if err := ses.stream.SendMsg(&order{LostAfter: c.LostAfter}); err != nil {
		return err
	}
	tick := time.NewTicker(min(countInterval, heartbeatInterval(c.LostAfter)))
	defer tick.Stop()
	var revision uint64
	var counted inFlight
	last := time.Now()
	for {
		var o order
		o.Assignment, revision = ses.node.nextAssignment(revision)
		if now := ses.countRequests(); now.Seen != counted.Seen || !maps.Equal(now.Requests, counted.Requests) {
			counted = now
			o.InFlight = &now
		}
		o.Logs, o.Silent = ses.node.nextLogs(), ses.node.nextSilent()
		if o.Assignment != nil || o.InFlight != nil || o.Logs != nil || o.Silent != nil || time.Since(last) >= heartbeatInterval(c.LostAfter) {
			last = time.Now()
			if err := ses.stream.SendMsg(&o); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ses.wakeup:
		case <-tick.C:
		}
	}
}

// countRequests returns how many requests the node's replicas have. It determines Seen first,
// because the counts must be newer than Seen.
func (ses *session) countRequests() inFlight {
	now := inFlight{Seen: ses.settledSequence(time.Now()), Requests: map[string]int{}}
	for id, address := range ses.node.replicaAddresses() {
		if n := ses.node.server.config.InFlight(id, address); n > 0 {
			now.Requests[id] = n
		}
	}
	return now
}

// settledSequence returns the newest snapshot that was published at least DrainSettle ago, or 0.
func (ses *session) settledSequence(now time.Time) uint64 {
	ses.node.mu.Lock()
	defer ses.node.mu.Unlock()
	settled := now.Add(-ses.node.server.config.DrainSettle)
	for len(ses.snapshots) > 1 && !ses.snapshots[1].at.After(settled) {
		ses.snapshots = ses.snapshots[1:]
	}
	if len(ses.snapshots) == 0 || ses.snapshots[0].at.After(settled) {
		return 0
	}
	return ses.snapshots[0].sequence
}

// acceptReplicas returns the reported replicas that the gateway accepts, with the fields that a
// node must not set overwritten and without secrets. node.mu is held.
//
// A replica is dropped if its id does not belong to its model, because replicas of one model must
// not be reported under another. A replica becomes failed if it reports an unknown state, no usable
// address, or a loopback address from another machine. Node.mayListenLocked checks that the address
// belongs to the node.
func (ses *session) acceptReplicas(all []engines.Replica) []engines.Replica {
	seen := map[string]bool{}
	var good []engines.Replica
	for _, r := range all {
		if r.Model == "" || engines.ReplicaIndex(r.Model, r.ID) < 0 || seen[r.ID] {
			continue
		}
		seen[r.ID] = true
		r.Node, r.Launcher, r.Transport, r.Host, r.ServedModel = ses.node.name, engines.Local, nil, "", ""
		r.Since = r.Since.Add(ses.clockSkew).UTC()
		if !r.NextStart.IsZero() {
			r.NextStart = r.NextStart.Add(ses.clockSkew).UTC()
		}
		r.Reason = ses.node.redactors[r.Model].Text(boundText(r.Reason))
		if ses.isRemote && r.Address.Addr().Unmap().IsLoopback() {
			r = asFailed(r, "the node reports it at "+r.Address.String()+", an address of the gateway's own machine: "+
				"start the node with an --address that the gateway can reach")
		}
		if !slices.Contains(knownStates(), r.State) || r.State == engines.Ready && (!r.Address.IsValid() || r.Address.Addr().IsUnspecified()) {
			r = asFailed(r, "the node reports it without a usable address or in an unknown state")
		}
		good = append(good, r)
	}
	return good
}

// boundText returns valid UTF-8 of at most maxReasonBytes bytes.
func boundText(text string) string {
	if text = strings.ToValidUTF8(text, "\uFFFD"); len(text) > maxReasonBytes {
		text = strings.ToValidUTF8(text[:maxReasonBytes], "")
	}
	return text
}

// boundInventory returns a copy of n with bounded texts and lists. The planner's time grows with
// the number of GPUs.
func boundInventory(n *engines.Node) *engines.Node {
	own := *n
	own.Reason, own.GPUs = redact.Text(boundText(n.Reason)), n.GPUs[:min(len(n.GPUs), maxGPUs)]
	return &own
}

func knownStates() []engines.State {
	return []engines.State{engines.Pending, engines.Starting, engines.Ready, engines.Draining, engines.Failed, engines.Stopped}
}

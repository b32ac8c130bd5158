package join

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-gateway/sluice/engines"
)

const (
	// countEvery is how often it is looked whether the numbers of requests have changed.
	countEvery = 100 * time.Millisecond
	// longestReason is in bytes.
	longestReason = 4 << 10
	// mostGPUs is of how many GPUs, or parts of GPUs, of a node we hear: the largest machines have 16, and each has 7 parts at most.
	mostGPUs = 256
)

// Why a session ended that did not end by itself. The node is told so.
var (
	errReplaced = status.Error(codes.Aborted, "the node has a newer connection")
	errSilent   = status.Error(codes.DeadlineExceeded, "the node was silent for too long")
)

// noAddress is nobody's.
var noAddress netip.AddrPort

// session is one stream of a node, on the gateway's side.
type session struct {
	host   *Host
	stream grpc.ServerStream
	// end ends the session; the first reason counts.
	end context.CancelCauseFunc
	// wake has a token when there is something to say at once.
	wake chan struct{}
	// skew is what the node's clock lacks to ours.
	skew time.Duration
	// distant: it comes from another host, so that what is at a loopback address is not its own.
	distant bool

	// told: the node has said which replicas it has; guarded by host.mu
	told bool
	// pictures that those who pick replicas may not have followed yet, oldest first; guarded by host.mu
	pictures []picture
}

// picture is when the fleet was told of a node's picture.
type picture struct {
	sequence uint64
	at       time.Time
}

// run implements nodes: it is a node's stream, from its hello on.
func (s *Server) run(stream grpc.ServerStream) error {
	name, key, ok := caller(stream.Context())
	if !ok {
		return errNoCertificate()
	}
	var first report
	if err := stream.RecvMsg(&first); err != nil {
		return err
	}
	if err := checkHello(first.Hello); err != nil {
		return err
	}
	ctx, end := context.WithCancelCause(stream.Context())
	defer end(nil)
	x := &session{host: s.host(name), stream: stream, end: end, wake: make(chan struct{}, 1), skew: skewOf(first.Hello), distant: isDistant(stream.Context())}
	if err := x.host.attach(x, key); err != nil {
		return err
	}
	defer x.host.detach(x)
	// A stream that is blocked can only be ended by returning, so neither loop is waited for here, but in Serve.
	s.loops.Go(func() { end(x.receive(&first)) })
	s.loops.Go(func() { end(x.send(ctx)) })
	if err := s.saveNodes(); err != nil { // only now: a disk may take long
		s.config.Log.Error("the list of nodes is not saved", zap.Error(err)) // a node comes back by its certificate too
	}
	<-ctx.Done()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) && !errors.Is(cause, io.EOF) {
		return cause
	}
	return nil
}

// checkHello refuses another version of the protocol.
func checkHello(h *hello) error {
	if h == nil {
		return status.Error(codes.InvalidArgument, "a stream begins with a hello")
	}
	if h.Protocol != protocol {
		return status.Errorf(codes.FailedPrecondition, "the gateway speaks version %d of the nodes' protocol and the node version %d: "+
			"they need the same release of sluice", protocol, h.Protocol)
	}
	return nil
}

// skewOf is in whole seconds, so that the way of the message does not count.
func skewOf(h *hello) time.Duration {
	if h.Clock.IsZero() {
		return 0
	}
	return time.Since(h.Clock).Round(time.Second)
}

func (x *session) poke() { poke(x.wake) }

// receive takes in what the node says, beginning with its first report, until the stream ends.
func (x *session) receive(r *report) error {
	for {
		if !x.host.hear(x, r) {
			return nil // whoever took it away has ended the session
		}
		r = new(report)
		if err := x.stream.RecvMsg(r); err != nil {
			return err
		}
	}
}

// send tells the node what it must know, until ctx ends.
func (x *session) send(ctx context.Context) error {
	c := x.host.server.config
	if err := x.stream.SendMsg(&order{LostAfter: c.LostAfter}); err != nil {
		return err
	}
	tick := time.NewTicker(min(countEvery, beat(c.LostAfter)))
	defer tick.Stop()
	var edition uint64
	var counted inFlight
	last := time.Now()
	for {
		var o order
		o.Wish, edition = x.host.newWish(edition)
		if now := x.count(); now.Seen != counted.Seen || !maps.Equal(now.Requests, counted.Requests) {
			counted = now
			o.InFlight = &now
		}
		if o.Wish != nil || o.InFlight != nil || time.Since(last) >= beat(c.LostAfter) {
			last = time.Now()
			if err := x.stream.SendMsg(&o); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-x.wake:
		case <-tick.C:
		}
	}
}

// count is how many requests the node's replicas have. What is seen is found out first: the counts must be younger.
func (x *session) count() inFlight {
	now := inFlight{Seen: x.seen(time.Now()), Requests: map[string]int{}}
	for _, id := range x.host.ids() {
		if n := x.host.server.config.InFlight(id); n > 0 {
			now.Requests[id] = n
		}
	}
	return now
}

// seen is the newest picture that everybody has had time to follow.
func (x *session) seen(now time.Time) uint64 {
	x.host.mu.Lock()
	defer x.host.mu.Unlock()
	settled := now.Add(-x.host.server.config.DrainSettle)
	for len(x.pictures) > 1 && !x.pictures[1].at.After(settled) {
		x.pictures = x.pictures[1:]
	}
	if len(x.pictures) == 0 || x.pictures[0].at.After(settled) {
		return 0
	}
	return x.pictures[0].sequence
}

// check takes over what a node may say of its replicas, and nothing else.
func (x *session) check(all []engines.Replica) []engines.Replica {
	seen := map[string]bool{}
	var good []engines.Replica
	for _, r := range all {
		if !isReplicaOf(r.ID, r.Model) || seen[r.ID] {
			continue
		}
		seen[r.ID] = true
		r.Node, r.Launcher, r.Transport, r.Host = x.host.name, engines.Local, nil, ""
		r.Since = r.Since.Add(x.skew).UTC()
		r.Reason = bounded(r.Reason)
		if x.distant && r.Address.Addr().Unmap().IsLoopback() {
			r = failed(r, "the node reports it at "+r.Address.String()+", which is ours: it needs an --address that can be reached from here")
		}
		if !slices.Contains(states(), r.State) || r.State == engines.Ready && (!r.Address.IsValid() || r.Address.Addr().IsUnspecified()) {
			r = failed(r, "the node reports it with no address, or in no state that there is")
		}
		good = append(good, r)
	}
	return good
}

// bounded is a text that may be shown.
func bounded(text string) string {
	if text = strings.ToValidUTF8(text, "\uFFFD"); len(text) > longestReason {
		text = strings.ToValidUTF8(text[:longestReason], "")
	}
	return text
}

// checkInventory takes over what a node may say of itself. Who sorts out what fits where compares its GPUs with each other.
func checkInventory(n *engines.Node) *engines.Node {
	own := *n
	own.Reason, own.GPUs = bounded(n.Reason), n.GPUs[:min(len(n.GPUs), mostGPUs)]
	return &own
}

func states() []engines.State {
	return []engines.State{engines.Pending, engines.Starting, engines.Ready, engines.Draining, engines.Failed, engines.Stopped}
}

// isReplicaOf: a node must not bring replicas of one model in the name of another.
func isReplicaOf(id, model string) bool {
	index, ok := strings.CutPrefix(id, model+"-")
	n, err := strconv.Atoi(index)
	return ok && model != "" && err == nil && n >= 0 && strconv.Itoa(n) == index
}

package gateway

import (
	"context"
	"errors"
	"net/http"
	"os"
	"strings"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-gateway/sluice/internal/carry"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/relay"
)

// ErrHandedOver is the error of Run in a process whose successor serves: the process ends, and the
// gateway goes on.
var ErrHandedOver = errors.New("another process serves the gateway")

const (
	// busyInterval is how often a retired process looks whether it still carries something.
	busyInterval = 50 * time.Millisecond
	// idleConnections is how long Envoy may keep a connection to a retired process without a
	// request. Its own time-outs are shorter.
	idleConnections = 40 * time.Second
	// settleTime is how long a retired process stays at least. Envoy may still send a request on a
	// connection before it knows that it should open a new one.
	settleTime = time.Second
	// flushTimeout bounds the time in which the successor is told of the last requests.
	flushTimeout = time.Second
)

// retire leaves everything to the successor but the streams that this process carries. Requests
// that wait, and later ones that Envoy still sends here, go to the successor.
func (g *Gateway) retire() error {
	toSuccessor, err := grpc.NewClient("unix:"+bootstrap(g.dir).ControlSocket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(int(g.options.Config.MaxBody)+messageOverhead)))
	if err != nil {
		return err
	}
	g.decisions.Retire(toSuccessor)
	g.sockets.filter.Close() // the successor listens at its path
	g.sockets.filterServer.Retire()
	g.streams.relay.Retire(carry.Forwarder("unix", kinSocket(g.dir), g.log))
	g.dispatcher.Retire()
	g.sockets.api.gate.move(carry.Forwarder("unix", bootstrap(g.dir).APISocket, g.log))
	if g.sockets.remote != nil {
		g.sockets.remote.api.gate.move(carry.Forwarder("unix", bootstrap(g.dir).APISocket, g.log))
	}
	g.sockets.admin.gate.move(carry.Forwarder("tcp", g.options.Config.Admin, g.log))
	g.envoy.server.Retire()
	g.accessLog.Retire()
	g.sockets.retire()
	return nil
}

// elsewhere implements relay.Config.Elsewhere: a retired process sends Envoy's request to its
// successor, and a successor sends it to the predecessor that has made its offer.
func (g *Gateway) elsewhere(w http.ResponseWriter, r *http.Request) bool {
	if r.Header.Get(headers.Forwarded) != "" {
		return false
	}
	var to relay.Forwarder
	if successor := g.succession.relay.Load(); successor != nil {
		to = *successor
	} else if made := dispatch.ProcessOf(r.Header.Get(headers.Handoff)); made != "" {
		for _, p := range g.carried.Predecessors() {
			if p.Instance == made {
				to = carry.Forwarder("unix", p.Socket, g.log)
			}
		}
	}
	if to == nil {
		return false
	}
	forward(to, w, r)
	return true
}

// orderDrain makes a retired process end its streams within the time. It does not block.
func (g *Gateway) orderDrain(timeout time.Duration) {
	select {
	case g.succession.drainOrders <- timeout:
	default: // an order waits already
	}
}

// carryOn carries the streams of this process to their end, at most for upgrade_timeout, and then
// stops. The process that was started first stays as the follower of the gateway: its supervisor
// stops the gateway by it. Another process that is told to stop ends its own streams.
func (g *Gateway) carryOn(ctx context.Context, s *successor) error {
	defer s.conn.Close()
	isFirst := g.first == os.Getpid() && s.result == nil
	g.log.Info("new process serves, this one carries its streams to their end",
		zap.Int("requests", g.succession.link.Load().Held()), zap.Duration("at_most", g.config().UpgradeTimeout))
	passing, end := context.WithCancel(context.Background())
	defer end()
	own, ended := ctx, make(chan struct{})
	var followed error
	switch {
	case isFirst:
		own = context.Background()
		go g.dir.Pass(passing, g.stops.signals, g.signals)
		go func() {
			defer close(ended)
			followed = g.dir.Follow(s.pid, s.state)
		}()
	case s.result == nil:
		go g.dir.Pass(passing, nil, g.signals)
	}
	g.awaitIdle(own, ended)
	g.log.Info("last stream has ended")
	g.requests.TellFinished()
	g.succession.link.Load().Flush(flushTimeout)
	g.sockets.stop()
	if err := g.serving.stop(); err != nil {
		g.log.Error("component failed after the hand-over", zap.Error(err))
	}
	_ = os.Remove(carriedSocket(g.dir, g.instance))
	switch {
	case s.result != nil:
		return <-s.result
	case isFirst:
		<-ended
		return followed
	}
	return ErrHandedOver
}

// awaitIdle waits until nothing is carried any more. After the end of ctx it waits at most for
// drain_timeout. When the gateway has ended, the supervisor waits for this process to start it
// again, so clients only get a notice.
func (g *Gateway) awaitIdle(ctx context.Context, ended <-chan struct{}) {
	late := time.NewTimer(g.config().UpgradeTimeout)
	defer late.Stop()
	tick := time.NewTicker(busyInterval)
	defer tick.Stop()
	retired, stop := time.Now(), ctx.Done()
	end := func() {} // waits for the clients of a drain
	defer func() { end() }()
	var over <-chan time.Time
	drain := func(timeout time.Duration) {
		if over == nil {
			over, end = time.After(timeout+handOverPatience), g.streams.drain(timeout)
		}
	}
	for g.carries() || over == nil && g.mayBeAsked(time.Since(retired)) {
		select {
		case <-tick.C:
		case <-over:
			return
		case <-late.C:
			g.log.Warn("streams ended, because upgrade_timeout is over")
			drain(handOverPatience)
		case timeout := <-g.succession.drainOrders:
			drain(timeout)
		case <-ended:
			ended = nil
			drain(handOverPatience)
		case <-stop:
			stop = nil
			drain(g.options.Config.DrainTimeout)
		}
	}
}

// carries reports whether this process carries something.
func (g *Gateway) carries() bool {
	return g.streams.relay.Carries() || g.streams.realtime.Busy() || g.decisions.Busy() || g.sockets.busy()
}

// mayBeAsked reports whether a client may come back to a stream of this process, or Envoy may still
// use one of its connections. retired is how long ago the successor began to serve.
func (g *Gateway) mayBeAsked(retired time.Duration) bool {
	return retired < settleTime || g.streams.relay.Keeps() || retired < idleConnections && g.sockets.connected()
}

// kin are the other processes of this gateway and the remote gateways, as the relay sees them: both
// may have a client's request id.
type kin struct {
	log     *zap.Logger
	carried *carry.Server
	// remote is nil when this gateway does not reach others.
	remote relay.Peers
}

// processOwner is what the owner's name begins with that is a predecessor's socket.
const processOwner = "process:"

// Claim implements relay.Peers.
func (k *kin) Claim(ctx context.Context, tenant, id string, ttl time.Duration) (owner string, mine bool, err error) {
	if p, ok := k.carried.Find(ctx, tenant, id); ok {
		return processOwner + p.Socket, false, nil
	}
	if k.remote == nil {
		return "", true, nil
	}
	return k.remote.Claim(ctx, tenant, id, ttl)
}

// Find implements relay.Peers.
func (k *kin) Find(ctx context.Context, tenant, id string) (owner string, ok bool, err error) {
	if p, ok := k.carried.Find(ctx, tenant, id); ok {
		return processOwner + p.Socket, true, nil
	}
	if k.remote == nil {
		return "", false, nil
	}
	return k.remote.Find(ctx, tenant, id)
}

// Keep implements relay.Peers.
func (k *kin) Keep(tenant, id string) {
	if k.remote != nil {
		k.remote.Keep(tenant, id)
	}
}

// Forward implements relay.Peers.
func (k *kin) Forward(w http.ResponseWriter, r *http.Request, owner string) *openai.Error {
	if socket, ok := strings.CutPrefix(owner, processOwner); ok {
		return carry.Forwarder("unix", socket, k.log)(w, r)
	}
	return k.remote.Forward(w, r, owner)
}

// Release implements relay.Peers.
func (k *kin) Release(ctx context.Context, tenant, id string) {
	if k.remote != nil {
		k.remote.Release(ctx, tenant, id)
	}
}

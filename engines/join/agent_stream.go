package join

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"reflect"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/sluice-gateway/sluice/engines"
)

const (
	// A node reconnects after minRetryDelay, doubled with each failure up to maxRetryDelay. Each
	// delay is randomised. A gateway that starts waits lostAfter for its nodes, which must be time
	// for several attempts.
	minRetryDelay = 200 * time.Millisecond
	maxRetryDelay = 2 * time.Second
	// dialTimeout bounds the TCP connection. callTimeout bounds a unary call and the wait for the
	// first message of a stream.
	dialTimeout = 5 * time.Second
	callTimeout = 10 * time.Second
	// renewCheckInterval is how often a connected node checks whether to renew its certificate.
	renewCheckInterval = 24 * time.Hour
)

// errGatewaySilent means that the gateway sent nothing for LostAfter.
var errGatewaySilent = errors.New("the gateway has sent nothing for too long")

// keepConnected reconnects to the gateway until ctx ends. It returns an error only if isRejected
// says so.
func (a *Agent) keepConnected(ctx context.Context) error {
	pause, said := minRetryDelay, ""
	for ctx.Err() == nil {
		tried := time.Now()
		err := a.connect(ctx)
		if ctx.Err() != nil {
			break
		}
		if a.hasReportedDrain() {
			close(a.farewellDone)
			<-ctx.Done()
			break
		}
		if a.isRejected(err) {
			return fmt.Errorf("join %s: %w", a.config.Gateway, withoutGRPC(err))
		}
		if a.hasContactSince(tried) {
			pause, said = minRetryDelay, ""
		}
		level := zap.DebugLevel // The agent warns once about a repeated error.
		if text := withoutGRPC(err).Error(); text != said {
			level, said = zap.WarnLevel, text
		}
		a.config.Log.Log(level, "gateway not connected",
			zap.String("gateway", a.config.Gateway), zap.Error(withoutGRPC(err)))
		select {
		case <-ctx.Done():
		case <-time.After(pause/2 + rand.N(pause/2)):
		}
		pause = min(2*pause, maxRetryDelay)
	}
	return nil
}

// isRejected reports whether retrying is pointless, because the gateway rejected the token. A node
// that has joined before always retries, because its replicas may be in use.
func (a *Agent) isRejected(err error) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.joined && status.Code(err) == codes.Unauthenticated
}

func (a *Agent) hasReportedDrain() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.drainReported
}

func (a *Agent) hasContactSince(t time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lastContact.After(t)
}

// withoutGRPC returns the message of a gRPC status error without the "rpc error" prefix.
func withoutGRPC(err error) error {
	if s, ok := status.FromError(err); ok && s.Code() != codes.OK {
		return errors.New(s.Message())
	}
	return err
}

// connect joins the gateway if the node has no valid certificate, and then runs one stream until
// the stream ends.
func (a *Agent) connect(ctx context.Context) error {
	i, err := a.ensureIdentity(ctx)
	if err != nil {
		return err
	}
	conn, err := a.dial(identityTLS(i))
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // the stream has ended, so a failure to close is harmless
	if needsRenewal(i.certificate, time.Now()) {
		a.renew(ctx, conn, i)
	}
	err = a.runStream(ctx, conn)
	if code := status.Code(err); (code == codes.PermissionDenied || code == codes.Unauthenticated) && a.token != nil {
		// Another machine holds the node's name. A token that replaces it can claim the name again.
		a.setIdentity(nil)
	}
	return err
}

// dial returns a connection that is established by its first call. It uses no proxy, because a
// proxy could not read the TLS stream.
func (a *Agent) dial(c *tls.Config) (*grpc.ClientConn, error) {
	dialer := net.Dialer{Timeout: dialTimeout}
	return grpc.NewClient("passthrough:///"+a.config.Gateway,
		grpc.WithTransportCredentials(credentials.NewTLS(c)), grpc.WithAuthority("sluice"),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", address)
		}),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(codec{}),
			grpc.MaxCallRecvMsgSize(maxOrderBytes), grpc.MaxCallSendMsgSize(maxReportBytes)),
		grpc.WithDisableRetry(), grpc.WithDisableServiceConfig(),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepAliveInterval, Timeout: keepAliveTimeout}),
	)
}

// ensureIdentity returns the node's identity. The node joins first if it has no valid certificate.
func (a *Agent) ensureIdentity(ctx context.Context) (*identity, error) {
	a.mu.Lock()
	i := a.identity
	a.mu.Unlock()
	if i != nil && !isInvalidAt(i.certificate, time.Now()) {
		return i, nil
	}
	if now := time.Now(); a.token == nil && i != nil && now.Before(i.certificate.NotBefore) {
		return nil, fmt.Errorf("the clock of this machine is behind, or that of the gateway was ahead: "+
			"it is %s here, and the node's certificate is valid from %s",
			now.UTC().Format(time.RFC3339), i.certificate.NotBefore.UTC().Format(time.RFC3339))
	}
	if a.token == nil && i != nil {
		return nil, fmt.Errorf("%w: its certificate was valid until %s",
			errNoToken, i.certificate.NotAfter.Format(time.DateOnly))
	} else if a.token == nil {
		return nil, errNoToken
	}
	conn, err := a.dial(tokenTLS(*a.token))
	if err != nil {
		return nil, err
	}
	defer conn.Close() //nolint:errcheck // the call has ended, so a failure to close is harmless
	request, err := makeSigningRequest(a.config.Name, a.key)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var answer certificates
	call := joinRequest{Secret: a.token.secret, renewRequest: renewRequest{request}}
	if err := conn.Invoke(ctx, joinMethod, &call, &answer); err != nil {
		return nil, err
	}
	if i, err = a.store.saveIdentity(&answer, a.key); err != nil {
		return nil, err
	}
	a.config.Log.Info("node joined", zap.String("gateway", a.config.Gateway), zap.String("node", a.config.Name))
	a.setIdentity(i)
	return i, nil
}

func (a *Agent) setIdentity(i *identity) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.identity = i
	a.joined = a.joined || i != nil
}

// renew requests a new certificate, which the next connection uses. The current certificate is
// still valid, so a failure is logged and not returned. The next call tries again.
func (a *Agent) renew(ctx context.Context, conn *grpc.ClientConn, i *identity) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	request, err := makeSigningRequest(a.config.Name, i.key)
	var answer certificates
	if err == nil {
		err = conn.Invoke(ctx, renewMethod, &renewRequest{request}, &answer)
	}
	renewed := i
	if err == nil {
		renewed, err = a.store.saveIdentity(&answer, i.key)
	}
	if err != nil {
		a.config.Log.Warn("certificate not renewed",
			zap.Time("valid_until", i.certificate.NotAfter), zap.Error(withoutGRPC(err)))
		return
	}
	a.config.Log.Info("certificate renewed", zap.Time("valid_until", renewed.certificate.NotAfter))
	a.setIdentity(renewed)
}

// runStream opens a stream and serves it until the stream breaks or ctx ends.
func (a *Agent) runStream(ctx context.Context, conn *grpc.ClientConn) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	quiet := time.AfterFunc(callTimeout, func() { cancel(errGatewaySilent) })
	defer quiet.Stop()
	stream, err := conn.NewStream(ctx, runStreamDesc(), runMethod)
	if err != nil {
		return err
	}
	a.counts.reset()
	node := a.inventory()
	first := report{Hello: &hello{Protocol: protocol, Revision: revision, Clock: time.Now()},
		Inventory: node, Replicas: a.counts.snapshot(), Stopping: a.isStopping()}
	_ = stream.SendMsg(&first) // RecvMsg below returns the reason if sending failed.
	var welcome order
	if err := stream.RecvMsg(&welcome); err != nil {
		return a.streamError(ctx, err)
	}
	setDefault(&welcome.LostAfter, lostAfter)
	quiet.Reset(welcome.LostAfter)
	a.recordContact(true)
	defer a.recordContact(false)
	a.config.Log.Info("gateway connected", zap.String("gateway", a.config.Gateway))

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		for {
			var o order
			if err := stream.RecvMsg(&o); err != nil {
				return a.streamError(ctx, err)
			}
			quiet.Reset(welcome.LostAfter)
			a.applyOrder(o)
			for _, r := range o.Logs {
				group.Go(func() error { a.sendLog(ctx, conn, r); return nil })
			}
		}
	})
	group.Go(func() error { return a.sendReports(ctx, stream, heartbeatInterval(welcome.LostAfter), node) })
	group.Go(func() error { a.renewDaily(ctx, conn); return nil })
	return group.Wait()
}

// streamError returns why a stream ended. If the agent cancelled ctx because of silence, it returns
// that cause.
func (a *Agent) streamError(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, errGatewaySilent) {
		return cause
	}
	return err
}

// recordContact records that the gateway sent a message, and whether there still is a stream.
func (a *Agent) recordContact(connected bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.connected, a.lastContact = connected, time.Now()
	a.orphan = a.orphan && !connected
}

func (a *Agent) isStopping() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stopping
}

// applyOrder applies a message of the gateway.
func (a *Agent) applyOrder(o order) {
	a.recordContact(true)
	if o.InFlight != nil {
		a.counts.set(*o.InFlight)
	}
	if o.Assignment != nil {
		a.assign(*o.Assignment)
	}
	for _, id := range o.Silent {
		a.launcher.Suspect(id, true)
	}
}

// inventory returns the resources of this machine, or nil until the launcher has read them.
func (a *Agent) inventory() *engines.Node {
	if node := a.launcher.Node(); !reflect.DeepEqual(node, engines.Node{}) {
		return &node
	}
	return nil
}

// sendReports sends a report after every change, and an empty report as a heartbeat at the given
// interval. It returns nil when the last report was sent, when ctx ends, or when the stream breaks.
// The receiving goroutine knows why a stream broke.
func (a *Agent) sendReports(ctx context.Context, stream grpc.ClientStream, every time.Duration, node *engines.Node) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	_, changed := a.fleet.Watch()
	// The fleet may have changed since the first report, so the replicas are sent again.
	r := report{Replicas: a.counts.snapshot(), Stopping: a.isStopping()}
	for {
		if now := a.inventory(); now != nil && (node == nil || !reflect.DeepEqual(*node, *now)) {
			r.Inventory, node = now, now
		}
		if err := stream.SendMsg(&r); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if a.isLastReport(r) {
			return a.closeStream(stream)
		}
		r = report{Stopping: a.isStopping()}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			continue
		case <-a.wakeup:
			r.Stopping = a.isStopping()
		case <-changed:
			_, changed = a.fleet.Watch()
		}
		r.Replicas = a.counts.snapshot()
	}
}

// isLastReport reports whether r tells the gateway that the node is stopping and has no replicas.
func (a *Agent) isLastReport(r report) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.drained && r.Stopping && r.Replicas != nil && len(r.Replicas.Replicas) == 0
}

// closeStream closes the sending side. The gateway reads everything that was sent before and then
// ends the stream.
func (a *Agent) closeStream(stream grpc.ClientStream) error {
	a.mu.Lock()
	a.drainReported = true
	a.mu.Unlock()
	return stream.CloseSend()
}

// renewDaily renews the certificate while a stream lasts longer than the certificate should.
func (a *Agent) renewDaily(ctx context.Context, conn *grpc.ClientConn) {
	tick := time.NewTicker(renewCheckInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			a.mu.Lock()
			current := a.identity
			a.mu.Unlock()
			if current != nil && needsRenewal(current.certificate, now) {
				a.renew(ctx, conn, current)
			}
		}
	}
}

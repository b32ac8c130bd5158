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
	// A link that breaks is made again after firstPause, doubled up to mostPause, each time a random part of it. A gateway that starts
	// waits for lostAfter, in which there must be time for more than one attempt.
	firstPause = 200 * time.Millisecond
	mostPause  = 2 * time.Second
	// dialTimeout is for the connection, callTimeout for the answer to a call.
	dialTimeout = 5 * time.Second
	callTimeout = 10 * time.Second
	// renewEvery is how often a node looks whether its certificate is old.
	renewEvery = 24 * time.Hour
)

// errQuiet: the gateway gives no sign of life.
var errQuiet = errors.New("the gateway has fallen silent")

// keepLink keeps a stream to the gateway until ctx ends.
func (a *Agent) keepLink(ctx context.Context) error {
	pause, said := firstPause, ""
	for ctx.Err() == nil {
		tried := time.Now()
		err := a.connect(ctx)
		if ctx.Err() != nil {
			break
		}
		if a.hasSaid() {
			close(a.parted)
			<-ctx.Done()
			break
		}
		if a.refused(err) {
			return fmt.Errorf("join %s: %w", a.config.Gateway, plain(err))
		}
		if a.heardSince(tried) {
			pause, said = firstPause, ""
		}
		level := zap.DebugLevel // the same words again and again help nobody
		if text := plain(err).Error(); text != said {
			level, said = zap.WarnLevel, text
		}
		a.log.Log(level, "not connected to the gateway", zap.String("gateway", a.config.Gateway), zap.Error(plain(err)))
		select {
		case <-ctx.Done():
		case <-time.After(pause/2 + rand.N(pause/2)):
		}
		pause = min(2*pause, mostPause)
	}
	return nil
}

// refused: it makes no sense to go on. A node that has joined before goes on: its replicas may be in use.
func (a *Agent) refused(err error) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.joined && status.Code(err) == codes.Unauthenticated
}

func (a *Agent) hasSaid() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.said
}

func (a *Agent) heardSince(t time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.contact.After(t)
}

// plain is the error without gRPC's frame.
func plain(err error) error {
	if s, ok := status.FromError(err); ok && s.Code() != codes.OK {
		return errors.New(s.Message())
	}
	return err
}

// connect joins if it must, and carries on one stream from its beginning to its end.
func (a *Agent) connect(ctx context.Context) error {
	i, err := a.identify(ctx)
	if err != nil {
		return err
	}
	conn, err := a.dial(known(i))
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // it is done with
	if old(i.certificate, time.Now()) {
		a.renew(ctx, conn, i)
	}
	err = a.converse(ctx, conn)
	if code := status.Code(err); (code == codes.PermissionDenied || code == codes.Unauthenticated) && a.token != nil {
		a.setIdentity(nil) // another machine has the name, or had it: the token may get it back
	}
	return err
}

// dial makes a connection that comes up with its first call. No proxy: it would see an encrypted stream at best.
func (a *Agent) dial(c *tls.Config) (*grpc.ClientConn, error) {
	dialer := net.Dialer{Timeout: dialTimeout}
	return grpc.NewClient("passthrough:///"+a.config.Gateway,
		grpc.WithTransportCredentials(credentials.NewTLS(c)), grpc.WithAuthority("sluice"),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", address)
		}),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(codec{}), grpc.MaxCallRecvMsgSize(largestOrder), grpc.MaxCallSendMsgSize(largestReport)),
		grpc.WithDisableRetry(), grpc.WithDisableServiceConfig(),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepAlive, Timeout: keepAliveTimeout}),
	)
}

// identify is who the node is: joined, and with a certificate that holds.
func (a *Agent) identify(ctx context.Context) (*identity, error) {
	a.mu.Lock()
	i := a.identity
	a.mu.Unlock()
	if i != nil && !expired(i.certificate, time.Now()) {
		return i, nil
	}
	if a.token == nil && i != nil {
		return nil, fmt.Errorf("%w: its certificate was valid until %s", errNoToken, i.certificate.NotAfter.Format(time.DateOnly))
	} else if a.token == nil {
		return nil, errNoToken
	}
	conn, err := a.dial(firstContact(*a.token))
	if err != nil {
		return nil, err
	}
	defer conn.Close() //nolint:errcheck // it is done with
	request, err := makeRequest(a.config.Name, a.key)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var answer certificates
	if err := conn.Invoke(ctx, joinMethod, &joinRequest{Secret: a.token.secret, renewRequest: renewRequest{request}}, &answer); err != nil {
		return nil, err
	}
	if i, err = a.store.keep(&answer, a.key); err != nil {
		return nil, err
	}
	a.log.Info("joined", zap.String("gateway", a.config.Gateway), zap.String("node", a.config.Name))
	a.setIdentity(i)
	return i, nil
}

func (a *Agent) setIdentity(i *identity) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.identity = i
	a.joined = a.joined || i != nil
}

// renew gets a new certificate for the next connection. The old one still holds: a failure is only told.
func (a *Agent) renew(ctx context.Context, conn *grpc.ClientConn, i *identity) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	request, err := makeRequest(a.config.Name, i.key)
	var answer certificates
	if err == nil {
		err = conn.Invoke(ctx, renewMethod, &renewRequest{request}, &answer)
	}
	if err == nil {
		i, err = a.store.keep(&answer, i.key)
	}
	if err != nil {
		a.log.Warn("the node's certificate is not renewed", zap.Time("valid_until", i.certificate.NotAfter), zap.Error(plain(err)))
		return
	}
	a.log.Info("the node's certificate is renewed", zap.Time("valid_until", i.certificate.NotAfter))
	a.setIdentity(i)
}

// converse carries on one stream until it breaks or ctx ends.
func (a *Agent) converse(ctx context.Context, conn *grpc.ClientConn) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	quiet := time.AfterFunc(callTimeout, func() { cancel(errQuiet) })
	defer quiet.Stop()
	stream, err := conn.NewStream(ctx, runStream(), runMethod)
	if err != nil {
		return err
	}
	a.counts.begin()
	node := a.inventory()
	first := report{Hello: &hello{Protocol: protocol, Clock: time.Now()}, Inventory: node, Replicas: a.counts.picture(), Leaving: a.isLeaving()}
	_ = stream.SendMsg(&first) // what is wrong is in the answer
	var welcome order
	if err := stream.RecvMsg(&welcome); err != nil {
		return a.reason(ctx, err)
	}
	orStandard(&welcome.LostAfter, lostAfter)
	quiet.Reset(welcome.LostAfter)
	a.touch(true)
	defer a.touch(false)
	a.log.Info("connected to the gateway", zap.String("gateway", a.config.Gateway))

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		for {
			var o order
			if err := stream.RecvMsg(&o); err != nil {
				return a.reason(ctx, err)
			}
			quiet.Reset(welcome.LostAfter)
			a.take(o)
		}
	})
	group.Go(func() error { return a.speak(ctx, stream, beat(welcome.LostAfter), node) })
	group.Go(func() error { a.renewDaily(ctx, conn); return nil })
	return group.Wait()
}

// reason is why a stream broke: ours, if we broke it.
func (a *Agent) reason(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, errQuiet) {
		return cause
	}
	return err
}

// touch notes a sign of life of the gateway.
func (a *Agent) touch(connected bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.connected, a.contact = connected, time.Now()
	a.orphan = a.orphan && !connected
}

func (a *Agent) isLeaving() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.leaving
}

// take does what an order says.
func (a *Agent) take(o order) {
	a.touch(true)
	if o.InFlight != nil {
		a.counts.set(*o.InFlight)
	}
	if o.Wish != nil {
		a.obey(*o.Wish)
	}
}

// inventory is what the host has; nil while it has not been read.
func (a *Agent) inventory() *engines.Node {
	if node := a.launcher.Node(); !reflect.DeepEqual(node, engines.Node{}) {
		return &node
	}
	return nil
}

// speak tells the gateway of every change, and that we live. It returns when the stream breaks, whose reason the receiving side
// knows, when ctx ends, or when all is said.
func (a *Agent) speak(ctx context.Context, stream grpc.ClientStream, every time.Duration, node *engines.Node) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	_, changed := a.fleet.Watch()
	r := report{Replicas: a.counts.picture(), Leaving: a.isLeaving()} // the fleet may have changed since the hello
	for {
		if now := a.inventory(); now != nil && (node == nil || !reflect.DeepEqual(*node, *now)) {
			r.Inventory, node = now, now
		}
		if err := stream.SendMsg(&r); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if a.isDone(r) {
			return a.part(stream)
		}
		r = report{Leaving: a.isLeaving()}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			continue
		case <-a.wake:
			r.Leaving = a.isLeaving()
		case <-changed:
			_, changed = a.fleet.Watch()
		}
		r.Replicas = a.counts.picture()
	}
}

// isDone: the gateway has been told that there are no replicas and that there will be none.
func (a *Agent) isDone(r report) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.empty && r.Leaving && r.Replicas != nil && len(r.Replicas.Replicas) == 0
}

// part ends the stream in order: the gateway reads all that was sent, and then ends it too.
func (a *Agent) part(stream grpc.ClientStream) error {
	a.mu.Lock()
	a.said = true
	a.mu.Unlock()
	return stream.CloseSend()
}

// renewDaily renews the certificate during a long stream.
func (a *Agent) renewDaily(ctx context.Context, conn *grpc.ClientConn) {
	tick := time.NewTicker(renewEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			a.mu.Lock()
			current := a.identity
			a.mu.Unlock()
			if current != nil && old(current.certificate, now) {
				a.renew(ctx, conn, current)
			}
		}
	}
}

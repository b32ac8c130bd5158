package grpcapi

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-gateway/sluice/internal/openai/sse"
)

const (
	// connectTimeout is that of the relay's other connections to engines.
	connectTimeout = 2 * time.Second
	// DefaultIdle is how long a connection without calls is kept.
	DefaultIdle = time.Minute
)

// Workers call engines that serve llm.v1. It is an http.RoundTripper for chat requests of OpenAI's API, with the engine's address in the
// URL. The zero value is ready to use.
type Workers struct {
	// Idle is how long a connection without calls is kept. 0: DefaultIdle.
	Idle time.Duration
	// TLS is for URLs of the scheme https. nil: the system's CAs.
	TLS *tls.Config

	mu     sync.Mutex
	closed bool
	by     map[address]*worker
}

// address is how a worker is called.
type address struct {
	host   string
	secure bool
}

// worker is the connection to one address.
type worker struct {
	owner *Workers
	at    address
	conn  *grpc.ClientConn
	// refused is why the last attempt to connect failed; nil: it did not.
	refused atomic.Pointer[error]

	// Guarded by owner.mu.
	calls int
	idle  *time.Timer // runs while there are none
}

// errClosed is what calls get after Close.
var errClosed = errors.New("llmv1: the workers' connections are closed")

// take is the connection to an address, for one call. It is to be released.
func (w *Workers) take(at address) (*worker, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, errClosed
	}
	one := w.by[at]
	if one == nil {
		one = &worker{owner: w, at: at}
		if err := one.dial(); err != nil {
			return nil, err
		}
		if w.by == nil {
			w.by = map[address]*worker{}
		}
		w.by[at] = one
	}
	one.calls++
	if one.idle != nil {
		one.idle.Stop()
	}
	return one, nil
}

// release ends a call.
func (o *worker) release() {
	o.owner.mu.Lock()
	defer o.owner.mu.Unlock()
	o.calls--
	if o.calls > 0 || o.owner.by[o.at] != o {
		return
	}
	if o.idle == nil {
		o.idle = time.AfterFunc(cmp.Or(o.owner.Idle, DefaultIdle), o.expire)
		return
	}
	o.idle.Reset(cmp.Or(o.owner.Idle, DefaultIdle))
}

// expire closes a connection that nobody has used.
func (o *worker) expire() {
	o.owner.mu.Lock()
	mine := o.calls == 0 && o.owner.by[o.at] == o
	if mine {
		delete(o.owner.by, o.at)
	}
	o.owner.mu.Unlock()
	if mine {
		_ = o.conn.Close() // there is nothing to lose
	}
}

// dial makes the connection; it is opened by the first call.
func (o *worker) dial() error {
	creds := insecure.NewCredentials()
	if o.at.secure {
		creds = credentials.NewTLS(o.owner.TLS)
	}
	conn, err := grpc.NewClient("passthrough:///"+o.at.host,
		grpc.WithTransportCredentials(creds),
		grpc.WithNoProxy(),
		grpc.WithContextDialer(o.connect),
		grpc.WithIdleTimeout(0), // ours is kept here
		grpc.WithStatsHandler(trailers{}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(sse.DefaultLimit)),
		// A replica that was restarted is back soon, and nobody is to wait for more than that.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: connectTimeout,
		}),
	)
	o.conn = conn
	return err
}

// connect dials and keeps the error, which a status of gRPC would only quote: the relay tells by it what did not answer from what broke.
func (o *worker) connect(ctx context.Context, host string) (net.Conn, error) {
	d := net.Dialer{Timeout: connectTimeout, KeepAlive: 30 * time.Second}
	conn, err := d.DialContext(ctx, "tcp", host)
	if err != nil {
		o.refused.Store(&err)
		return nil, err
	}
	o.refused.Store(nil)
	return conn, nil
}

// lost is the error of a call that the worker has not answered at all.
func (o *worker) lost(err error) error {
	if refused := o.refused.Load(); refused != nil {
		return *refused
	}
	return err
}

// CloseIdleConnections closes the connections that have no calls.
func (w *Workers) CloseIdleConnections() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for at, o := range w.by {
		if o.calls == 0 {
			w.dropLocked(at, o)
		}
	}
}

// Close closes all connections, and thereby ends all calls. Nothing can be called afterwards.
func (w *Workers) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for at, o := range w.by {
		w.dropLocked(at, o)
	}
}

func (w *Workers) dropLocked(at address, o *worker) {
	delete(w.by, at)
	if o.idle != nil {
		o.idle.Stop()
	}
	_ = o.conn.Close() // there is nothing to lose
}

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
	// DefaultIdle is how long a connection without calls is kept open.
	DefaultIdle = time.Minute
)

// Workers calls engines that serve llm.v1. It is an http.RoundTripper for chat requests of OpenAI's
// API, with the engine's address in the URL. The zero value is ready to use.
type Workers struct {
	// Idle is how long a connection without calls is kept open. 0: DefaultIdle.
	Idle time.Duration
	// TLS is for URLs with the scheme https. nil: the CAs of the system.
	TLS *tls.Config

	mu      sync.Mutex
	closed  bool
	workers map[address]*worker
}

// address identifies a worker.
type address struct {
	host   string
	secure bool
}

// worker is the connection to one address.
type worker struct {
	owner *Workers
	at    address
	conn  *grpc.ClientConn
	// dialErr is why the last attempt to connect failed. nil: it succeeded.
	dialErr atomic.Pointer[error]

	// calls counts the running calls. idle closes the connection some time after the last one.
	// owner.mu guards both.
	calls int
	idle  *time.Timer
}

// errClosed is the error of calls after Close.
var errClosed = errors.New("llmv1: the workers' connections are closed")

// acquire returns the connection to an address for one call. The caller must release it.
func (w *Workers) acquire(at address) (*worker, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, errClosed
	}
	one := w.workers[at]
	if one == nil {
		one = &worker{owner: w, at: at}
		if err := one.dial(); err != nil {
			return nil, err
		}
		if w.workers == nil {
			w.workers = map[address]*worker{}
		}
		w.workers[at] = one
	}
	one.calls++
	if one.idle != nil {
		one.idle.Stop()
	}
	return one, nil
}

func (o *worker) release() {
	o.owner.mu.Lock()
	defer o.owner.mu.Unlock()
	o.calls--
	if o.calls > 0 || o.owner.workers[o.at] != o {
		return
	}
	if o.idle == nil {
		o.idle = time.AfterFunc(cmp.Or(o.owner.Idle, DefaultIdle), o.expire)
		return
	}
	o.idle.Reset(cmp.Or(o.owner.Idle, DefaultIdle))
}

// expire closes a connection that has no calls.
func (o *worker) expire() {
	o.owner.mu.Lock()
	mine := o.calls == 0 && o.owner.workers[o.at] == o
	if mine {
		delete(o.owner.workers, o.at)
	}
	o.owner.mu.Unlock()
	if mine {
		_ = o.conn.Close() // no call uses it, or all calls are to end
	}
}

// dial makes the connection. The first call opens it.
func (o *worker) dial() error {
	creds := insecure.NewCredentials()
	if o.at.secure {
		creds = credentials.NewTLS(o.owner.TLS)
	}
	conn, err := grpc.NewClient("passthrough:///"+o.at.host,
		grpc.WithTransportCredentials(creds),
		grpc.WithNoProxy(),
		grpc.WithContextDialer(o.connect),
		grpc.WithIdleTimeout(0), // Workers.Idle closes idle connections
		grpc.WithStatsHandler(trailerHandler{}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(sse.DefaultLimit)),
		// A replica that was restarted is ready soon, so that calls must not wait much longer.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: connectTimeout,
		}),
	)
	o.conn = conn
	return err
}

// connect dials and stores the error. gRPC would only quote the error in a status, but the relay
// must tell a replica that did not answer from one that broke off.
func (o *worker) connect(ctx context.Context, host string) (net.Conn, error) {
	d := net.Dialer{Timeout: connectTimeout, KeepAlive: 30 * time.Second}
	conn, err := d.DialContext(ctx, "tcp", host)
	if err != nil {
		o.dialErr.Store(&err)
		return nil, err
	}
	o.dialErr.Store(nil)
	return conn, nil
}

// unansweredError returns the error of a call that the worker has not answered at all.
func (o *worker) unansweredError(err error) error {
	if dialErr := o.dialErr.Load(); dialErr != nil {
		return *dialErr
	}
	return err
}

// CloseIdleConnections closes the connections that have no calls.
func (w *Workers) CloseIdleConnections() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for at, o := range w.workers {
		if o.calls == 0 {
			w.dropLocked(at, o)
		}
	}
}

// Close closes all connections, which ends all calls. Later calls fail.
func (w *Workers) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for at, o := range w.workers {
		w.dropLocked(at, o)
	}
}

func (w *Workers) dropLocked(at address, o *worker) {
	delete(w.workers, at)
	if o.idle != nil {
		o.idle.Stop()
	}
	_ = o.conn.Close() // no call uses it, or all calls are to end
}

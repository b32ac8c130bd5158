// Package peers lets several gateways that share one Redis act as one towards a client that comes
// back. internal/gateway runs it, and the package internal/relay uses it through its interface
// Peers.
//
// A client's request id belongs to the gateway that runs the request. A repeated start, a resume or
// a cancel that reaches another gateway is forwarded to the owner, and the owner's answer goes back
// event by event.
//
// # Who owns what
//
// A claim is a key in Redis that names the owner. The first gateway that asks gets the claim. Each
// gateway also has a record in Redis: the address where it listens for the others, and the SHA-256
// of its certificate. The record expires unless Run renews it. A claim whose owner has no record is
// free, because the streams of that owner have ended with it. Keys hold hashes of request ids,
// never the ids themselves, which may be long or secret.
//
// Requests without an id never use this package. A start with an id costs one round trip to Redis.
//
// # Whom a gateway trusts
//
// Each gateway makes a key and a certificate in memory when it starts. Gateways speak TLS 1.3 with
// each other and both sides show their certificate. A gateway that serves accepts every certificate
// whose hash is in the record of a live gateway of this deployment. A gateway that dials accepts
// only the certificate of the gateway that it means to reach. So no certificate authority has to be
// distributed. Whoever may write to Redis is trusted as a gateway, so protect Redis with a password
// and TLS where others can reach it. A gateway believes a record until it would have expired, so a
// gateway whose record is deleted is trusted for up to Config.Expiry more. The names and dates in
// certificates are not checked.
//
// A gateway believes the headers of a forwarded request: the first gateway has authenticated the
// tenant and the priority. A gateway never forwards such a request again, so there are no loops.
//
// # When Redis is slow or away
//
// A claim is answered within Config.Timeout, with an error that wraps ErrLocal: the request goes
// on, and the claim holds at this gateway only. If the claim is kept, Run writes it to Redis as
// soon as Redis answers, unless another gateway has the id by then. A gateway that cannot reach
// Redis for Config.Expiry, while others can, loses its claims to gateways that ask for them. That a
// client gets an answer is more important than that it gets only one. The same happens when a claim
// is free for a moment because Redis has lost its data.
package peers

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
)

// Config configures Peers.
type Config struct {
	// Redis is where the gateways meet. Its owner closes it after Run has returned.
	Redis redis.Scripter
	// Deployment separates several deployments in one Redis: letters, digits, '.', '_' and '-'. It
	// is the hash tag of all keys. Empty: "sluice".
	Deployment string
	// ID names this process among all gateways, and must not have named another process before: at
	// most 64 of the same characters. Empty: random.
	ID string
	// Listen is the host:port where Serve listens, and at which other gateways reach this one. It
	// is one address, not all addresses of the host.
	Listen string
	// Expiry is how long a gateway counts as alive after it has renewed its record, which it does
	// three times in this time. 0 or less: 15 s.
	Expiry time.Duration
	// Timeout is how long a request waits for Redis. 0 or less: 50 ms.
	Timeout time.Duration
	// SlowTimeout is the timeout of calls that no new request waits for. 0 or less: 20 times
	// Timeout.
	SlowTimeout time.Duration
	// Log is for the operator. nil: nothing is logged.
	Log *zap.Logger
}

const (
	defaultDeployment = "sluice"
	defaultExpiry     = 15 * time.Second
	defaultTimeout    = 50 * time.Millisecond
	// renewalsPerExpiry is how often a record is renewed before it would expire.
	renewalsPerExpiry = 3
	// slowFactor is the default of Config.SlowTimeout, in units of Config.Timeout.
	slowFactor = 20
)

// ErrLocal is wrapped by the errors of Claim. It says that the claim holds at this gateway only.
var ErrLocal = errors.New("the other gateways do not know of it")

// errNoRecord says that Redis has no record of the gateway.
var errNoRecord = errors.New("there is no such gateway, or not any more")

// Peers are the gateways of a deployment, as seen from one of them. Any goroutine may call its
// methods.
type Peers struct {
	cfg Config
	// prefix is what every key in Redis begins with.
	prefix      string
	certificate tls.Certificate
	// sum is the hash of certificate that is in the record of this gateway.
	sum       string
	transport *http.Transport
	// wakeRun makes Run refresh at once. It has room for one element, so that a send never blocks.
	wakeRun chan struct{}

	// mu guards the fields up to forwards.
	mu sync.Mutex
	// address is the address in this gateway's record. Empty: there is no record, because Serve has
	// not begun or Run has ended.
	address string
	// listener is what Serve listens on. nil: Serve has not begun.
	listener net.Listener
	// claims are the claims of this gateway by their keys.
	claims map[string]*claim
	// records are the records of other gateways that have not expired.
	records map[string]record
	// forwards are the requests that this gateway is forwarding.
	forwards map[*forward]struct{}

	// redisDown says that Redis did not answer the last time. Only Run uses it.
	redisDown bool
	// missingSince says since when gateways have no record that answer a forward. Only Run uses it.
	missingSince map[string]time.Time
}

var namePattern = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)

func isID(text string) bool { return len(text) <= 64 && namePattern.MatchString(text) }

// New returns Peers that have not connected yet, and makes their certificate. An error is about the
// configuration.
func New(cfg Config) (*Peers, error) {
	if err := cfg.complete(); err != nil {
		return nil, fmt.Errorf("peers: %w", err)
	}
	certificate, err := newCertificate(cfg.ID)
	if err != nil {
		return nil, fmt.Errorf("peers: making a certificate: %w", err)
	}
	p := &Peers{
		cfg: cfg, prefix: "{" + cfg.Deployment + "}:", certificate: certificate, sum: fingerprint(certificate.Leaf),
		wakeRun: make(chan struct{}, 1),
		claims:  map[string]*claim{}, records: map[string]record{}, forwards: map[*forward]struct{}{}, missingSince: map[string]time.Time{},
	}
	p.transport = p.newTransport()
	return p, nil
}

// complete sets the defaults and checks the configuration.
func (c *Config) complete() error {
	c.Deployment = cmp.Or(c.Deployment, defaultDeployment)
	if c.ID == "" {
		c.ID = rand.Text()
	}
	if c.Expiry <= 0 {
		c.Expiry = defaultExpiry
	}
	if c.Timeout <= 0 {
		c.Timeout = defaultTimeout
	}
	if c.SlowTimeout <= 0 {
		c.SlowTimeout = slowFactor * c.Timeout
	}
	c.Log = cmp.Or(c.Log, zap.NewNop())
	switch {
	case c.Redis == nil:
		return errors.New("there must be a Redis")
	case !namePattern.MatchString(c.Deployment) || !isID(c.ID):
		return errors.New("a deployment and a gateway are named by letters, digits, '.', '_' and '-', a gateway by 64 at most")
	}
	return checkDialable(c.Listen)
}

// checkDialable returns an error if the address stands for all addresses of a host.
func checkDialable(address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%q is no host:port", address)
	}
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		return fmt.Errorf("%q is all addresses of this host: the one at which other gateways reach it must be said", address)
	}
	return nil
}

// ID returns the name of this gateway among the others.
func (p *Peers) ID() string { return p.cfg.ID }

// Run keeps the record and the claims of this gateway alive until ctx ends. Then it removes the
// record, which frees all claims. Run is called once and returns nil.
func (p *Peers) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	defer p.removeRecord()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.wakeRun:
		case <-timer.C:
		}
		timer.Reset(p.refresh(ctx))
	}
}

// refresh renews the record and the claims, and checks the owners of forwards. It returns when it
// is due again.
func (p *Peers) refresh(ctx context.Context) time.Duration {
	every := p.cfg.Expiry / renewalsPerExpiry
	err := p.writeRecord(ctx)
	if err == nil {
		err = p.renew(ctx)
	}
	if err == nil {
		err = p.cancelLostForwards(ctx)
	}
	if ctx.Err() != nil {
		return every
	}
	switch {
	case err != nil && !p.redisDown:
		p.cfg.Log.Warn("Redis did not answer, request ids hold at this gateway only", zap.Error(err))
	case err == nil && p.redisDown:
		p.cfg.Log.Info("Redis answered again, request ids hold for all gateways")
	}
	p.redisDown = err != nil
	if p.redisDown {
		return every / renewalsPerExpiry
	}
	return every
}

// setAddress sets the address in this gateway's record.
func (p *Peers) setAddress(address string) {
	p.mu.Lock()
	p.address = address
	p.mu.Unlock()
	select {
	case p.wakeRun <- struct{}{}:
	default:
	}
}

// ownAddress returns the address in this gateway's record. Empty: there is no record.
func (p *Peers) ownAddress() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.address
}

// removeRecord removes this gateway's record.
func (p *Peers) removeRecord() {
	p.mu.Lock()
	p.address = ""
	p.mu.Unlock()
	p.transport.CloseIdleConnections()
	_, err := p.runSlow(context.Background(), removeRecordScript, []string{p.recordKey(p.cfg.ID)}, p.sum)
	if err != nil {
		p.cfg.Log.Info("record of this gateway not removed from Redis, it will expire", zap.Error(err))
	}
}

// Package peers lets several gateways that share one Redis act as one towards a client that comes back. A client's request id belongs
// to the gateway that runs it; a repeated start, a resume or a cancel that reaches another gateway is passed on to the owner, and the
// owner's answer goes back event by event.
//
// # Who owns what
//
// A claim is a key in Redis that names the owner; the first gateway that asks gets it. Besides, each gateway has a record there: where
// it listens for the others, and the SHA-256 of its certificate. The record expires unless Run renews it. A claim whose owner has no
// record is free: whatever the owner ran has died with it. Keys hold hashes of request ids, never the ids, which may be long or secret.
//
// Requests without an id never come here. With one, a start costs one round trip to Redis, on the gateway that runs it.
//
// # Whom a gateway trusts
//
// Each gateway makes a key and a certificate when it starts, in memory. Gateways speak TLS 1.3 with each other, both show their
// certificate, and each accepts exactly those whose hash stands in the record of a live gateway of this deployment: who dials,
// only the one that it means to reach. So there is no authority to hand round, and whoever may write to Redis is trusted as a gateway:
// give it a password and TLS where others can reach it. What a record says is believed until it would have expired, so a gateway
// whose record somebody deletes is trusted for up to Config.Expiry more. Names and dates in certificates are not looked at.
//
// A gateway that has a request passed on to it believes its headers: tenant and priority were settled where the client came in.
// It never passes such a request on again, so there are no loops.
//
// # When Redis is slow or away
//
// A claim is answered within Config.Timeout, with an error that wraps ErrLocal: the request goes on, and the id holds at this gateway
// only. Such a claim is told as soon as Redis answers, if it is kept and nobody else has the id by then. A gateway that cannot reach
// Redis for Config.Expiry, while others can, loses its claims to those who ask for them: to answer goes before to answer once. The
// same happens when a claim is free by mistake for a moment, because Redis has lost its data.
package peers

import (
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

// Config is what Peers are made of.
type Config struct {
	// Redis is where the gateways meet. Its owner closes it, after Run has returned.
	Redis redis.Scripter
	// Deployment keeps several in one Redis apart: letters, digits, '.', '_', '-'. Empty means "sluice". It is the hash tag of all keys.
	Deployment string
	// ID names this process among all gateways, and no process before it: at most 64 of the same characters. Empty means random.
	ID string
	// Listen is host:port, where Serve listens when it is given no listener. Advertise follows from it.
	Listen string
	// Advertise is host:port, at which other gateways reach this one. Empty means the address that Serve listens on, which must then be one
	// address and not all of the host.
	Advertise string
	// Expiry is how long a gateway counts as living after its last word, which comes three times in this time. 0 or less means 15 s.
	Expiry time.Duration
	// Timeout is how long a request waits for Redis at most. 0 or less means 50 ms. What no new request waits for has twenty times as long.
	Timeout time.Duration
	// Log gets what an operator should know. nil means none.
	Log *zap.Logger
}

const (
	defaultDeployment = "sluice"
	defaultExpiry     = 15 * time.Second
	defaultTimeout    = 50 * time.Millisecond
	// beats is how often a record is renewed while it holds.
	beats = 3
	// patience is the timeout of what no new request waits for, in timeouts.
	patience = 20
)

// ErrLocal is wrapped by the errors of Claim: the id holds at this gateway only.
var ErrLocal = errors.New("the other gateways do not know of it")

// errGone: Redis has no record of the gateway.
var errGone = errors.New("there is no such gateway, or not any more")

// Peers are the gateways of a deployment as one of them sees them. It is safe for concurrent use.
type Peers struct {
	cfg Config
	// prefix begins every key.
	prefix      string
	certificate tls.Certificate
	// sum is the hash of certificate, as it stands in the record.
	sum       string
	transport *http.Transport
	// wake has room for one, so that telling Run never blocks.
	wake chan struct{}

	mu sync.Mutex
	// All below is guarded by mu.

	// address is what the record says; empty before Serve has begun and after Run has ended: then there is none.
	address string
	// claims of this gateway, by their keys.
	claims map[string]*claim
	// records of others, as long as what they say holds.
	records map[string]record
	// forwards are the answers of others that are on their way through this gateway.
	forwards map[*forward]struct{}

	// Below belongs to Run alone.

	// lost: Redis did not answer the last time.
	lost bool
	// missing are gateways that answer somebody here and had no record when looked for, and since when.
	missing map[string]time.Time
}

var names = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)

func isID(text string) bool { return len(text) <= 64 && names.MatchString(text) }

// New returns Peers that have not connected yet. It makes the certificate. The error is of the configuration.
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
		wake:   make(chan struct{}, 1),
		claims: map[string]*claim{}, records: map[string]record{}, forwards: map[*forward]struct{}{}, missing: map[string]time.Time{},
	}
	p.transport = p.newTransport()
	return p, nil
}

// complete sets the defaults and checks the rest.
func (c *Config) complete() error {
	if c.Deployment == "" {
		c.Deployment = defaultDeployment
	}
	if c.ID == "" {
		c.ID = rand.Text()
	}
	if c.Expiry <= 0 {
		c.Expiry = defaultExpiry
	}
	if c.Timeout <= 0 {
		c.Timeout = defaultTimeout
	}
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	switch {
	case c.Redis == nil:
		return errors.New("there must be a Redis")
	case !names.MatchString(c.Deployment) || !isID(c.ID):
		return errors.New("a deployment and a gateway are named by letters, digits, '.', '_' and '-', a gateway by 64 at most")
	case c.Advertise != "":
		return reachable(c.Advertise)
	case c.Listen != "":
		return dialable(c.Listen)
	}
	return nil
}

// reachable refuses an address that nobody else can dial.
func reachable(address string) error {
	if _, port, err := net.SplitHostPort(address); err != nil || port == "" || port == "0" {
		return fmt.Errorf("%q is no host:port that other gateways could dial", address)
	}
	return dialable(address)
}

// dialable refuses an address that stands for all of a host.
func dialable(address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%q is no host:port", address)
	}
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		return fmt.Errorf("%q is all addresses of this host: the one at which other gateways reach it must be said", address)
	}
	return nil
}

// ID is this gateway's name among the others.
func (p *Peers) ID() string { return p.cfg.ID }

// Run keeps this gateway's record and its claims alive until ctx ends, and takes the record away then: all claims are free from there on. It
// is called once; it returns nil.
func (p *Peers) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	defer p.leave()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.wake:
		case <-timer.C:
		}
		timer.Reset(p.beat(ctx))
	}
}

// beat tells Redis all that is due, and returns when it is due again.
func (p *Peers) beat(ctx context.Context) time.Duration {
	every := p.cfg.Expiry / beats
	err := p.announce(ctx)
	if err == nil {
		err = p.renew(ctx)
	}
	if err == nil {
		err = p.watch(ctx)
	}
	if ctx.Err() != nil {
		return every
	}
	switch {
	case err != nil && !p.lost:
		p.cfg.Log.Warn("redis does not answer: request ids hold at this gateway only", zap.Error(err))
	case err == nil && p.lost:
		p.cfg.Log.Info("redis answers: request ids hold over all gateways")
	}
	p.lost = err != nil
	if p.lost {
		return every / beats
	}
	return every
}

// setAddress has the record say where this gateway is reached.
func (p *Peers) setAddress(address string) {
	p.mu.Lock()
	p.address = address
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// own is the address that this gateway's record says; empty when it has none.
func (p *Peers) own() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.address
}

// leave takes the record away.
func (p *Peers) leave() {
	p.mu.Lock()
	p.address = ""
	p.mu.Unlock()
	p.transport.CloseIdleConnections()
	_, err := p.call(context.Background(), leaveScript, []string{p.recordKey(p.cfg.ID)}, p.sum)
	if err != nil {
		p.cfg.Log.Info("this gateway's record stays in redis until it expires", zap.Error(err))
	}
}

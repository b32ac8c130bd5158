// Package redis keeps what several gateways share in Redis: how much of every limit is in use, the tasks, and the limits that an
// operator has set. A [Store] is an [admission.Shared] and a backend of package limits.
//
// # How it works
//
// Callers never wait for Redis. Claims, ended leases and the like pile up in memory, and one goroutine (Run) takes them to
// Redis in turns: one script, one round trip, everything that came meanwhile. The script reads all it needs, decides the claims in their order
// and writes. Redis' clock is the only one that counts there. Every key has the deployment as its hash tag, so that all of them lie in one slot
// of a cluster: Redis Cluster gives availability, not more throughput.
//
// A lease is a member of sorted sets (of its model, tenant and replica) with the time when it expires; what is in use is the number of
// members. Run renews the leases of this process. A lease that the store has lost is put back by its next renewal.
//
// # When Redis fails
//
// A call that fails or takes too long makes the store unavailable at once: every claim is answered so without asking, until Run has
// put things right. Then the batch of changes that got no answer is sent again, which counts it once; claims that were asked
// and got no answer are undone; all live leases are told, those taken meanwhile with what they cost in the last minute (what was taken before
// has been refilled since). All gateways that were without the store share again at one agreed moment, so that none is granted what another has
// admitted alone. A script that Redis runs too late, because it was paused, finds that its time is over and does nothing.
//
// Buckets are as in process, but for one thing: a limit that is taken away and set again finds its bucket as it was, not full.
//
// When Redis comes back empty, the first gateway to find that begins a new epoch. Nothing is granted during its first two seconds, in which all
// gateways tell their leases and how full the buckets were when they last saw them.
//
// # Keys
//
// With the default deployment: {sluice}:model:<m> and {sluice}:tenant:<t>, the limits in force; {sluice}:file_model:<m> and so on, what the file said;
// {sluice}:limits and {sluice}:limits_version; {sluice}:runtime:<m> with tokens, in_flight and deficit (the tokens that were served in all; by tenant in
// {sluice}:served:<m>); {sluice}:tenant_runtime:<t>; the sorted sets {sluice}:leases:<m>,
// tenant_leases:<t>, prefill:<t>, replica:<r>; {sluice}:task:<id> and task_key; {sluice}:gateways, {sluice}:epoch. Nothing stands behind a name, so
// no two names can mean one key.
package redis

import (
	"context"
	"crypto/rand"
	"errors"
	"regexp"
	"sync"
	"time"

	client "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/admission"
)

// Config is what a Store is made of.
type Config struct {
	// URL is redis://[user:password@]host:port[/db], rediss:// with TLS. Several hosts, host:port,host:port, are nodes of one
	// Redis Cluster. It is never logged.
	URL string
	// Deployment keeps several in one Redis apart: letters, digits, '.', '_', '-'. Empty means "sluice".
	Deployment string
	// Gateway names this process among all gateways, and no process before it. Empty means random.
	Gateway string
	// Lease is how long leases outlive this process, unless someone keeps them. They are renewed five times in this time.
	// 0 or less means 75 s.
	Lease time.Duration
	// Timeout is how long callers wait for one round trip to Redis. 0 or less means 50 ms.
	Timeout time.Duration
	// Refresh loads the limits again, applies them to this process, and returns their version. It is called when the store has
	// limits of another version than it last returned. nil: limits are not kept in this store.
	Refresh func(context.Context) (version string, err error)
	// Log gets a line when Redis is lost and when it is back. nil means none.
	Log *zap.Logger
}

// Status is for an operator.
type Status struct {
	// Up: Redis answers, and limits hold over all gateways.
	Up bool
	// Mode is "shared", or "alone" as long as this gateway goes on without the others.
	Mode string
	// Since is when the mode began.
	Since time.Time
	// Gateways that live, as last known, this one included.
	Gateways int
	// Errors counts failed calls of all time.
	Errors int64
	// LastError is of the last failed call, and stays when Redis is back.
	LastError string
}

const (
	defaultDeployment = "sluice"
	defaultLease      = 75 * time.Second
	defaultTimeout    = 50 * time.Millisecond
	// patience is the timeout of what no caller waits for, in timeouts of callers: connecting may take several round trips.
	backgroundTimeouts = 20
	// probeEvery is the pause between attempts while Redis does not answer.
	probeEvery = 250 * time.Millisecond
	// beatEvery is how often a gateway says that it lives, and aliveFor how long its word holds.
	heartbeatEvery = time.Second
	aliveFor       = 3 * time.Second
	// batchLimit bounds the changes, and the claims, of one turn.
	batchLimit = 256
	// queueLimit bounds the changes that wait for Redis. The oldest are dropped: their leases expire by themselves.
	queueLimit = 1 << 16
)

// Store is shared capacity in Redis. It is safe for concurrent use. As long as Run does not run, claims are Unavailable.
type Store struct {
	cfg    Config
	prefix string
	redis  client.UniversalClient
	// started is what monotonic times count from.
	started time.Time
	// wake has room for one, so that telling Run never blocks.
	wake chan struct{}

	mu sync.Mutex
	// All below is guarded by mu.

	subscriber admission.Subscriber
	shared     bool
	// quiet: not shared yet, but about to be; claims wait.
	resuming bool
	status   Status
	// version of the limits that this process uses.
	version string
	// epoch that is known; "" before the first.
	epoch string
	// offset is what Redis' clock is ahead of our monotonic one, in microseconds.
	offset int64
	// notAfter is when the last turn, as long as it has no answer, has surely run or never will, by Redis' clock.
	notAfter int64

	calls []*call
	// changes wait to be told, in order.
	changes []change
	// live are the leases of this process but for tasks, tasks those that it knows of.
	live, tasks map[string]*heldLease
	// untold are the leases of both that are to be told.
	unreported map[string]*heldLease
	// lost are claims that were asked and not answered.
	unanswered map[string]admission.Claim
	// levels are the buckets as last seen.
	levels map[bucketName]level
	// ours is what was granted here, by model and tenant, for as long as both have claims.
	served map[string]map[string]*servedTokens

	// Below belongs to Run alone.

	batch    batch
	batchSeq int64
	// returning: the store was shared before. returnAt is when to share again, by Redis' clock; 0 as long as that is not agreed.
	wasShared bool
	resumeAt  int64
	// nextBeat and nextRenewal are due.
	nextHeartbeat, nextRenewal time.Time
}

var deployments = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)

// New returns a Store that has not connected yet. The error is of the configuration and names no secret.
func New(cfg Config) (*Store, error) {
	if cfg.Deployment == "" {
		cfg.Deployment = defaultDeployment
	}
	if !deployments.MatchString(cfg.Deployment) {
		return nil, errors.New("redis: the deployment may have letters, digits, '.', '_' and '-' only")
	}
	if cfg.Gateway == "" {
		cfg.Gateway = rand.Text()
	}
	if cfg.Lease <= 0 {
		cfg.Lease = defaultLease
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = defaultTimeout
	}
	if cfg.Log == nil {
		cfg.Log = zap.NewNop()
	}
	options, err := parseURL(cfg.URL)
	if err != nil {
		return nil, err
	}
	setTimeouts(options, cfg.Timeout)
	// What the library would print to stderr comes back as an error too.
	client.SetLogger(&logging.VoidLogger{})
	return &Store{
		cfg:        cfg,
		prefix:     "{" + cfg.Deployment + "}:",
		redis:      client.NewUniversalClient(options),
		started:    time.Now(),
		wake:       make(chan struct{}, 1),
		status:     Status{Mode: "alone", Since: time.Now(), Gateways: 1},
		live:       map[string]*heldLease{},
		tasks:      map[string]*heldLease{},
		unreported: map[string]*heldLease{},
		unanswered: map[string]admission.Claim{},
		levels:     map[bucketName]level{},
		served:     map[string]map[string]*servedTokens{},
	}, nil
}

// Attach implements admission.Shared.
func (s *Store) Subscribe(l admission.Subscriber) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subscriber = l
}

// Gateways implements admission.Shared.
func (s *Store) Gateways() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status.Gateways
}

// Status says how the store is.
func (s *Store) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// setSharedLocked changes the mode.
func (s *Store) setSharedLocked(shared bool) {
	s.shared, s.resuming = shared, false
	s.status.Up, s.status.Mode, s.status.Since = shared, "alone", time.Now()
	if shared {
		s.status.Mode = "shared"
	}
}

// failed notes an error of Redis and makes the store unavailable.
func (s *Store) markUnavailable(err error) {
	s.mu.Lock()
	was := s.shared
	if was {
		s.setSharedLocked(false)
	}
	s.resuming = false
	first := s.status.Errors == 0
	s.status.Errors++
	s.status.LastError = err.Error()
	calls := s.calls
	s.calls = nil
	s.mu.Unlock()
	if was || first {
		s.cfg.Log.Warn("redis does not answer: going on with this gateway's share of the limits", zap.Error(err))
	}
	for _, c := range calls {
		c.finish(admission.Unavailable)
	}
	s.wakeRun()
}

// signal makes Run look.
func (s *Store) wakeRun() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

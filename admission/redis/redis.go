// Package redis keeps in Redis what several gateways share: the use of every limit, tasks, and the
// limits that an operator has changed. The gateway uses a [Store] as its [admission.Shared] and as
// the backend of package limits.
//
// # How it works
//
// Callers never wait for Redis. Claims and changes (released leases and the like) pile up in
// memory. One goroutine, [Store.Run], sends them in syncs: one script and one round trip for
// everything that came since the last sync. The script reads all it needs, decides the claims in
// their order, and writes. Only Redis' clock counts there. Every key has the deployment as its hash
// tag, so all keys lie in one slot of a cluster: Redis Cluster gives availability, not more
// throughput.
//
// A lease is a member of sorted sets (of its model, tenant and replica), with its expiry as the
// score. The use of a limit is the number of members. Run renews the leases of this process. If the
// store has lost a lease, the next renewal adds it again.
//
// # When Redis fails
//
// A call that fails or takes too long makes the store unavailable at once. Every claim is then
// answered with Unavailable, without asking Redis, until Run has joined again. It goes on joining
// only when Redis answers within Config.Timeout. Joining takes four steps. Run sends again the
// batch of changes that got no answer, which counts it once. It undoes claims that were sent and
// got no answer. It reports all live leases; leases that were granted meanwhile carry what they
// cost in the last minute, because buckets have refilled what is older. Then all gateways that were
// without the store share again at one agreed moment, so that none is granted what another has
// admitted alone. They wait for the gateways that each knew, but for 3 s at most. A script that
// runs too late, because Redis was paused, does nothing.
//
// Buckets behave as in process, except that a limit that is removed and set again finds its bucket
// as it was, not full.
//
// When Redis comes back empty or from an older snapshot, the first gateway that notices begins a
// new epoch. Nothing is granted during its first two seconds. In this time all gateways report
// their leases, the latest leases that have ended, and how full the buckets were when they last saw
// them. A task that ended after the snapshot, and longer ago than a lease lasts, counts until its
// own lease ends.
//
// When Redis' clock jumps ahead, leases end there too early. A gateway that notices it joins again.
//
// # Keys
//
// Every key begins with the deployment in braces and a colon, "{sluice}:" by default. After that:
//
//	model:<m>, tenant:<t>             hash: the limits in force
//	file_model:<m>, file_tenant:<t>   hash: the limits of the file
//	limits, limits_version            set of the keys of all records; their version
//	runtime:<m>                       hash: token bucket, in_flight, deficit (tokens served)
//	served:<m>                        hash: tokens served, by tenant; begins anew when it is large
//	tenant_runtime:<t>                hash: token bucket, request bucket; expires after a week
//	leases:<m>, tenant_leases:<t>     sorted set: lease ids by expiry in ms
//	prefill:<t>, replica:<r>          sorted set: lease ids by expiry in ms
//	task:<id>, task_key:<length>:<t>  hash of a task; id of a task by its tenant and key
//	task_requests:<id>                sorted set: leases of a task's requests by expiry in ms
//	ended:<id>                        tenant (may be '') of an ended task that must not come back
//	account:<id>                      hash: what the requests of an ended task have used
//	waiting, waiting:<m>              a gateway waits for capacity, of this model
//	waiting_tenant:<t>                set: models at which the tenant waits
//	seq:<gateway>                     number of the last batch of changes
//	gateways                          sorted set: live gateways by expiry in ms
//	epoch, return                     the epoch; the agreed moment after an outage
//	events                            channel
//
// A set of leases lives for a week after its last write, and as long as its last lease. It expires
// up to a day later.
//
// Nothing but a task's own key follows a name, and the name's length is before it, so no two names
// make the same key.
package redis

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"regexp"
	"sync"
	"time"

	client "github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/admission"
)

// Config is what New needs.
type Config struct {
	// Server is where the state is.
	Server
	// Deployment separates deployments in one Redis. It consists of letters, digits, '.', '_' and
	// '-'. "" means "sluice".
	Deployment string
	// Gateway names this process. No other gateway, and no earlier process, may have the name. ""
	// means a random one.
	Gateway string
	// Lease is how long leases outlive this process. Run renews them five times in this time. 0 or
	// less means 75 s.
	Lease time.Duration
	// Timeout is how long callers wait for one round trip to Redis. 0 or less means 50 ms.
	Timeout time.Duration
	// Refresh loads the limits, applies them to this process, and returns their version. It is
	// called when the store has limits of another version than Refresh last returned. nil means
	// that limits are not kept in this store.
	Refresh func(context.Context) (version string, err error)
	// Log gets a line when Redis is lost and when it is back. nil means no log.
	Log *zap.Logger
}

// Status is the state of a Store, for an operator.
type Status struct {
	// Up says that Redis answers, and that limits hold over all gateways.
	Up bool
	// Mode is "shared", or "alone" while this gateway decides without the others.
	Mode string
	// Since is when the mode began.
	Since time.Time
	// Gateways is the last known number of live gateways, this one included.
	Gateways int
	// Errors counts failed calls since the start.
	Errors int64
	// LastError is the error of the last failed call. It stays when Redis is back.
	LastError string
}

const (
	defaultDeployment = "sluice"
	defaultLease      = 75 * time.Second
	defaultTimeout    = 50 * time.Millisecond
	// probeEvery is the pause between attempts while Redis does not answer.
	probeEvery = 250 * time.Millisecond
	// heartbeatEvery is the interval of heartbeats. A gateway counts as live for aliveFor after its
	// last one.
	heartbeatEvery = time.Second
	aliveFor       = 3 * time.Second
	// batchLimit bounds the changes of one sync, and its claims.
	batchLimit = 256
	// queueLimit bounds the changes that wait for Redis. The oldest are dropped; their leases
	// expire by themselves.
	queueLimit = 1 << 16
	// endedLimit bounds Store.ended.
	endedLimit = 1 << 13
)

// Store is the state in Redis that gateways share. It is safe for concurrent use. While Run does
// not run, every claim is answered with Unavailable.
type Store struct {
	cfg    Config
	prefix string
	redis  client.UniversalClient
	// started is the zero of monotonic times.
	started time.Time
	// wake holds one signal, so that wakeRun never blocks.
	wake chan struct{}

	mu sync.Mutex
	// mu guards everything down to served. No method of the Subscriber is called with mu held.

	subscriber admission.Subscriber
	shared     bool
	// resuming says that the store is about to be shared. Claims wait meanwhile.
	resuming bool
	status   Status
	// returnedAt is when the store was shared again after the last outage; zero before the first.
	returnedAt time.Time
	// version is that of the limits that this process uses.
	version string
	// epoch is the known epoch; "" before the first.
	epoch string
	// writes is how many writes the store had counted in the epoch at the last one of this process.
	writes int64
	// offset is Redis' clock minus our monotonic clock, in microseconds.
	offset int64
	// notAfter is the time, by Redis' clock, after which the last sync has run or never will. 0
	// means that it has its answer.
	notAfter int64

	calls []*call
	// changes wait to be reported, in order.
	changes []change
	// live are the leases of this process that are no tasks. tasks are the tasks that it knows of.
	live, tasks map[string]*heldLease
	// unreported are the leases of both to report with the next sync.
	unreported map[string]*heldLease
	// unanswered are claims that were sent and got no answer.
	unanswered map[string]admission.Claim
	// doubted are the tasks that this process may have ended without an answer, and since when.
	doubted map[ownedTask]time.Time
	// ended are the leases that have ended while they could still be in an older snapshot of the
	// store, the oldest first.
	ended []endedLease
	// levels are the levels of buckets as last seen.
	levels map[bucketName]level
	// served is what this process was granted, by model and tenant, while both have claims.
	served map[string]map[string]*servedTokens

	// Only Run uses the fields below.

	batch    batch
	batchSeq int64
	// wasShared says that the store was shared before an outage. resumeAt is when to share again,
	// by Redis' clock; 0 until that is agreed.
	wasShared bool
	resumeAt  int64
	// nextHeartbeat and nextRenewal are when they are due.
	nextHeartbeat, nextRenewal time.Time
}

var deployments = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)

// New returns a Store. It does not connect. The error is about the configuration and contains no
// secret.
func New(cfg Config) (*Store, error) {
	cfg.Deployment = cmp.Or(cfg.Deployment, defaultDeployment)
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
	cfg.Log = cmp.Or(cfg.Log, zap.NewNop())
	options, err := cfg.options()
	if err != nil {
		return nil, err
	}
	setTimeouts(options, cfg.Timeout)
	return &Store{
		cfg:        cfg,
		prefix:     "{" + cfg.Deployment + "}:",
		redis:      connect(options),
		started:    time.Now(),
		wake:       make(chan struct{}, 1),
		status:     Status{Mode: "alone", Since: time.Now(), Gateways: 1},
		live:       map[string]*heldLease{},
		tasks:      map[string]*heldLease{},
		unreported: map[string]*heldLease{},
		unanswered: map[string]admission.Claim{},
		doubted:    map[ownedTask]time.Time{},
		levels:     map[bucketName]level{},
		served:     map[string]map[string]*servedTokens{},
	}, nil
}

// Subscribe implements admission.Shared.
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

// Status returns the state of the store.
func (s *Store) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

func (s *Store) setSharedLocked(shared bool) {
	s.shared, s.resuming = shared, false
	s.status.Up, s.status.Mode, s.status.Since = shared, "alone", time.Now()
	if shared {
		s.status.Mode = "shared"
	}
}

// markUnavailable records an error of Redis, makes the store unavailable, and answers all calls.
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
		s.cfg.Log.Warn("Redis lost, limits divided by the number of gateways", zap.Error(err))
	}
	for _, c := range calls {
		c.finish(admission.Unavailable)
	}
	s.wakeRun()
}

// wakeRun makes Run look for work.
func (s *Store) wakeRun() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

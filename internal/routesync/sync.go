// Package routesync tells gateways on the same Redis what each of them has given to which replica.
// internal/gateway runs it when the configuration names a Redis.
//
// A gateway tells the others two things:
//
//   - its placements: which replica was given which prompt, and so has it in its cache. They travel
//     in batches, at most every 250 ms. Which replica has a stored response is told at once, at
//     most every 5 ms, because the request that continues the response may come to another gateway.
//   - its waiting tokens: by replica, the uncached tokens of its requests that have no first token
//     yet. It tells the changes at most every 25 ms, and all of them each second.
//
// Both are hints. A message that is lost makes a choice worse, and nothing else.
//
// # Who does what
//
// The path of a request only adds its placement to the outbox, a ring of fixed size. One goroutine
// sends, another receives. When Redis is slow or away, the outbox drops its oldest placements.
//
// A gateway of which nothing was heard for 3 s counts as gone, and its waiting tokens are
// forgotten. When a gateway is heard for the first time, or again, the others tell it the latest
// placements that their outboxes still have. A gateway that hears of no other sends only its
// waiting tokens, each second.
//
// # The messages
//
// All gateways publish on one channel of Redis, "{sluice}:routing:" and the number of the database.
// A process has a random name of its own, so two processes of one gateway are two senders. wire.go
// has the encoding. A message of another version, or one that cannot be read, is ignored and
// counted. A client of Redis that may publish is trusted as a gateway.
package routesync

import (
	"cmp"
	"context"
	"crypto/rand"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-gateway/sluice/internal/dispatch"
)

const (
	// heartbeatInterval is how often all waiting tokens are told.
	heartbeatInterval = time.Second
	// waitingInterval is the least time between two messages of changed waiting tokens.
	waitingInterval = 25 * time.Millisecond
	// placementsInterval is the least time between two batches of placements.
	placementsInterval = 250 * time.Millisecond
	// responsesInterval is that time if one of the placements is of a stored response. Only the
	// replica that has the response can serve the next request.
	responsesInterval = 5 * time.Millisecond
	// silence is how long nothing is heard of a gateway until it counts as gone. A subscription is
	// made anew when nothing was received on it for as long, because a process hears itself, too.
	silence = 3 * time.Second
	// placementAge is how old a placement may be that a new gateway is told.
	placementAge = time.Minute
	// publishTimeout bounds one call of Redis.
	publishTimeout = time.Second
	// retryInterval is the pause before the subscription is made anew.
	retryInterval = 250 * time.Millisecond
	// maxGateways bounds the senders that are kept.
	maxGateways = 1024
)

// Router is the dispatcher that chooses by what the gateways tell each other. Its methods may be
// called from any goroutine, and must not call the Sync.
type Router interface {
	// Place records a placement of another gateway. The chain is only valid during the call.
	Place(dispatch.Placement)
	// WaitingTokens returns the waiting tokens of this gateway by replica.
	WaitingTokens() map[string]int64
	// SetRemoteWaiting sets those of another gateway. nil forgets the gateway.
	SetRemoteWaiting(gateway string, tokens map[string]int64)
}

// Config is what New needs.
type Config struct {
	// Redis is where the gateways meet. Its owner closes it after Run has returned.
	Redis redis.UniversalClient
	// Deployment separates deployments in one Redis. "" means "sluice".
	Deployment string
	// Gateway names this process. No other process may have the name. "" means a random one.
	Gateway string
	// Router is told what other gateways do, and asked what this one does.
	Router Router
	// Log gets a line when a gateway is heard and when it is gone. nil means no log.
	Log *zap.Logger
}

// Stats counts since the start.
type Stats struct {
	// Sent and Failed are messages of this gateway that Redis has taken, and those that it has not.
	Sent, Failed uint64
	// SentBytes is the size of the messages sent, without names of commands and channels.
	SentBytes uint64
	// Received are messages of others. Ignored are those of another version, and unreadable ones.
	Received, Ignored uint64
	// Told and Heard are placements sent and received. Dropped are those that were not sent,
	// because Redis was too slow or there were too many.
	Told, Heard, Dropped uint64
}

// counters are the counters of Stats.
type counters struct {
	sent, failed, sentBytes, received, ignored, told, heard atomic.Uint64
}

// Sync tells the other gateways what this one does, and applies what it hears. Any goroutine may
// call its methods.
type Sync struct {
	cfg     Config
	channel string
	outbox  outbox
	others  audience
	counters
	// subscribed says that this process hears the others. It sends nothing before.
	subscribed atomic.Bool
	// wake tells the sender of a placement, hurry of a placement of a stored response, hello of a
	// new subscription. All have room for one element, so that a send never blocks.
	wake, hurry, hello chan struct{}
}

// New returns a Sync. It does not connect.
func New(cfg Config) *Sync {
	cfg.Deployment = cmp.Or(cfg.Deployment, "sluice")
	if cfg.Gateway == "" {
		cfg.Gateway = rand.Text()
	}
	cfg.Log = cmp.Or(cfg.Log, zap.NewNop())
	s := &Sync{cfg: cfg, wake: make(chan struct{}, 1), hurry: make(chan struct{}, 1), hello: make(chan struct{}, 1)}
	s.channel = "{" + cfg.Deployment + "}:routing:" + strconv.Itoa(database(cfg.Redis))
	s.others.gateways = map[string]*remoteGateway{}
	return s
}

// database returns the number of the database that the client uses. Channels, unlike keys, are the
// same in all databases, so the number is part of the channel's name.
func database(c redis.UniversalClient) int {
	if single, ok := c.(*redis.Client); ok {
		return single.Options().DB
	}
	return 0 // a cluster has no other
}

// Run sends and receives until ctx ends. Its error is nil.
func (s *Sync) Run(ctx context.Context) error {
	var both errgroup.Group
	both.Go(func() error { s.receive(ctx); return nil })
	both.Go(func() error { s.send(ctx); return nil })
	err := both.Wait()
	s.forgetAll()
	return err
}

// Placed tells the others of a placement, later. It does not block, and copies the chain.
func (s *Sync) Placed(p dispatch.Placement) {
	s.outbox.add(p, time.Now())
	signal(s.wake)
	if p.Owner != 0 {
		signal(s.hurry)
	}
}

// Stats returns the counters.
func (s *Sync) Stats() Stats {
	return Stats{
		Sent: s.sent.Load(), Failed: s.failed.Load(), SentBytes: s.sentBytes.Load(),
		Received: s.received.Load(), Ignored: s.ignored.Load(), Told: s.told.Load(), Heard: s.heard.Load(),
		Dropped: s.outbox.droppedCount(),
	}
}

// signal sends to a channel with room for one element. It does not block.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

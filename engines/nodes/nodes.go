// Package nodes decides which replica runs on which host: this one, and those that have joined.
//
// One goroutine, Run's loop, compares what is wanted with what exists and tells each host which replicas there shall be on it; the launcher
// on the host makes that true. What exists is what the fleet shows. Beside that the loop keeps what it has assigned: the seats. A seat
// whose replica the fleet does not show yet is counted as if it was there. After a restart the seats are made of the fleet, so replicas
// that run on go on where they are.
//
// A host hears only of models of which it is to have replicas, and of a change of a model when its turn comes (rollout.go).
//
// A plan is pure (plan.go): the same world and the same memory of the plan before make the same plan. What fits nowhere is told to the fleet
// as pending, with the reason, and holds up nobody behind it.
package nodes

import (
	"context"
	"maps"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/local"
)

const (
	// source is the controller's name in the fleet.
	source = "nodes"
	// lookAgain is how often everything is looked at without a cause.
	lookAgain = 10 * time.Second
	// lookSoon is how often this host is asked what it has, until it says.
	lookSoon = 100 * time.Millisecond
	// Settle is how long after a start, at most, hosts that are known from before, and have not said yet what runs there, hold up those who
	// need a host; and how long nobody loses one for being too many when there were such hosts. Whoever keeps the numbers learns them meanwhile.
	Settle = 10 * time.Second
	// restAtMost bounds the pause after a plan. The pause is four times as long as the plan took: a large fleet in which much changes at
	// once takes a fifth of a processor.
	restAtMost = 200 * time.Millisecond
)

// Host is where replicas can be run: this host, or one that has joined. Its methods are quick. Values are told apart by ==, so they are
// pointers.
type Host interface {
	// Node tells what it has; false before that is known. What an earlier run of the gateway left there is in the fleet by then: what is
	// not leaves as soon as the host is told what to run.
	Node() (engines.Node, bool)
	// Set says which replicas (Model.Indices) there shall be on it, all of them. It does not block.
	Set(models []local.Model)
}

// Config says what the controller works with. Fleet is needed.
type Config struct {
	// Fleet is read for what exists. The controller reports to it, under the source "nodes", its models and the replicas that have no host.
	Fleet *engines.Fleet
	// Local is this host; nil: no replicas run here. Until its Node is known, only models without resources and without a label go there.
	// What an earlier run left there must be in the fleet before Run is called, and stays.
	Local Host
	// Others are the hosts that have joined, by name; nil: none. One that has the name of another before it, or of this host, is told
	// to run nothing. One that is lost, and was never seen otherwise, is told nothing until it is back. One that is there at the first plan
	// and whose Node is not known may have replicas of an earlier run: nobody gets a host until it has spoken or is lost; see Settle.
	Others func() []Host
	// InFlight tells how many requests a replica has; nil: that is not known, and counts as none.
	InFlight func(replica string) int
	// Idle lists models that nobody uses and that may lose a replica (are above their minimum), longest unused first; one that may lose
	// several is there as often. nil: none.
	Idle func() []string
	// Evict is told which models are to lose a replica now, each as often as it is to lose one. It is called without locks, from Run, and may
	// call Set. Whom it does not want to lose one keeps it, and for 30 s nobody is asked in its stead. nil: nobody is evicted.
	Evict func(models []string)
	// Log may be nil: silent.
	Log *zap.Logger
}

// Controller keeps the hosts' wishes. Make one with New; its methods may be called from different goroutines.
type Controller struct {
	config Config
	// wake tells the loop that the wanted models or the hosts have changed; it holds at most one token.
	wake chan struct{}

	mu sync.Mutex
	// wanted is the desired state, nil before the first Set; guarded by mu
	wanted *[]local.Model
	// reasons by model; guarded by mu
	reasons map[string]string

	// The loop's own:
	models models
	memory memory
	// vague: this host has not said yet what it has.
	vague bool
	// silent are the hosts that were known from before and have not said what they have; nil before the first plan.
	silent map[Host]bool
	// keepUntil is until when nobody loses its host for being too many.
	keepUntil time.Time
	// told is what the hosts have been told, by their names.
	told map[string]*told
	// turns are the hosts that were the last to be told of a change, by model.
	turns map[string]turn
	// shown is what the fleet showed at the last plan.
	shown []replica
	// pending is what the fleet was last told.
	pending map[string]engines.Replica
}

// New returns a controller that does nothing yet.
func New(c Config) *Controller {
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	if c.Others == nil {
		c.Others = func() []Host { return nil }
	}
	if c.InFlight == nil {
		c.InFlight = func(string) int { return 0 }
	}
	if c.Idle == nil {
		c.Idle = func() []string { return nil }
	}
	return &Controller{config: c, wake: make(chan struct{}, 1), told: map[string]*told{}, turns: map[string]turn{}}
}

// Set says which models there shall be, all of them, and how many replicas of each (Desired). Their Indices are ignored. Where hosts are
// short of room, models that come first go first. Hosts are told nothing before the first Set.
func (c *Controller) Set(models []local.Model) {
	c.mu.Lock()
	c.wanted = &models
	c.mu.Unlock()
	c.Kick()
}

// Kick tells that hosts have come or gone, or have something else to give.
func (c *Controller) Kick() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Pending tells why replicas have no host, by model.
func (c *Controller) Pending() map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.reasons)
}

// Run tells the hosts what to run until ctx ends, and then returns nil and leaves them as they are. It is called once.
func (c *Controller) Run(ctx context.Context) error {
	timer := time.NewTimer(lookAgain)
	defer timer.Stop()
	defer c.report(nil)
	for all := true; ; {
		_, changed := c.config.Fleet.Watch()
		began := time.Now()
		if c.step(began, all) {
			timer.Reset(c.lookIn())
		}
		if !rest(ctx, min(4*time.Since(began), restAtMost)) {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			all = false
		case <-c.wake:
			all = true
		case <-timer.C:
			all = true
		}
	}
}

// rest pauses, and tells false when ctx ended meanwhile.
func rest(ctx context.Context, pause time.Duration) bool {
	if pause <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

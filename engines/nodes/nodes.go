// Package nodes assigns replicas to nodes: to the gateway's own machine and to those that have
// joined. The gateway (internal/gateway) runs its Controller.
//
// One goroutine, Controller.Run, compares the desired models with the fleet and sets on each node
// which replicas it shall run. The launcher on the node starts and stops them. The controller
// remembers its assignments, because the fleet shows a new replica only some time later. After a
// restart of the gateway the controller assigns each replica that still runs to the node where it
// runs.
//
// A node gets only the models of which it runs replicas. When a model changes, the nodes get the
// change one after another (rollout.go).
//
// A plan (plan.go) is a pure function of an observation and of the state that the previous plan
// left. The controller reports a replica that fits on no node to the fleet as pending, with the
// reason. Such a replica does not delay the others.
package nodes

import (
	"cmp"
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
	// reconcileInterval is how often the controller reconciles without a cause.
	reconcileInterval = 10 * time.Second
	// evictionInterval is how often it reconciles while a replica waits for models to become idle.
	evictionInterval = 500 * time.Millisecond
	// unknownNodeInterval is how often it reconciles while the resources of a node are not known.
	unknownNodeInterval = 100 * time.Millisecond
	// RejoinTimeout is how long after a start the controller waits at most for nodes that had
	// joined before. Until such a node says what it runs, no replica is assigned. If there were
	// such nodes, no replica is stopped as surplus during this time, so that the scaler can learn
	// the numbers.
	RejoinTimeout = 10 * time.Second
	// maxPause limits the pause after a plan. The pause is four times as long as the plan took, so
	// that a large fleet with many changes uses a fifth of a CPU.
	maxPause = 200 * time.Millisecond
)

// Node is a machine on which replicas can run. Its methods do not block. Implementations are
// pointers, because nodes are compared with ==.
type Node interface {
	// Node returns the resources of the node; false before they are known. By then the fleet must
	// show the replicas that an earlier run of the gateway left on the node. A replica that the
	// fleet does not show is stopped by the first Set.
	Node() (engines.Node, bool)
	// Set says which replicas (Model.Indices) the node shall run. It replaces what the last Set
	// said.
	Set(models []local.Model)
}

// Config configures a Controller. Fleet is required.
type Config struct {
	// Fleet is what the controller observes. The controller reports the desired models and the
	// pending replicas to it, under the source "nodes".
	Fleet *engines.Fleet
	// Local is the gateway's own machine; nil means that no replicas run there. Until its resources
	// are known, it gets only models without resources and without a label. The replicas that an
	// earlier run left there must be in the fleet before Run is called.
	Local Node
	// Joined returns the nodes that have joined; nil means none. A node whose name another node
	// before it has, or Local, gets no replicas. A node that is lost and was never seen otherwise
	// gets nothing until it is back. For a node that is listed at the first plan and whose
	// resources are not known, see RejoinTimeout.
	Joined func() []Node
	// InFlight returns the number of requests at a replica; nil counts as 0 everywhere.
	InFlight func(replica string) int
	// Idle returns the names of models that nobody uses and that have more replicas than their
	// minimum, the longest unused first. A model is listed once for each replica that it may lose.
	// nil means none.
	Idle func() []string
	// Evict is called with the names of the models that shall lose a replica now, once for each
	// replica. The goroutine of Run calls it without locks; it may call Set. A model that is not
	// scaled down keeps its replica, and for 30 s no other is chosen in its place. nil turns
	// eviction off.
	Evict func(models []string)
	// Log may be nil.
	Log *zap.Logger
}

// Controller assigns replicas to nodes. Make one with New. Its methods may be called from any
// goroutine.
type Controller struct {
	config Config
	// wake tells Run that the desired models or the nodes have changed. It holds at most one token.
	wake chan struct{}

	mu sync.Mutex
	// wanted are the desired models, nil before the first Set; guarded by mu
	wanted *[]local.Model
	// reasons says by model why replicas are pending; guarded by mu
	reasons map[string]string

	// The fields below belong to the goroutine of Run.

	desired desiredModels
	state   planState
	// evicts means that by the last plan a replica is pending for which others may be evicted.
	evicts bool
	// localUnknown: the resources of Local are not known yet.
	localUnknown bool
	// silent are the nodes that had joined before and have not said yet what they run; nil before
	// the first plan.
	silent map[Node]bool
	// keepUntil is when surplus replicas may be stopped.
	keepUntil time.Time
	// applied is what was last set on each node, by its key.
	applied map[string]*appliedState
	// rollouts are the latest rollouts by model.
	rollouts map[string]rollout
	// shown is what the fleet showed at the last plan.
	shown []replica
	// pending is what was last reported to the fleet, by replica id.
	pending map[string]engines.Replica
}

// New returns a controller. It does nothing until Run is called.
func New(c Config) *Controller {
	c.Log = cmp.Or(c.Log, zap.NewNop())
	if c.Joined == nil {
		c.Joined = func() []Node { return nil }
	}
	if c.InFlight == nil {
		c.InFlight = func(string) int { return 0 }
	}
	if c.Idle == nil {
		c.Idle = func() []string { return nil }
	}
	return &Controller{
		config: c, wake: make(chan struct{}, 1), applied: map[string]*appliedState{}, rollouts: map[string]rollout{},
	}
}

// Set replaces the desired models and their numbers of replicas (Desired). Set ignores their
// Indices. If room is short, models that come first get it first. Nodes get nothing before the
// first Set.
func (c *Controller) Set(models []local.Model) {
	c.mu.Lock()
	c.wanted = &models
	c.mu.Unlock()
	c.Trigger()
}

// Trigger makes Run reconcile soon. Call it after nodes have come, gone or changed their resources.
func (c *Controller) Trigger() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Pending returns by model why replicas have no node.
func (c *Controller) Pending() map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.reasons)
}

// Run reconciles until ctx ends, then returns nil. It leaves the nodes as they are. It is called
// once.
func (c *Controller) Run(ctx context.Context) error {
	timer := time.NewTimer(reconcileInterval)
	defer timer.Stop()
	defer c.report(nil)
	for always := true; ; {
		_, changed := c.config.Fleet.Watch()
		began := time.Now()
		if c.reconcile(began, always) {
			timer.Reset(c.nextInterval())
		}
		if !sleep(ctx, min(4*time.Since(began), maxPause)) {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			always = false
		case <-c.wake:
			always = true
		case <-timer.C:
			always = true
		}
	}
}

// sleep pauses. It returns false if ctx ends before the pause is over.
func sleep(ctx context.Context, pause time.Duration) bool {
	if pause <= 0 {
		return ctx.Err() == nil
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(pause):
		return true
	}
}

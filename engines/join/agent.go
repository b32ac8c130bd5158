package join

import (
	"context"
	"crypto/ecdsa"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/local"
	"github.com/sluice-gateway/sluice/internal/process"
)

const (
	orphanGrace = 5 * time.Minute
	// farewell is how long Stop waits for the gateway to have heard the last.
	farewell = 2 * time.Second
)

// AgentConfig says what a node works with. Gateway, Name, Dir and Self are needed.
type AgentConfig struct {
	// Gateway is the host:port where the gateway lets nodes in.
	Gateway string
	// Token is needed until the node has joined. A token of another gateway makes it join that one.
	Token string
	// Name is what the node is called: 1 to 63 letters, digits, -, _ and dots.
	Name string
	// Address is where replicas listen, which Envoy must reach. Zero: the local address from which the gateway is reached.
	Address netip.Addr
	// Dir holds the replicas' processes and, in its folder "node", what the node must know after a restart. It must be claimed.
	Dir *process.Dir
	// Inventory tells what this host has; nil: its processors and memory, and no GPUs.
	Inventory local.Inventory
	// Self is the path of our own binary, for engines that live in it.
	Self string
	// OrphanGrace is how long replicas are kept while the gateway is away; 0 means 5 min.
	OrphanGrace time.Duration
	// DrainTimeout is how long replicas may take to finish their requests when the node stops or is an orphan; 0 means 30 s.
	DrainTimeout time.Duration
	// Launcher may say more about how replicas are run: probes, pauses. What has a field here is taken from here.
	Launcher local.Config
	// Log may be nil: silent.
	Log *zap.Logger
}

// Agent runs replicas on its host for a gateway elsewhere. Run and Stop may be called from different goroutines.
type Agent struct {
	config   AgentConfig
	log      *zap.Logger
	store    store
	token    *token // nil when none was given
	key      *ecdsa.PrivateKey
	fleet    *engines.Fleet
	counts   *counts
	launcher *local.Launcher
	// wake has a token when there is something to report that is not in the fleet.
	wake chan struct{}
	// wished has a token when there is a new wish.
	wished chan struct{}
	// parted is closed when the gateway has been told that the node is empty and ends.
	parted chan struct{}

	mu sync.Mutex
	// identity is nil until the node has joined; guarded by mu
	identity *identity
	// models ever wished for, so that the fleet shows their replicas to the last; guarded by mu
	models map[string]bool
	// wish is the last one; guarded by mu
	wish wish
	// contact is when the gateway gave its last sign of life; connected: there is a stream; orphan: it was away too long; guarded by mu
	contact           time.Time
	connected, orphan bool
	// leaving: Stop was called; empty: it has ended the replicas; said: all that was sent to the gateway; guarded by mu
	leaving, empty, said bool
	// joined: the node has been one of this gateway's before, so that it goes on whatever the gateway says; guarded by mu
	joined bool
}

// NewAgent reads what an earlier run has left. It starts nothing.
func NewAgent(c AgentConfig) (*Agent, error) {
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	orStandard(&c.OrphanGrace, orphanGrace)
	orStandard(&c.DrainTimeout, drainTimeout)
	a := &Agent{config: c, log: c.Log, store: store{filepath.Join(c.Dir.Path(), "node")}, fleet: engines.NewFleet(),
		models: map[string]bool{}, wake: make(chan struct{}, 1), wished: make(chan struct{}, 1), parted: make(chan struct{})}
	a.counts = newCounts(a.fleet)
	if err := os.MkdirAll(a.store.dir, 0o700); err != nil {
		return nil, err
	}
	if _, _, err := net.SplitHostPort(c.Gateway); err != nil {
		return nil, fmt.Errorf("the gateway's address: %w", err)
	}
	if err := a.introduce(); err != nil {
		return nil, err
	}
	if c.Address.IsUnspecified() {
		return nil, fmt.Errorf("replicas cannot listen on %s: Envoy must know where they are", c.Address)
	}
	if !c.Address.IsValid() {
		address, err := a.store.address(c.Gateway)
		if err != nil {
			return nil, err
		}
		a.config.Address = address
	}
	a.launcher = local.New(a.launcherConfig())
	return a, nil
}

// introduce finds out who the node is.
func (a *Agent) introduce() error {
	if err := checkName(a.config.Name); err != nil {
		return err
	}
	if a.config.Token != "" {
		t, err := parseToken(a.config.Token)
		if err != nil {
			return err
		}
		a.token = &t
	}
	known, err := a.store.identity()
	if err != nil {
		return err
	}
	if known != nil && known.fits(a.config.Name, a.token) {
		a.identity, a.key, a.joined = known, known.key, true
		return nil
	}
	if a.token == nil {
		return fmt.Errorf("node %s has not joined: it needs a token, which the gateway prints by `sluice node token`", a.config.Name)
	}
	a.key, err = newKey()
	return err
}

func (a *Agent) launcherConfig() local.Config {
	c := a.config.Launcher
	c.Dir, c.Fleet, c.Log, c.InFlight = a.config.Dir, a.fleet, a.log, a.counts.of
	c.Inventory, c.DrainTimeout = a.config.Inventory, a.config.DrainTimeout
	c.Address, c.Name = a.config.Address, a.config.Name
	return c
}

// Address is where replicas listen.
func (a *Agent) Address() netip.Addr { return a.config.Address }

// Replicas are those of this node as they are now.
func (a *Agent) Replicas() []engines.Replica {
	var all []engines.Replica
	for _, m := range a.fleet.Snapshot().Models {
		all = append(all, m.Replicas...)
	}
	return all
}

// Run adopts what an earlier run has left and then does what the gateway says, until ctx ends: then it returns nil and leaves the replicas
// running for the next Run. A gateway that does not answer is tried again for ever; only a token that it refuses, of a node that
// has never joined, is an error. Run is called once.
func (a *Agent) Run(ctx context.Context) error {
	a.adopt()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return a.launcher.Run(ctx) })
	group.Go(func() error { return a.keepLink(ctx) })
	group.Go(func() error { a.watchGateway(ctx); return nil })
	group.Go(func() error { a.carryOut(ctx); return nil })
	return group.Wait()
}

// adopt takes over the replicas that are there, as the last wish has them.
func (a *Agent) adopt() {
	w, err := a.store.wish()
	if err != nil {
		a.log.Error("what the gateway wished for last is not known, so the replicas leave", zap.Error(err))
	}
	found := a.launcher.Found()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.wish, a.contact = w, time.Now()
	for model := range found {
		a.models[model] = true
	}
	a.launcher.Adopt(a.ownLocked(onlyFound(w.Models, found)))
}

// ownLocked makes the gateway's models this node's, and has the fleet know them.
func (a *Agent) ownLocked(models []local.Model) []local.Model {
	own := make([]local.Model, len(models))
	for i, m := range models {
		m.Launch.Sluice = a.config.Self
		own[i] = m
		a.models[m.Name] = true
	}
	var part engines.Part
	for name := range a.models {
		part.Models = append(part.Models, engines.Model{Name: name, Launcher: engines.Local})
	}
	a.fleet.Set("agent", part)
	return own
}

// obey has done what the gateway wishes. It does not wait for that.
func (a *Agent) obey(w wish) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.obeyLocked(w)
}

func (a *Agent) obeyLocked(w wish) {
	if a.leaving {
		return
	}
	a.wish = w
	a.counts.limitTo(w.Stop)
	poke(a.wished)
}

// carryOut remembers each wish and then does it, until ctx ends. A disk may take long to keep something: the gateway must hear of us meanwhile.
func (a *Agent) carryOut(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.wished:
		}
		a.mu.Lock()
		w := a.wish
		a.mu.Unlock()
		if err := a.store.keepWish(w); err != nil {
			a.log.Error("what the gateway wishes is not kept: after a restart the node does what it wished before", zap.Error(err))
		}
		a.mu.Lock()
		if !a.leaving {
			a.launcher.Set(a.ownLocked(w.Models))
		}
		a.mu.Unlock()
	}
}

// watchGateway ends the replicas when the gateway is away for too long.
func (a *Agent) watchGateway(ctx context.Context) {
	tick := time.NewTicker(min(a.config.OrphanGrace/10, time.Second))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			a.abandon()
		}
	}
}

func (a *Agent) abandon() {
	a.mu.Lock()
	defer a.mu.Unlock()
	away := time.Since(a.contact)
	if a.connected || a.orphan || a.leaving || away < a.config.OrphanGrace {
		return
	}
	a.orphan = true
	a.log.Warn("the gateway is away: ending the replicas", zap.Duration("away", away.Round(time.Second)))
	a.obeyLocked(wish{Models: without(a.wish.Models), Stop: a.config.DrainTimeout})
}

// Stop ends the replicas, after their requests or after DrainTimeout, and tells the gateway so, which sees them drain. It needs Run to be
// running for that. The errors name what could not be ended.
func (a *Agent) Stop(ctx context.Context) error {
	a.mu.Lock()
	a.leaving = true
	a.mu.Unlock()
	a.poke()
	err := a.launcher.Stop(ctx)
	a.mu.Lock()
	a.empty = err == nil
	connected := a.connected
	a.mu.Unlock()
	a.poke()
	if connected && err == nil {
		select {
		case <-a.parted:
		case <-ctx.Done():
		case <-time.After(farewell):
		}
	}
	return err
}

func (a *Agent) poke() { poke(a.wake) }

// poke leaves a token, unless there is one.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// errNoToken: a node that cannot go on as what it was has no token to begin anew.
var errNoToken = errors.New("the node must join again, and has no token")

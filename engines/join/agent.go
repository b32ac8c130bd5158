package join

import (
	"cmp"
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
	// farewellTimeout is how long Agent.Stop waits until the gateway has read the last report.
	farewellTimeout = 2 * time.Second
)

// AgentConfig is the configuration of an Agent. Gateway, Name, Dir and Self are required.
type AgentConfig struct {
	// Gateway is the host:port of the gateway's listener for nodes.
	Gateway string
	// Token is required until the node has joined. If it is a token of another gateway, the node
	// joins that gateway.
	Token string
	// Name is the node's name: 1 to 63 letters, digits, "-", "_" and dots.
	Name string
	// Address is the IP address on which replicas listen. Envoy must be able to reach it. The zero
	// Addr means the local address from which the node reaches the gateway.
	Address netip.Addr
	// Dir holds the records of the replicas' processes. Its folder "node" holds the files of
	// agentStore. The caller must have claimed Dir.
	Dir *process.Dir
	// Inventory reads the resources of this machine. Nil means CPUs and memory, and no GPUs.
	Inventory local.Inventory
	// Self is the path of the sluice binary. Some engines run in it.
	Self string
	// OrphanGrace is how long the agent keeps replicas while the gateway is unreachable. 0 means 5
	// minutes.
	OrphanGrace time.Duration
	// DrainTimeout is how long replicas may take to finish their requests when the node stops or
	// when it is an orphan. 0 means 30 seconds.
	DrainTimeout time.Duration
	// Launcher holds further options of the launcher, such as probes and back-off. Fields that
	// AgentConfig has too are overwritten by those of AgentConfig.
	Launcher local.Config
	// Log receives the agent's log. Nil means no log.
	Log *zap.Logger
}

// Agent runs replicas on its machine for a gateway on another machine. Run and Stop may be called
// from different goroutines.
type Agent struct {
	config AgentConfig
	store  agentStore
	// token is nil if AgentConfig.Token is empty.
	token    *token
	key      *ecdsa.PrivateKey
	fleet    *engines.Fleet
	counts   *requestCounts
	launcher *local.Launcher
	// wakeup asks sendReports to send a report although the fleet has not changed. Its capacity is
	// 1.
	wakeup chan struct{}
	// assigned tells applyAssignments that assignment has changed. Its capacity is 1.
	assigned chan struct{}
	// farewellDone is closed when the gateway has read that the node is stopping and has no
	// replicas.
	farewellDone chan struct{}

	mu sync.Mutex
	// identity is nil until the node has joined. Guarded by mu.
	identity *identity
	// models holds the name of every model that the gateway has ever assigned. The fleet needs them
	// to show a replica until the end. Guarded by mu.
	models map[string]bool
	// assignment is the latest one that the gateway sent, or the saved one. Guarded by mu.
	assignment assignment
	// lastContact is when the agent last received a message of the gateway. connected is true while
	// there is a stream. orphan is true after the gateway was unreachable for OrphanGrace. Guarded
	// by mu.
	lastContact       time.Time
	connected, orphan bool
	// stopping is true once Stop was called. drained is true once Stop has stopped all replicas.
	// drainReported is true once the agent has sent its last report. Guarded by mu.
	stopping, drained, drainReported bool
	// joined is true once the node has joined this gateway, in this run or in an earlier one. A
	// node that has joined never gives up. Guarded by mu.
	joined bool
}

// NewAgent returns an Agent with the identity that an earlier run saved in AgentConfig.Dir.
// NewAgent starts nothing. It fails if a required field is missing or malformed.
func NewAgent(c AgentConfig) (*Agent, error) {
	c.Log = cmp.Or(c.Log, zap.NewNop())
	setDefault(&c.OrphanGrace, orphanGrace)
	setDefault(&c.DrainTimeout, drainTimeout)
	a := &Agent{config: c, store: agentStore{filepath.Join(c.Dir.Path(), "node")},
		fleet: engines.NewFleet(), models: map[string]bool{},
		wakeup: make(chan struct{}, 1), assigned: make(chan struct{}, 1), farewellDone: make(chan struct{})}
	a.counts = newRequestCounts(a.fleet)
	if err := os.MkdirAll(a.store.dir, 0o700); err != nil {
		return nil, err
	}
	if _, _, err := net.SplitHostPort(c.Gateway); err != nil {
		return nil, fmt.Errorf("the gateway's address %q is not host:port: %w", c.Gateway, err)
	}
	if err := a.loadIdentity(); err != nil {
		return nil, err
	}
	if c.Address.IsUnspecified() {
		return nil, fmt.Errorf("replicas cannot listen on %s, because Envoy could not reach them: "+
			"give an address of this machine", c.Address)
	}
	if !c.Address.IsValid() {
		address, err := a.store.localAddress(c.Gateway)
		if err != nil {
			return nil, err
		}
		a.config.Address = address
	}
	a.launcher = local.New(a.launcherConfig())
	return a, nil
}

// loadIdentity reads the saved identity. If it belongs to another name or another gateway, the
// agent needs a token to join again.
func (a *Agent) loadIdentity() error {
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
	if known != nil && known.matches(a.config.Name, a.token) {
		a.identity, a.key, a.joined = known, known.key, true
		return nil
	}
	if a.token == nil {
		return fmt.Errorf("node %s has not joined and has no token: `sluice node token %s` makes one at the gateway",
			a.config.Name, a.config.Name)
	}
	a.key, err = newKey()
	return err
}

// launcherConfig returns AgentConfig.Launcher with the fields that the agent determines.
func (a *Agent) launcherConfig() local.Config {
	c := a.config.Launcher
	c.Dir, c.Fleet, c.Log, c.InFlight = a.config.Dir, a.fleet, a.config.Log, a.counts.inFlight
	c.Inventory, c.DrainTimeout = a.config.Inventory, a.config.DrainTimeout
	c.Address, c.Name = a.config.Address, a.config.Name
	return c
}

// Address returns the IP address on which the replicas listen.
func (a *Agent) Address() netip.Addr { return a.config.Address }

// Run adopts the replicas that an earlier run left running and then runs what the gateway assigns.
// When ctx ends, Run returns nil and leaves the replicas running for the next Run.
//
// Run retries for ever if the gateway does not answer. It fails only if the gateway rejects the
// token of a node that has never joined. Run may be called once.
func (a *Agent) Run(ctx context.Context) error {
	saved := a.adopt()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return a.launcher.Run(ctx) })
	group.Go(func() error { return a.keepConnected(ctx) })
	group.Go(func() error { a.watchGateway(ctx); return nil })
	group.Go(func() error { a.applyAssignments(ctx, saved); return nil })
	return group.Wait()
}

// adopt takes over the running replicas that the saved assignment still contains. The launcher
// stops the others. It returns the saved assignment.
func (a *Agent) adopt() assignment {
	saved, err := a.store.assignment()
	if err != nil {
		a.config.Log.Error("saved assignment unreadable, stopping the replicas", zap.Error(err))
	}
	found := a.launcher.Found()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.assignment, a.lastContact = saved, time.Now()
	for model := range found {
		a.models[model] = true
	}
	a.launcher.Adopt(a.registerLocked(onlyRunning(saved.Models, found)))
	return saved
}

// registerLocked adds the models to the agent's own fleet and returns them with the path of this
// machine's sluice binary. a.mu must be held.
func (a *Agent) registerLocked(models []local.Model) []local.Model {
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

// assign stores the assignment and wakes applyAssignments. It does not wait until the assignment is
// applied.
func (a *Agent) assign(next assignment) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.assignLocked(next)
}

func (a *Agent) assignLocked(next assignment) {
	if a.stopping {
		return
	}
	a.assignment = next
	a.counts.setDeadline(next.Stop)
	signal(a.assigned)
}

// applyAssignments saves each new assignment and then applies it, until ctx ends. applied is the
// one before the first. Saving may block on a slow disk, so it must not happen in the goroutine
// that receives the gateway's messages. An assignment that could not be saved is saved again, and
// only the first failure of several is logged.
func (a *Agent) applyAssignments(ctx context.Context, applied assignment) {
	var again <-chan time.Time // nil while the last assignment is saved
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.assigned:
		case <-again:
		}
		a.mu.Lock()
		next := a.assignment
		a.mu.Unlock()
		failed := again != nil
		again = nil
		switch err := a.store.saveAssignment(next); {
		case err != nil:
			again = time.After(saveAgainAfter)
			if !failed {
				a.config.Log.Error("assignment not saved, Sluice tries again: until then a restarted node applies the one before", zap.Error(err))
			}
		case failed:
			a.config.Log.Info("assignment saved")
		}
		a.mu.Lock()
		if !a.stopping {
			a.launcher.Set(a.registerLocked(next.Models))
			a.restartAssigned(applied, next)
			applied = next
		}
		a.mu.Unlock()
	}
}

// watchGateway calls drainIfOrphaned periodically until ctx ends.
func (a *Agent) watchGateway(ctx context.Context) {
	tick := time.NewTicker(min(a.config.OrphanGrace/10, time.Second))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			a.drainIfOrphaned()
		}
	}
}

func (a *Agent) drainIfOrphaned() {
	a.mu.Lock()
	defer a.mu.Unlock()
	away := time.Since(a.lastContact)
	if a.connected || a.orphan || a.stopping || away < a.config.OrphanGrace {
		return
	}
	a.orphan = true
	a.config.Log.Warn("gateway unreachable, stopping the replicas", zap.Duration("away", away.Round(time.Second)))
	a.assignLocked(assignment{Models: withoutReplicas(a.assignment.Models), Stop: a.config.DrainTimeout})
}

// Stop drains the replicas: each finishes its requests or is stopped after DrainTimeout. Stop then
// reports to the gateway that the node has no replicas. Run must be running, so that the gateway
// learns of the draining replicas. The error names the processes that could not be stopped.
func (a *Agent) Stop(ctx context.Context) error {
	a.mu.Lock()
	a.stopping = true
	a.mu.Unlock()
	a.wakeSender()
	err := a.launcher.Stop(ctx)
	a.mu.Lock()
	a.drained = err == nil
	connected := a.connected
	a.mu.Unlock()
	a.wakeSender()
	if connected && err == nil {
		select {
		case <-a.farewellDone:
		case <-ctx.Done():
		case <-time.After(farewellTimeout):
		}
	}
	return err
}

func (a *Agent) wakeSender() { signal(a.wakeup) }

// signal adds a token to c unless c is full. c has a capacity of 1.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// errNoToken means that the node must join (again) but was given no token.
var errNoToken = errors.New("the node must join the gateway again and has no token")

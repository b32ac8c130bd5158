package gateway

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"os/signal"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-gateway/sluice/engines/join"
	"github.com/sluice-gateway/sluice/engines/local"
	"github.com/sluice-gateway/sluice/internal/process"
)

// node is a running `sluice node`.
type node struct {
	log   *zap.Logger
	flags NodeOptions
	dir   *process.Dir
	agent *join.Agent
	self  string // path of this program
}

// NodeOptions is what one run of a node's agent is given.
type NodeOptions struct {
	// Gateway is the host:port of the gateway to join (control in its file).
	Gateway string
	// Token lets the node join for the first time. It is empty when the node has a certificate.
	Token string
	// Name of the node, unique at its gateway.
	Name string
	// Address is the IP address on which replicas listen. When it is not valid, the agent uses the address from which it
	// reaches the gateway.
	Address netip.Addr
	// StateDir outlives a crash of the agent.
	StateDir string
	// OrphanGrace is how long replicas are kept while the gateway or the agent is away.
	OrphanGrace time.Duration
	// DrainTimeout is how long the requests of replicas may take to finish at the end.
	DrainTimeout time.Duration
	// HandOverEnv are variables, NAME=VALUE, that the process which replaces this one gets besides its environment.
	HandOverEnv []string
	Log         *zap.Logger
}

// RunNode runs replicas for a gateway until ctx ends and then drains them, or until the process is told to hand over.
func RunNode(ctx context.Context, flags NodeOptions) error {
	log := flags.Log
	if err := process.RaiseFileLimit(); err != nil {
		log.Warn("the limit of open files stays low", zap.Error(err))
	}
	dir, err := process.Open(flags.StateDir, log)
	if err != nil {
		return err
	}
	if err := dir.Claim(ctx); err != nil {
		return err
	}
	defer dir.Release() //nolint:errcheck // the process ends anyway
	n, err := newNode(log, dir, flags)
	if err != nil {
		return err
	}
	return n.run(ctx)
}

func newNode(log *zap.Logger, dir *process.Dir, flags NodeOptions) (*node, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	agent, err := join.NewAgent(join.AgentConfig{
		Gateway: flags.Gateway, Token: flags.Token, Name: flags.Name, Address: flags.Address, Dir: dir, Inventory: local.NewInventory(), Self: self,
		OrphanGrace: flags.OrphanGrace, DrainTimeout: flags.DrainTimeout, Log: log,
	})
	if err != nil {
		return nil, err
	}
	return &node{log: log, flags: flags, dir: dir, agent: agent, self: self}, nil
}

func (n *node) run(ctx context.Context) error {
	handOver := make(chan os.Signal, 1)
	signal.Notify(handOver, handOverSignal)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP) // there is no file to read again; engines must not inherit that it is ignored
	guard := guardCommand(n.self, n.dir.Path(), n.flags.OrphanGrace)
	if err := n.dir.StartGuard(guard); err != nil { // before anything that would need it
		return err
	}
	// The parts outlive ctx: they are needed to drain.
	parts, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	group, parts := errgroup.WithContext(parts)
	group.Go(func() error { return n.agent.Run(parts) })
	group.Go(func() error { return n.dir.KeepGuard(parts, guard) })
	n.log.Info("node", zap.String("name", n.flags.Name), zap.String("gateway", n.flags.Gateway), zap.Stringer("address", n.agent.Address()))

	select {
	case <-ctx.Done():
		err := n.drain()
		end()
		return errors.Join(err, group.Wait())
	case <-parts.Done():
		return errors.Join(group.Wait(), n.drain())
	case <-handOver:
	}
	n.log.Info("handing over")
	end()
	err := group.Wait()
	if err == nil && ctx.Err() == nil {
		err = n.replaceSelf()
	}
	// It is not to be, or could not be: leave nothing behind.
	return errors.Join(err, n.drain())
}

// drain ends the replicas, when their requests have ended or the time is up. A second signal ends everything at once.
func (n *node) drain() error {
	n.log.Info("draining", zap.Duration("at_most", n.flags.DrainTimeout))
	ctx, cancel := context.WithTimeout(context.Background(), n.flags.DrainTimeout+30*time.Second)
	defer cancel()
	defer hurry(ctx, n.dir, n.log)()
	return errors.Join(n.agent.Stop(ctx), n.dir.EndAll(ctx, 5*time.Second))
}

// replaceSelf starts this program anew in this very process: same pid, new binary if there is one. It returns only when that fails.
func (n *node) replaceSelf() error {
	return execSelf(n.flags.HandOverEnv...)
}

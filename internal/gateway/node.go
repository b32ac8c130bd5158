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

// node is the running agent of `sluice node`.
type node struct {
	log   *zap.Logger
	flags NodeOptions
	dir   *process.Dir
	agent *join.Agent
	self  string // path of this program
	stops stops
}

// NodeOptions are the options of RunNode.
type NodeOptions struct {
	// Gateway is the host:port of the gateway to join (the key control of its configuration file).
	Gateway string
	// Token lets the node join for the first time. It is empty when the node has a certificate.
	Token string
	// Name of the node, unique at its gateway.
	Name string
	// Address is the IP address on which replicas listen. If it is not valid, the agent uses the
	// address from which it reaches the gateway.
	Address netip.Addr
	// StateDir is the directory of the state that survives a crash of the agent.
	StateDir string
	// OrphanGrace is how long replicas are kept while the gateway cannot be reached or no agent
	// runs.
	OrphanGrace time.Duration
	// DrainTimeout is how long replicas may take to finish their requests when the node stops.
	DrainTimeout time.Duration
	// HandOverEnv are variables, NAME=VALUE. The process that replaces this one in a hand-over gets
	// them besides the environment of this process.
	HandOverEnv []string
	Log         *zap.Logger
}

// RunNode runs replicas for a gateway until ctx ends, and then drains them. On the signal to hand
// over it replaces this process by the installed binary and leaves the replicas running. If the
// binary cannot be executed, it goes on. RunNode returns the first error of the agent or of the
// drain.
func RunNode(ctx context.Context, flags NodeOptions) error {
	log := flags.Log
	if err := process.RaiseFileLimit(); err != nil {
		log.Warn("limit of open files not raised", zap.Error(err))
	}
	dir, err := openState(ctx, flags.StateDir, log)
	if err != nil {
		return err
	}
	if err := dir.Claim(ctx); err != nil {
		return err
	}
	defer dir.Release()
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
	n.stops = catchStops()
	ended := make(chan struct{})
	defer close(ended)
	n.stops.ended = ended
	// A node has no file to read again, so SIGHUP does nothing. The signal is caught rather than
	// ignored, because engines would inherit that it is ignored.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	guard := guardCommand(n.self, n.dir.Path(), n.flags.OrphanGrace)
	if err := n.dir.StartGuard(guard); err != nil { // before any process starts that it would have to stop
		return err
	}
	adopted := len(n.dir.Records()) > 0
	// The parts run on after ctx has ended, because drain needs them.
	parts, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	group, parts := errgroup.WithContext(parts)
	group.Go(func() error { return n.agent.Run(parts) })
	group.Go(func() error { return n.dir.KeepGuard(parts, guard) })
	n.log.Info("node started", zap.String("name", n.flags.Name), zap.String("gateway", n.flags.Gateway), zap.Stringer("address", n.agent.Address()))

	select {
	case <-ctx.Done():
		err := n.drain()
		end()
		return errors.Join(err, group.Wait())
	case <-parts.Done():
		if adopted { // as in Gateway.stop
			n.log.Error("node ends, replicas are left for the next start", zap.Duration("ended_by_the_guard_after", n.flags.OrphanGrace))
			return group.Wait()
		}
		return errors.Join(group.Wait(), n.drain())
	case <-handOver:
	}
	n.log.Info("hand-over started")
	end()
	err := group.Wait()
	if err != nil || ctx.Err() != nil { // the hand-over was cancelled
		return errors.Join(err, n.drain())
	}
	n.log.Error("hand-over failed, the node goes on", zap.Error(execSelf(n.flags.HandOverEnv...)))
	next, err := newNode(n.log, n.dir, n.flags) // it adopts the replicas, as the new binary would
	if err != nil {
		return err
	}
	return next.run(ctx)
}

// drain stops the replicas when their requests have finished, or after DrainTimeout. On a second
// signal to stop it stops them at once.
func (n *node) drain() error {
	n.log.Info("drain started", zap.Duration("at_most", n.flags.DrainTimeout))
	ctx, cancel := context.WithTimeout(context.Background(), n.flags.DrainTimeout+30*time.Second)
	defer cancel()
	_, end := n.stops.hurry(ctx, n.flags.DrainTimeout, n.dir, n.log)
	defer end()
	return errors.Join(n.agent.Stop(ctx), n.dir.EndAll(ctx, 5*time.Second))
}

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-gateway/sluice/engines/join"
	"github.com/sluice-gateway/sluice/engines/local"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/process"
)

// tokenVariable may hold the token. It is taken out of our environment, which engines inherit.
const tokenVariable = "SLUICE_TOKEN"

// nodeFlags are the flags of "sluice node".
type nodeFlags struct {
	join, token, tokenFile, name, address, stateDir string
	orphanGrace, drainTimeout                       time.Duration
	// fromVariable is a token that came by the environment, for a hand-over.
	fromVariable string
}

func newNodeCommand(g *globals) *cobra.Command {
	var flags nodeFlags
	c := &cobra.Command{
		Use:   "node --join HOST:PORT",
		Short: "Run replicas on this host for a gateway elsewhere",
		Long: `Run replicas on this host for a gateway elsewhere.

The first time a node joins it needs the token that "sluice node token" prints at the gateway; from then on it has a certificate. Give the
token by --token-file or by the variable ` + tokenVariable + `: everybody on this host can read a command line.

The replicas outlive this command when it is killed; the next one on the same state directory takes them over. SIGTERM lets them finish
their requests and ends them, a second one ends them at once. SIGUSR2 starts the binary that is there now in the place of this one.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runNode(cmd.Context(), g, &flags) },
	}
	f := c.Flags()
	f.SortFlags = false
	f.StringVar(&flags.join, "join", "", "host:port of the gateway (control in its file)")
	f.StringVar(&flags.tokenFile, "token-file", "", "file with the token")
	f.StringVar(&flags.token, "token", "", "the token itself")
	f.StringVar(&flags.name, "name", "", "what this node is called (default: the host's name)")
	f.StringVar(&flags.address, "address", "", "IP address on which replicas listen, for the gateway's Envoy (default: the one that reaches the gateway)")
	f.StringVar(&flags.stateDir, "state-dir", "", "what outlives a crash (default: ~/.local/state/sluice-node)")
	f.DurationVar(&flags.orphanGrace, "orphan-grace", 5*time.Minute, "how long replicas are kept while the gateway, or this command, is away")
	f.DurationVar(&flags.drainTimeout, "drain-timeout", 30*time.Second, "how long replicas may take to finish their requests at the end")
	c.MarkFlagsMutuallyExclusive("token", "token-file")
	_ = c.MarkFlagRequired("join") // fails only for a flag that is not there
	c.AddCommand(newNodeTokenCommand())
	return c
}

func newNodeTokenCommand() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   "token -c FILE",
		Short: "Print the token by which nodes join the gateway of this file",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := config.Load(file)
			if err != nil {
				return err
			}
			token, err := join.Token(joinDir(c.StateDir))
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), token)
			return err
		},
	}
	c.Flags().StringVarP(&file, "config", "c", "", "the gateway's configuration file")
	_ = c.MarkFlagRequired("config")
	return c
}

// fill fills in what no flag says.
func (f *nodeFlags) fill() error {
	if f.orphanGrace <= 0 || f.drainTimeout <= 0 {
		return errors.New("--orphan-grace and --drain-timeout must be more than 0s")
	}
	f.fromVariable = os.Getenv(tokenVariable)
	if err := os.Unsetenv(tokenVariable); err != nil {
		return err
	}
	if f.tokenFile != "" {
		data, err := os.ReadFile(f.tokenFile)
		if err != nil {
			return fmt.Errorf("--token-file: %w", err)
		}
		f.token = string(data)
	} else if f.token == "" {
		f.token = f.fromVariable
	}
	if f.name == "" {
		name, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("--name is needed: %w", err)
		}
		f.name = name
	}
	if f.stateDir == "" {
		f.stateDir = nodeStateDir()
	}
	return nil
}

// nodeStateDir is not the gateway's: both may run on one host.
func nodeStateDir() string {
	const name = "sluice-node"
	if state := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(state) {
		return filepath.Join(state, name)
	}
	if home, err := os.UserHomeDir(); err == nil {
		return filepath.Join(home, ".local", "state", name)
	}
	return filepath.Join("/var/lib", name)
}

// node is a running `sluice node`.
type node struct {
	log   *zap.Logger
	flags *nodeFlags
	dir   *process.Dir
	agent *join.Agent
	self  string // path of this program
}

// runNode runs replicas until ctx ends, and then drains them; or until it is told to hand over.
func runNode(ctx context.Context, g *globals, flags *nodeFlags) error {
	if err := flags.fill(); err != nil {
		return err
	}
	log, err := g.logger()
	if err != nil {
		return err
	}
	defer log.Sync() //nolint:errcheck // stderr may not be syncable
	if err := process.RaiseFileLimit(); err != nil {
		log.Warn("the limit of open files stays low", zap.Error(err))
	}
	dir, err := process.Open(flags.stateDir, log)
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

func newNode(log *zap.Logger, dir *process.Dir, flags *nodeFlags) (*node, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	var address netip.Addr
	if flags.address != "" {
		if address, err = netip.ParseAddr(flags.address); err != nil {
			return nil, fmt.Errorf("--address: %w", err)
		}
	}
	agent, err := join.NewAgent(join.AgentConfig{
		Gateway: flags.join, Token: flags.token, Name: flags.name, Address: address, Dir: dir, Inventory: local.NewInventory(), Self: self,
		OrphanGrace: flags.orphanGrace, DrainTimeout: flags.drainTimeout, Log: log,
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
	guard := guardCommand(n.self, n.dir.Path(), n.flags.orphanGrace)
	if err := n.dir.StartGuard(guard); err != nil { // before anything that would need it
		return err
	}
	// The parts outlive ctx: they are needed to drain.
	parts, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	group, parts := errgroup.WithContext(parts)
	group.Go(func() error { return n.agent.Run(parts) })
	group.Go(func() error { return n.dir.KeepGuard(parts, guard) })
	n.log.Info("node", zap.String("name", n.flags.name), zap.String("gateway", n.flags.join), zap.Stringer("address", n.agent.Address()))

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
	n.log.Info("draining", zap.Duration("at_most", n.flags.drainTimeout))
	ctx, cancel := context.WithTimeout(context.Background(), n.flags.drainTimeout+30*time.Second)
	defer cancel()
	defer hurry(ctx, n.dir, n.log)()
	return errors.Join(n.agent.Stop(ctx), n.dir.EndAll(ctx, 5*time.Second))
}

// replaceSelf starts this program anew in this very process: same pid, new binary if there is one. It returns only when that fails.
func (n *node) replaceSelf() error {
	if n.flags.fromVariable != "" {
		return execAnew(tokenVariable + "=" + n.flags.fromVariable)
	}
	return execAnew()
}

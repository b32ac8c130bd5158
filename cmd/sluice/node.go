package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/gateway"
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
			token, err := gateway.JoinToken(c)
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

// runNode runs the node's agent with what the flags say.
func runNode(ctx context.Context, g *globals, flags *nodeFlags) error {
	if err := flags.fill(); err != nil {
		return err
	}
	log, err := g.logger()
	if err != nil {
		return err
	}
	defer log.Sync() //nolint:errcheck // stderr may not be syncable
	o := gateway.NodeOptions{
		Gateway: flags.join, Token: flags.token, Name: flags.name, StateDir: flags.stateDir,
		OrphanGrace: flags.orphanGrace, DrainTimeout: flags.drainTimeout, Log: log,
	}
	if flags.address != "" {
		if o.Address, err = netip.ParseAddr(flags.address); err != nil {
			return fmt.Errorf("--address: %w", err)
		}
	}
	if flags.fromVariable != "" {
		o.HandOverEnv = []string{tokenVariable + "=" + flags.fromVariable}
	}
	return gateway.RunNode(ctx, o)
}

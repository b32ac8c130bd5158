package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-gateway/sluice/engines/join"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/console"
	"github.com/sluice-gateway/sluice/internal/gateway"
)

// tokenVariable is the environment variable that may hold the join token. The node removes it from
// its environment, because engines inherit that environment.
const tokenVariable = "SLUICE_TOKEN"

// nodeFlags holds the flags of "sluice node".
type nodeFlags struct {
	join, token, tokenFile, name, address, stateDir string
	orphanGrace, drainTimeout                       time.Duration
	// fromVariable is the token from the environment variable. The process that replaces this one
	// in a hand-over gets the token by the same variable.
	fromVariable string
}

func newNodeCommand(g *globals) *cobra.Command {
	var flags nodeFlags
	c := &cobra.Command{
		Use:   "node --join HOST:PORT",
		Short: "Run replicas on this machine for a gateway on another machine",
		Long: `Run replicas on this machine for a gateway on another machine.

A node that joins for the first time needs the token that "sluice node token NAME" prints on the
gateway's machine. Later the node uses the certificate that the gateway has issued. Give the token
by --token-file or by the variable ` + tokenVariable + `: every user of this machine can read a command line.

When this command is killed, its replicas go on. The next "sluice node" on the same state directory
adopts them. On SIGTERM the node lets the replicas finish their requests and then stops them. On a
second SIGTERM it stops them at once. On SIGUSR2 the node replaces itself by the binary that is
installed now.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runNode(cmd.Context(), g, &flags) },
	}
	f := c.Flags()
	f.SortFlags = false
	f.StringVar(&flags.join, "join", "", "host:port of the gateway (the key control of its configuration file)")
	f.StringVar(&flags.tokenFile, "token-file", "", "file with the token")
	f.StringVar(&flags.token, "token", "", "the token itself")
	f.StringVar(&flags.name, "name", "", "name of this node (default: the machine's host name)")
	f.StringVar(&flags.address, "address", "", "IP address on which replicas listen, for the gateway's Envoy (default: the one that reaches the gateway)")
	f.StringVar(&flags.stateDir, "state-dir", "", "directory of the state that survives a crash (default: ~/.local/state/sluice-node)")
	f.DurationVar(&flags.orphanGrace, "orphan-grace", 5*time.Minute,
		"how long replicas are kept while the gateway cannot be reached, or this command does not run")
	f.DurationVar(&flags.drainTimeout, "drain-timeout", 30*time.Second, "how long replicas may take to finish their requests when the node stops")
	c.MarkFlagsMutuallyExclusive("token", "token-file")
	_ = c.MarkFlagRequired("join") // fails only for a flag that is not defined
	c.AddCommand(newNodeTokenCommand())
	return c
}

func newNodeTokenCommand() *cobra.Command {
	var file string
	var request join.TokenRequest
	c := &cobra.Command{
		Use:   "token NAME -c FILE",
		Short: "Make a token with which one node joins the gateway of this file by this name",
		Long: `Make a token with which one node joins the gateway of this file by this name.

The token admits one machine, once, until it expires. The name then belongs to that machine, which
needs no token to reconnect. With --replace the token gives the name of a machine to another one.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := config.Load(file)
			if err != nil {
				return err
			}
			request.Node = args[0]
			if request.Expires <= 0 {
				return fmt.Errorf("--expires is %s: it must be more than 0s", request.Expires)
			}
			token, err := gateway.JoinToken(c, request)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), token)
			return err
		},
	}
	c.Flags().StringVarP(&file, "config", "c", "", "the gateway's configuration file")
	c.Flags().DurationVar(&request.Expires, "expires", 24*time.Hour, "how long the token is valid")
	c.Flags().BoolVar(&request.Replace, "replace", false, "give the name of a machine that has joined to another one")
	_ = c.MarkFlagRequired("config")
	return c
}

// fill sets the defaults of the flags that were not given, and reads the token.
func (f *nodeFlags) fill() error {
	if f.orphanGrace <= 0 || f.drainTimeout <= 0 {
		return fmt.Errorf("--orphan-grace is %s and --drain-timeout is %s: both must be more than 0s", f.orphanGrace, f.drainTimeout)
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
			return fmt.Errorf("the host name cannot be read, set --name: %w", err)
		}
		f.name = name
	}
	if f.stateDir == "" {
		f.stateDir = config.DefaultStateDir("sluice-node") // not that of a gateway, which may run here too
	}
	return nil
}

// runNode runs the node's agent with the options that the flags give.
func runNode(ctx context.Context, g *globals, flags *nodeFlags) error {
	if err := flags.fill(); err != nil {
		return err
	}
	log, err := g.logger(console.Open(os.Stderr))
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

package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-gateway/sluice/envoy"
	"github.com/sluice-gateway/sluice/examples"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/gateway"
)

func newUpCommand(g *globals) *cobra.Command {
	var file, binary string
	var upstreams []string
	var slots int
	var force bool
	c := &cobra.Command{
		Use:   "up [-c FILE] [--upstream URL]... [--slots N]",
		Short: "Run the gateway, its own Envoy and the replicas on this machine",
		Long: `Run the gateway, its own Envoy and the replicas on this machine.

With -c FILE the gateway runs the models of the file. With --upstream URL it serves the models that
it discovers on these servers. Each server gets as many requests at once as it says, or as --slots
says. Without both it runs the simulated models of the quick start.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if slots != 0 && len(upstreams) == 0 {
				return errors.New("--slots is for the servers of --upstream, and there is none: in a file set slots at the server")
			}
			o, cleanUp, err := upOptions(file, upstreams, slots)
			if err != nil {
				return err
			}
			o.Force = force
			if o.Envoy, err = envoy.Find(binary); err == nil {
				err = run(cmd.Context(), g, o)
			}
			if errors.Is(err, gateway.ErrHandedOver) { // the gateway goes on in its state directory
				return nil
			}
			cleanUp()
			return err
		},
	}
	c.Flags().StringVarP(&file, "config", "c", "", "the configuration file")
	c.Flags().StringArrayVar(&upstreams, "upstream", nil, "URL of a server whose models are discovered (repeatable)")
	c.Flags().IntVar(&slots, "slots", 0, "requests that each --upstream works on at once (default: what the server says)")
	c.Flags().StringVar(&binary, "envoy", "", "the Envoy binary (default: $SLUICE_ENVOY, then envoy in $PATH, then .tools/envoy)")
	addForceFlag(c, &force)
	c.MarkFlagsMutuallyExclusive("config", "upstream")
	return c
}

// addForceFlag adds the flag that sets gateway.Options.Force.
func addForceFlag(c *cobra.Command, force *bool) {
	c.Flags().BoolVar(force, "force", false, "start although the file has none of the models whose replicas run, and end them")
}

func newServeCommand(g *globals) *cobra.Command {
	var file string
	var force bool
	c := &cobra.Command{
		Use:   "serve -c FILE",
		Short: "Run the gateway beside an Envoy that someone else runs (see bootstrap)",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := config.Load(file)
			if err != nil {
				return err
			}
			if err := run(cmd.Context(), g, gateway.Options{Config: c, Force: force}); !errors.Is(err, gateway.ErrHandedOver) {
				return err
			}
			return nil
		},
	}
	c.Flags().StringVarP(&file, "config", "c", "", "the configuration file")
	addForceFlag(c, &force)
	_ = c.MarkFlagRequired("config") // fails only for a flag that is not defined
	return c
}

func newBootstrapCommand() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   "bootstrap -c FILE",
		Short: "Print the bootstrap for an Envoy that someone else runs beside `sluice serve`",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := config.Load(file)
			if err != nil {
				return err
			}
			b, err := gateway.Bootstrap(c)
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(b)
			return err
		},
	}
	c.Flags().StringVarP(&file, "config", "c", "", "the configuration file")
	_ = c.MarkFlagRequired("config")
	return c
}

// run runs a gateway with the logger that the flags configure.
func run(ctx context.Context, g *globals, o gateway.Options) error {
	log, err := g.logger()
	if err != nil {
		return err
	}
	defer log.Sync() //nolint:errcheck // stderr may not be syncable
	o.Log, o.Version = log, version()
	return gateway.Run(ctx, o)
}

// upOptions reads the configuration file. Without a file it creates a configuration for the
// upstreams with these slots or, if there are none, for the quick start. Such a configuration has a
// temporary state directory, which cleanUp removes.
func upOptions(file string, upstreams []string, slots int) (o gateway.Options, cleanUp func(), err error) {
	if file != "" {
		c, err := config.Load(file)
		return gateway.Options{Config: c}, func() {}, err
	}
	c, err := config.ForUpstreams(upstreams, slots)
	if len(upstreams) == 0 {
		c, err = config.Parse("quick start", examples.Quickstart)
	}
	if err != nil {
		return o, nil, err
	}
	if c.StateDir, err = temporaryStateDir(); err != nil {
		return o, nil, err
	}
	cleanUp = func() { os.RemoveAll(filepath.Dir(c.StateDir)) }
	return gateway.Options{Config: c, Temporary: true}, cleanUp, nil
}

// temporaryStateDir creates a temporary state directory. In a hand-over it returns the directory of
// the process that this one replaces.
func temporaryStateDir() (string, error) {
	const name, state = "sluice-", "state"
	handed := os.Getenv(gateway.StateDirVariable)
	if err := os.Unsetenv(gateway.StateDirVariable); err != nil { // child processes must not inherit it
		return "", err
	}
	parent := filepath.Dir(handed)
	if filepath.Base(handed) == state && filepath.Dir(parent) == filepath.Clean(os.TempDir()) && strings.HasPrefix(filepath.Base(parent), name) {
		return handed, nil
	}
	dir, err := os.MkdirTemp("", name)
	return filepath.Join(dir, state), err
}

package main

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-gateway/sluice/envoy"
	"github.com/sluice-gateway/sluice/examples"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/process"
)

func newUpCommand(g *globals) *cobra.Command {
	var file, binary string
	var upstreams []string
	c := &cobra.Command{
		Use:   "up [-c FILE] [--upstream URL]...",
		Short: "Run everything on this machine: the gateway, its own Envoy, the replicas",
		Long: `Run everything on this machine: the gateway, its own Envoy, the replicas.
Without a file it runs the quick start's simulated models; with --upstream only these servers, whose models are discovered.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			settings, err := upSettings(file, upstreams)
			if err != nil {
				return err
			}
			defer settings.cleanUp()
			if settings.envoy, err = envoy.Find(binary); err != nil {
				return err
			}
			return run(cmd.Context(), g, settings)
		},
	}
	c.Flags().StringVarP(&file, "config", "c", "", "the configuration file")
	c.Flags().StringArrayVar(&upstreams, "upstream", nil, "URL of a server whose models are discovered (repeatable)")
	c.Flags().StringVar(&binary, "envoy", "", "the Envoy binary; default: $SLUICE_ENVOY, $PATH, .tools/envoy")
	c.MarkFlagsMutuallyExclusive("config", "upstream")
	return c
}

func newServeCommand(g *globals) *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   "serve -c FILE",
		Short: "Run the gateway beside an Envoy that someone else runs (see bootstrap)",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := config.Load(file)
			if err != nil {
				return err
			}
			return run(cmd.Context(), g, settings{config: c, cleanUp: func() {}})
		},
	}
	c.Flags().StringVarP(&file, "config", "c", "", "the configuration file")
	_ = c.MarkFlagRequired("config") // fails only for a flag that is not there
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
			dir, err := process.Open(c.StateDir, nil)
			if err != nil {
				return err
			}
			b, err := envoy.Bootstrap(bootstrap(dir))
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

// settings is what one run of the gateway is given.
type settings struct {
	config *config.Config
	// envoy is the binary to run; empty when someone else runs Envoy.
	envoy string
	// temporary says that the state directory was made for this run alone; cleanUp removes it.
	temporary bool
	cleanUp   func()
}

// upSettings reads the file, or stands in for one. Without a file the state directory is a temporary one.
func upSettings(file string, upstreams []string) (settings, error) {
	if file != "" {
		c, err := config.Load(file)
		return settings{config: c, cleanUp: func() {}}, err
	}
	c, err := config.ForUpstreams(upstreams)
	if len(upstreams) == 0 {
		c, err = config.Parse("quick start", examples.Quickstart)
	}
	if err != nil {
		return settings{}, err
	}
	if c.StateDir, err = temporaryStateDir(); err != nil {
		return settings{}, err
	}
	return settings{config: c, temporary: true, cleanUp: func() { os.RemoveAll(filepath.Dir(c.StateDir)) }}, nil
}

// temporaryStateDir makes one, or takes that of the process which this one replaces by a hand-over.
func temporaryStateDir() (string, error) {
	const name, state = "sluice-", "state"
	handed := os.Getenv(stateDirVariable)
	if err := os.Unsetenv(stateDirVariable); err != nil { // it is not for our children
		return "", err
	}
	parent := filepath.Dir(handed)
	if filepath.Base(handed) == state && filepath.Dir(parent) == filepath.Clean(os.TempDir()) && strings.HasPrefix(filepath.Base(parent), name) {
		return handed, nil
	}
	dir, err := os.MkdirTemp("", name)
	return filepath.Join(dir, state), err
}

// bootstrap names the sockets of a state directory.
func bootstrap(dir *process.Dir) envoy.BootstrapConfig {
	return envoy.BootstrapConfig{
		ControlSocket: dir.Socket("control.sock"),
		APISocket:     dir.Socket("api.sock"),
		AdminSocket:   dir.Socket("envoy.sock"),
	}
}

// relaySocket and grpcSocket are where Envoy brings managed streams. It learns them by xDS, so that an Envoy of before an upgrade does too.
func relaySocket(dir *process.Dir) string { return dir.Socket("relay.sock") }
func grpcSocket(dir *process.Dir) string  { return dir.Socket("grpc.sock") }

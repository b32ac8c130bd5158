package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-gateway/sluice/examples"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/console"
	"github.com/sluice-gateway/sluice/internal/gateway"
	"github.com/sluice-gateway/sluice/internal/telemetry"
)

// upFlags are the flags of `sluice up`.
type upFlags struct {
	file, binary string
	upstreams    []string
	slots        int
	force        bool
	models       modelFlags
}

func newUpCommand(g *globals) *cobra.Command {
	var flags upFlags
	c := &cobra.Command{
		Use:   "up [hf:ORG/NAME[:FILE] | ollama:NAME]... [-c FILE] [--upstream URL]... [--slots N]",
		Short: "Run the gateway, its own Envoy and the replicas on this machine",
		Long: `Run the gateway, its own Envoy and the replicas on this machine.

With hf:ORG/NAME it runs a model of Hugging Face, with ollama:NAME one of Ollama's library. It
chooses the engine by what this machine has and the files by what fits, says what it chose, and
fetches the weights. FILE is a file of the repository or the name of a quantisation, such as Q8_0.

With -c FILE the gateway runs the models of the file. With --upstream URL it serves the models that
it discovers on these servers. Each server gets as many requests at once as it says, or as --slots
says. Without all of these it runs the models of ./sluice.yaml if there is such a file, else the
simulated models of the quick start.`,
		Args: refuseFile,
		RunE: func(cmd *cobra.Command, models []string) error { return up(cmd, g, flags, models) },
	}
	f := c.Flags()
	f.StringVarP(&flags.file, "config", "c", "", "the configuration file")
	f.StringArrayVar(&flags.upstreams, "upstream", nil, "URL of a server whose models are discovered (repeatable)")
	f.IntVar(&flags.slots, "slots", 0, "requests that each --upstream works on at once (default: what the server says)")
	f.StringVar(&flags.binary, "envoy", "",
		"the Envoy binary (default: $SLUICE_ENVOY, then envoy in $PATH, then .tools/envoy, then one that is fetched: see sluice envoy)")
	f.StringVar(&flags.models.listen, "listen", defaultListen,
		"address for clients (default: listen of the file; without a file "+defaultListen+")")
	f.StringVar(&flags.models.admin, "admin", defaultAdmin,
		"address of the operator's page (default: admin of the file; without a file "+defaultAdmin+")")
	addPeersFlag(c)
	f.Lookup("listen").DefValue, f.Lookup("admin").DefValue = "", "" // the texts say it
	f.BoolVar(&flags.models.print, "print", false, "print the configuration file for the models hf:… and ollama:…, and run nothing")
	addForceFlag(c, &flags.force)
	c.MarkFlagsMutuallyExclusive("config", "upstream")
	return c
}

// check returns an error if flags do not belong together.
func (f upFlags) check(cmd *cobra.Command, models []string) error {
	if f.slots != 0 && len(f.upstreams) == 0 {
		return errors.New("--slots is for the servers of --upstream, and there is none: in a file set slots at the server")
	}
	if len(models) > 0 && (f.file != "" || len(f.upstreams) > 0) {
		return errors.New("models on the command line go with neither -c nor --upstream: put all of them into a file (--print writes one)")
	}
	if len(models) == 0 && cmd.Flags().Changed("print") {
		return errors.New("--print is for models on the command line, and there is none")
	}
	return nil
}

// up runs `sluice up`.
func up(cmd *cobra.Command, g *globals, flags upFlags, models []string) error {
	if err := errors.Join(flags.check(cmd, models), refusePipe(flags.file)); err != nil {
		return err
	}
	if flags.models.print {
		file, err := modelsFile(cmd.Context(), cmd.ErrOrStderr(), models, flags.models)
		if err == nil {
			_, err = cmd.OutOrStdout().Write(file)
		}
		return err
	}
	if len(models) == 0 && len(flags.upstreams) == 0 {
		var err error
		if flags.file, err = sayFound(cmd, flags.file); err != nil {
			return err
		}
	}
	if flags.file != "" {
		if _, err := config.LoadWithFields(flags.file, addresses(cmd)); err != nil { // before an Envoy is fetched
			return err
		}
	}
	binary, err := findEnvoy(cmd, flags.binary) // before it asks a hub
	if err != nil {
		return err
	}
	o, cleanUp, err := upOptions(cmd, flags, models)
	if err != nil {
		return err
	}
	o.Force, o.Envoy = flags.force, binary
	err = run(cmd.Context(), g, o)
	if errors.Is(err, gateway.ErrHandedOver) { // the gateway goes on in its state directory
		return nil
	}
	cleanUp()
	return err
}

// addForceFlag adds the flag that sets gateway.Options.Force.
func addForceFlag(c *cobra.Command, force *bool) {
	c.Flags().BoolVar(force, "force", false, "start although the file has none of the models whose replicas run, and end them")
}

// addListenFlag adds the flag that addresses reads. A file may be valid by it alone: without
// authentication the address must not be reachable from other machines.
func addListenFlag(c *cobra.Command) {
	c.Flags().String("listen", "", "address for clients, in the place of listen in the file")
}

// addPeersFlag adds the flag that addresses reads. Pods that share one file differ by it.
func addPeersFlag(c *cobra.Command) {
	c.Flags().String("peers", "", "address at which the other gateways reach this one, in the place of peers in the file")
}

// addAddressFlags adds all flags that addresses reads. The commands that look at a file before
// serve have the same ones.
func addAddressFlags(c *cobra.Command) {
	addListenFlag(c)
	c.Flags().String("admin", "", "address of the operator's page, in the place of admin in the file")
	addPeersFlag(c)
}

func newServeCommand(g *globals) *cobra.Command {
	var file string
	var force bool
	c := &cobra.Command{
		Use:   "serve [-c FILE]",
		Short: "Run the gateway beside an Envoy that someone else runs (see bootstrap)",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := refusePipe(file); err != nil {
				return err
			}
			c, err := loadOrFound(cmd, file, addresses(cmd))
			if err != nil {
				return err
			}
			if err := run(cmd.Context(), g, gateway.Options{Config: c, Force: force}); !errors.Is(err, gateway.ErrHandedOver) {
				return err
			}
			return nil
		},
	}
	f := c.Flags()
	f.StringVarP(&file, "config", "c", "", "the configuration file (default: ./"+foundFile+")")
	addAddressFlags(c)
	addForceFlag(c, &force)
	return c
}

// refusePipe returns an error for a file that can be read only once. A gateway reads its file when
// it changes, and so does the process that a restart starts.
func refusePipe(file string) error {
	if info, err := os.Stat(file); err != nil || info.Mode()&fs.ModeNamedPipe == 0 {
		return nil //nolint:nilerr // the reading of the file says what is wrong
	}
	return fmt.Errorf("%s is a pipe, and a gateway reads its file again later: write a file, and name it by -c", file)
}

// addresses returns the addresses of the flags --listen, --admin and --peers by their fields, as
// far as the command has them.
func addresses(cmd *cobra.Command) map[string]string {
	fields := map[string]string{}
	for _, name := range []string{"listen", "admin", "peers"} {
		if f := cmd.Flags().Lookup(name); f != nil && f.Changed {
			fields[name] = withoutBrackets(f.Value.String())
		}
	}
	return fields
}

// withoutBrackets takes the brackets off the IPv4 address of a host:port. The arguments of a pod
// have [$(POD_IP)]:PORT, which is then right for both families.
func withoutBrackets(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return address // the check of the field says what is wrong
	}
	return net.JoinHostPort(host, port)
}

// run runs a gateway with the logger that the flags configure. On a terminal it has a console, and
// the log then has only what the console does not show.
func run(ctx context.Context, g *globals, o gateway.Options) error {
	screen := console.Open(os.Stderr)
	if screen != nil && g.logFormat != telemetry.FormatJSON {
		o.Console = console.New(screen)
		g.logLevel = cmp.Or(g.logLevel, "warn")
	}
	log, err := g.logger(screen)
	if err != nil {
		return err
	}
	defer log.Sync() //nolint:errcheck // stderr may not be syncable
	o.Log, o.Version = log, version()
	return gateway.Run(ctx, o)
}

// upOptions reads the configuration file. Without a file it creates a configuration for the models
// of the command line, for the upstreams or, if there are neither, for the quick start. Such a
// configuration has a temporary state directory, which cleanUp removes.
func upOptions(cmd *cobra.Command, flags upFlags, models []string) (o gateway.Options, cleanUp func(), err error) {
	var c *config.Config
	switch {
	case flags.file != "":
		c, err := config.LoadWithFields(flags.file, addresses(cmd))
		return gateway.Options{Config: c}, func() {}, err
	case len(models) > 0:
		c, err = modelsConfig(cmd.Context(), cmd.OutOrStdout(), models, flags.models)
	case len(flags.upstreams) > 0:
		c, err = config.ForUpstreams(flags.upstreams, flags.slots)
	default:
		c, err = config.Parse("quick start", examples.Quickstart)
	}
	if err == nil && len(models) == 0 { // models have the addresses already
		c, err = c.WithFields(addresses(cmd))
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
	if err != nil {
		return "", fmt.Errorf("temporary state directory: %w: set TMPDIR to a directory that this user may write, or name a file with a state_dir by -c", err)
	}
	return filepath.Join(dir, state), nil
}

package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/sluice-gateway/sluice/envoy"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/gateway"
)

// bootstrapFlags are the flags of sluice bootstrap.
type bootstrapFlags struct {
	file, out string
	beside    bool
	elsewhere envoy.ElsewhereConfig
}

func newBootstrapCommand() *cobra.Command {
	var f bootstrapFlags
	c := &cobra.Command{
		Use:   "bootstrap -c FILE",
		Short: "Print the bootstrap for an Envoy that someone else runs",
		Long: `Print the bootstrap for an Envoy that someone else runs (docs/external-envoy.md).

Without control.listen in the file, or with --beside, the Envoy runs on this host beside
sluice serve and uses the unix sockets of its state directory. Otherwise the Envoy may run on any
host. It then needs three files: envoy.json, which is printed, and certificate.json and
authority.json beside it. --out writes all three.

The standard error says with which flags Envoy must start. Its drain time is one minute longer than
the longest stream.max_duration of the file: a listener that changes cuts streams after that time.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := config.Load(f.file)
			if err != nil {
				return err
			}
			b, err := f.bootstrap(c)
			if err != nil {
				return err
			}
			if _, err = cmd.OutOrStdout().Write(b); err != nil {
				return err
			}
			seconds := math.Ceil(gateway.DrainTime(c).Seconds())
			fmt.Fprintf(cmd.ErrOrStderr(), "sluice: start this Envoy with --disable-hot-restart --drain-time-s %.0f\n", seconds)
			return nil
		},
	}
	flags := c.Flags()
	flags.StringVarP(&f.file, "config", "c", "", "the configuration file")
	flags.BoolVar(&f.beside, "beside", false, "for an Envoy on this host, although the file has control.listen")
	flags.StringVar(&f.out, "out", "", "the folder to write the three files of an Envoy elsewhere to, instead of printing one")
	flags.StringVar(&f.elsewhere.Dir, "dir", "", "the folder of the files on the host of the Envoy (default: --out, else "+envoy.DefaultDir+")")
	flags.StringVar(&f.elsewhere.Certificates, "certificates", "", "the folder of tls.crt, tls.key and ca.crt there (default "+envoy.DefaultCertificates+")")
	flags.StringVar(&f.elsewhere.Listen, "listen", "", "the address on which this Envoy serves clients (default: listen of the file)")
	flags.StringVar(&f.elsewhere.NodeID, "node", "", "the name of this Envoy in logs (default sluice)")
	flags.StringVar(&f.elsewhere.AdminSocket, "envoy-admin", "", "the path of a unix socket for Envoy's admin interface (default: none)")
	_ = c.MarkFlagRequired("config")
	return c
}

// bootstrap returns what to print. It writes the files of --out, and then prints nothing.
func (f *bootstrapFlags) bootstrap(c *config.Config) ([]byte, error) {
	if f.beside || c.Control.Listen == "" {
		if f.out != "" {
			return nil, errors.New("--out needs control.listen in the file, and no --beside")
		}
		return gateway.Bootstrap(c)
	}
	if f.out != "" && f.elsewhere.Dir == "" {
		var err error
		if f.elsewhere.Dir, err = filepath.Abs(f.out); err != nil {
			return nil, err
		}
	}
	files, err := gateway.BootstrapElsewhere(c, f.elsewhere)
	if err != nil || f.out == "" {
		return files.Bootstrap, err
	}
	if err := os.MkdirAll(f.out, 0o755); err != nil {
		return nil, err
	}
	for _, file := range []struct {
		name    string
		content []byte
	}{
		{envoy.CertificateFile, files.Certificate}, {envoy.AuthorityFile, files.Authority}, {envoy.BootstrapFile, files.Bootstrap},
	} {
		if err := os.WriteFile(filepath.Join(f.out, file.name), file.content, 0o644); err != nil { //nolint:gosec // nothing in it is secret
			return nil, err
		}
	}
	return nil, nil
}

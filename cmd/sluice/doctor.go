package main

import (
	"errors"
	"fmt"
	"io"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/sluice-gateway/sluice/envoy/filter"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/doctor"
	"github.com/sluice-gateway/sluice/internal/gateway"
)

func newDoctorCommand() *cobra.Command {
	var file, binary string
	c := &cobra.Command{
		Use:   "doctor [-c FILE]",
		Short: "Try what only trying shows: programs, ports, directories, weights, Redis, upstreams, signing keys, GPUs and Envoy",
		Long: `Try what only trying shows: programs, ports, directories, weights, Redis, upstreams, signing keys, GPUs and Envoy.

Each line is ok, warning or fault. The command fails if there is a fault. It changes nothing. While
a gateway runs with the file, its own ports are in use, and doctor says so.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadOrFound(cmd, file, addresses(cmd))
			var faults config.Faults
			if errors.As(err, &faults) {
				fmt.Fprintln(cmd.OutOrStdout(), faults)
				return fmt.Errorf("the file has faults, which come first: %d", len(faults))
			}
			if err != nil {
				return err
			}
			if err := gateway.CheckFilterVariable(); err != nil {
				return err
			}
			compiled, _ := filter.File(runtime.GOARCH)
			findings := doctor.Examine(cmd.Context(), doctor.Options{Config: c, Envoy: binary, Filter: compiled, AskedBy: gateway.WantedFilter(c)})
			return writeFindings(cmd.OutOrStdout(), findings)
		},
	}
	c.Flags().StringVarP(&file, "config", "c", "", "the configuration file (default: ./"+foundFile+")")
	c.Flags().StringVar(&binary, "envoy", "", "the Envoy binary, as for up")
	addAddressFlags(c)
	return c
}

// writeFindings writes one line for each finding, and returns an error if one is a fault.
func writeFindings(w io.Writer, findings []doctor.Finding) error {
	faults := 0
	for _, f := range findings {
		fmt.Fprintf(w, "%-7s  %s: %s\n", f.Level, f.What, f.Says)
		if f.Hint != "" {
			fmt.Fprintf(w, "         → %s\n", f.Hint)
		}
		if f.Level == doctor.Fault {
			faults++
		}
	}
	if faults > 0 {
		return fmt.Errorf("doctor has found faults: %d", faults)
	}
	return nil
}

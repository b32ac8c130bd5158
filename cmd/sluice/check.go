package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sluice-gateway/sluice/engines/kubernetes"
	"github.com/sluice-gateway/sluice/internal/config"
)

func newCheckCommand() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   "check -c FILE",
		Short: "Print every fault of a configuration file with its line",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := config.Load(file)
			var faults config.Faults
			if err == nil {
				faults = c.CheckKubernetes(kubernetes.Check)
			} else if !errors.As(err, &faults) {
				return err
			}
			if len(faults) > 0 {
				fmt.Fprintln(cmd.OutOrStdout(), faults)
				return fmt.Errorf("%s: faults: %d", file, len(faults))
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: ok\n", file)
			return err
		},
	}
	c.Flags().StringVarP(&file, "config", "c", "", "the configuration file")
	_ = c.MarkFlagRequired("config")
	return c
}

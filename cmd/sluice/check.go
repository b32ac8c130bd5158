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
		Use:   "check [FILE]...",
		Short: "Print every fault of configuration files with its line; `sluice doctor` tries what only trying shows",
		RunE: func(cmd *cobra.Command, files []string) error {
			if file != "" {
				files = append(files, file)
			}
			if len(files) == 0 {
				found, err := sayFound(cmd, "")
				if err != nil || found == "" {
					return errors.Join(err, errNoFile())
				}
				files = []string{found}
			}
			var failed []error
			for _, name := range files {
				failed = append(failed, checkFile(cmd, name))
			}
			return errors.Join(failed...)
		},
	}
	c.Flags().StringVarP(&file, "config", "c", "", "a configuration file (default: ./"+foundFile+")")
	addAddressFlags(c)
	return c
}

// checkFile prints the faults of one file, or that it has none.
func checkFile(cmd *cobra.Command, file string) error {
	c, err := config.LoadWithFields(file, addresses(cmd))
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
}

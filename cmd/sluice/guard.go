package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-gateway/sluice/internal/process"
)

// newGuardCommand returns "sluice guard". The guard is a small process that Sluice starts by
// itself. When the gateway has crashed and no other process claims the state directory within the
// grace period, the guard stops the processes that the gateway left running.
func newGuardCommand(g *globals) *cobra.Command {
	var dir string
	var grace time.Duration
	c := &cobra.Command{
		Use:    "guard",
		Short:  "Stop the processes of a state directory that no gateway claims",
		Args:   cobra.NoArgs,
		Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := g.logger(nil)
			if err != nil {
				return err
			}
			return process.RunGuard(cmd.Context(), dir, grace, log)
		},
	}
	c.Flags().StringVar(&dir, "state-dir", "", "the state directory")
	c.Flags().DurationVar(&grace, "grace", time.Minute, "how long to wait for a gateway to claim the state directory")
	return c
}

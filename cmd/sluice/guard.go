package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-gateway/sluice/internal/process"
)

// newGuardCommand is the small process that ends what a crashed gateway left behind, unless somebody claims it in time. Sluice
// starts it by itself.
func newGuardCommand(g *globals) *cobra.Command {
	var dir string
	var grace time.Duration
	c := &cobra.Command{
		Use:    "guard",
		Short:  "End the processes of a state directory that nobody claims",
		Args:   cobra.NoArgs,
		Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := g.logger()
			if err != nil {
				return err
			}
			return process.RunGuard(cmd.Context(), dir, grace, log)
		},
	}
	c.Flags().StringVar(&dir, "state-dir", "", "the state directory")
	c.Flags().DurationVar(&grace, "grace", time.Minute, "how long to wait for somebody to claim it")
	return c
}

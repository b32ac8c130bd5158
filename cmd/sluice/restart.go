package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-gateway/sluice/internal/gateway"
)

func newRestartCommand() *cobra.Command {
	var access adminAccess
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "restart [-c FILE]",
		Short: "Upgrade a running gateway: start the installed binary beside it, while all streams go on",
		Long: `Start the installed binary beside the running gateway and have it take over.

The new process adopts Envoy and the replicas. The old one carries on the managed streams, WebSockets
and gRPC calls that it has, at most for upgrade_timeout. If the new process does not start, the old one
goes on, and this command fails with the reason.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadOrFound(cmd, access.file)
			if err != nil {
				return err
			}
			admin, err := access.client()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			return gateway.Restart(ctx, c, admin, cmd.OutOrStdout())
		},
	}
	c.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long to wait until the gateway is ready again")
	access.addFileFlags(c)
	return c
}

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-gateway/sluice/internal/adminclient"
	"github.com/sluice-gateway/sluice/internal/gateway"
)

func newRestartCommand() *cobra.Command {
	var access adminAccess
	var admin string
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
			fields := addresses(cmd)
			delete(fields, "admin") // that of the running gateway, which may be a URL
			c, err := loadOrFound(cmd, access.file, fields)
			if err != nil {
				return err
			}
			next, err := access.client()
			if err != nil {
				return err
			}
			running := next
			if admin != "" {
				running.Address = admin
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			err = gateway.Restart(ctx, c, running, next, cmd.OutOrStdout())
			if unreachable := new(adminclient.UnreachableError); errors.As(err, &unreachable) && admin == "" {
				err = fmt.Errorf("%w; if the running gateway has another admin address than the file, name it by --admin", err)
			}
			return err
		},
	}
	c.Flags().StringVar(&admin, "admin", "", "address of the admin listener of the running gateway, if the file has another one")
	addListenFlag(c)
	c.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long to wait until the gateway is ready again")
	access.addFileFlags(c)
	return c
}

package main

import (
	"github.com/spf13/cobra"

	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/gateway"
)

func newReloadCommand() *cobra.Command {
	var file, tokenFile string
	var force bool
	c := &cobra.Command{
		Use:   "reload -c FILE [--force]",
		Short: "Have a running gateway read its configuration file now",
		Long: `Have a running gateway read its configuration file now.

A gateway reads its file by itself when it changes. It holds a file back that would remove every
tenant, or every model that has replicas: --force confirms such a file.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := config.Load(file)
			if err != nil {
				return err
			}
			token, err := adminToken(tokenFile)
			if err != nil {
				return err
			}
			return gateway.Reload(cmd.Context(), c, token, force)
		},
	}
	c.Flags().StringVarP(&file, "config", "c", "", "the configuration file of the running gateway")
	c.Flags().BoolVar(&force, "force", false, "put the file in force although it removes every tenant, every model that has replicas, or every moderation rule")
	addAdminTokenFlag(c, &tokenFile)
	_ = c.MarkFlagRequired("config") // fails only for a flag that is not defined
	return c
}

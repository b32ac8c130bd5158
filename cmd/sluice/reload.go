package main

import (
	"net/http"

	"github.com/spf13/cobra"
)

func newReloadCommand() *cobra.Command {
	var access adminAccess
	var force bool
	c := &cobra.Command{
		Use:   "reload [-c FILE] [--force]",
		Short: "Have a running gateway read its configuration file now",
		Long: `Have a running gateway read its configuration file now.

A gateway reads its file by itself when it changes. It holds a file back that would remove every
tenant, every model that has replicas, or every moderation rule: --force confirms such a file.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := access.client()
			if err != nil {
				return err
			}
			return client.Call(cmd.Context(), http.MethodPost, "/api/v1/reload", map[string]bool{"force": force}, nil)
		},
	}
	c.Flags().BoolVar(&force, "force", false, "put the file in force although it removes every tenant, every model that has replicas, or every moderation rule")
	access.addFlags(c)
	return c
}

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/config"
)

func newAdminCommand() *cobra.Command {
	admin := &cobra.Command{Use: "admin", Short: "Create tokens for the admin listener"}
	var role string
	token := &cobra.Command{
		Use:   "token NAME",
		Short: "Print a new token for the admin listener, and its hash for the configuration file",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if r := config.AdminRole(role); r != config.AdminViewer && r != config.AdminOperator {
				return fmt.Errorf("--role is %q: use viewer or operator", role)
			}
			k := authz.NewKey()
			_, err := fmt.Fprintf(cmd.OutOrStdout(), `token (shown only once): %s

admin_auth:
  tokens:
    - {name: %s, role: %s, hash: "%s"}
`, k.Secret, args[0], role, k.Hash)
			return err
		},
	}
	token.Flags().StringVar(&role, "role", string(config.AdminOperator), "viewer (reads) or operator (reads and changes)")
	admin.AddCommand(token)
	return admin
}

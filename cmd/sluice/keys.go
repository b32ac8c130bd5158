package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sluice-gateway/sluice/authz"
)

func newKeysCommand() *cobra.Command {
	keys := &cobra.Command{Use: "keys", Short: "Create API keys"}
	var tenant string
	create := &cobra.Command{
		Use:   "new --tenant NAME",
		Short: "Print a new API key, and its hash for the configuration file",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if tenant == "" {
				return errors.New("keys new: --tenant is empty: set it to the name of the tenant")
			}
			k := authz.NewKey()
			_, err := fmt.Fprintf(cmd.OutOrStdout(), `key (shown only once): %s

tenants:
  - name: %s
    keys: ["%s"]  # id %s
    models: ["*"]
`, k.Secret, tenant, k.Hash, k.ID)
			return err
		},
	}
	create.Flags().StringVar(&tenant, "tenant", "", "the tenant's name")
	keys.AddCommand(create)
	return keys
}

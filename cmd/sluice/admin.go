package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/config"
)

// adminTokenVariable is the environment variable that may hold the token for the admin listener.
const adminTokenVariable = "SLUICE_ADMIN_TOKEN"

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

// addAdminTokenFlag adds the flag by which a command gets the token for the admin listener.
func addAdminTokenFlag(c *cobra.Command, file *string) {
	c.Flags().StringVar(file, "admin-token-file", "", "file with a token of admin_auth (default: the variable "+adminTokenVariable+")")
}

// adminToken returns the token for the admin listener, from the file or from the environment
// variable. It is empty if there is none.
func adminToken(file string) (string, error) {
	if file == "" {
		return os.Getenv(adminTokenVariable), nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("--admin-token-file: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}

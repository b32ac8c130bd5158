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

// adminAccess is what a command needs to reach the admin listener of a running gateway: the file of
// the gateway, and a token.
type adminAccess struct{ file, tokenFile string }

// addFlags adds the flags of both.
func (a *adminAccess) addFlags(c *cobra.Command) {
	c.Flags().StringVarP(&a.file, "config", "c", "", "the configuration file of the running gateway")
	c.Flags().StringVar(&a.tokenFile, "admin-token-file", "", "file with a token of admin_auth (default: the variable "+adminTokenVariable+")")
	_ = c.MarkFlagRequired("config") // fails only for a flag that is not defined
}

// load returns the configuration of the file, and the token from its file or from the environment
// variable. The token is empty if there is none.
func (a *adminAccess) load() (*config.Config, string, error) {
	c, err := config.Load(a.file)
	if err != nil {
		return nil, "", err
	}
	if a.tokenFile == "" {
		return c, os.Getenv(adminTokenVariable), nil
	}
	data, err := os.ReadFile(a.tokenFile)
	if err != nil {
		return nil, "", fmt.Errorf("--admin-token-file: %w", err)
	}
	return c, strings.TrimSpace(string(data)), nil
}

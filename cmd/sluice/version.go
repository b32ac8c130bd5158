package main

import (
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/sluice-gateway/sluice/envoy"
)

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of Sluice, and the version of Envoy it is tested with",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "sluice %s\ntested with Envoy %s\n", version(), envoy.TestedVersion)
			return err
		},
	}
}

// release is the version that `make build` sets through the linker: the output of git describe. It
// is empty in other builds.
var release string

// version returns release. If release is empty, it returns the version that the Go tool recorded
// for the module. That is a tag, a pseudo-version of the commit, or "devel" with the commit if it
// is known.
func version() string {
	if release != "" {
		return release
	}
	info, ok := debug.ReadBuildInfo()
	switch {
	case !ok || info.Main.Version == "":
		return "unknown"
	case info.Main.Version != "(devel)":
		return info.Main.Version
	}
	text := "devel"
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			text += "-" + s.Value[:min(len(s.Value), 12)]
		case s.Key == "vcs.modified" && s.Value == "true":
			text += "-modified"
		}
	}
	return text
}

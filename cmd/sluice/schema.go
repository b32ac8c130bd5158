package main

import (
	"github.com/spf13/cobra"

	"github.com/sluice-gateway/sluice/examples"
)

func newSchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of the configuration file, for editors",
		Long: "Print the JSON Schema of the configuration file (draft 7). An editor with a YAML language server\n" +
			"completes and checks a file whose first line is\n\n    # yaml-language-server: $schema=PATH\n\n" +
			"PATH is where the schema was written to, relative to the file.",
		Example: "  sluice schema > sluice.schema.json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := cmd.OutOrStdout().Write(examples.Schema)
			return err
		},
	}
}

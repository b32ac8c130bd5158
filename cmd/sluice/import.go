package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/sluice-gateway/sluice/internal/migrate"
)

func newImportCommand() *cobra.Command {
	var kind string
	c := &cobra.Command{
		Use:   "import FILE",
		Short: "Print a configuration file made from one of LiteLLM, llama-swap or KubeAI",
		Long: `Print a configuration file of Sluice that is made from the configuration of another gateway.
FILE is the config.yaml of LiteLLM or of llama-swap, or has Model objects of KubeAI as
kubectl get models -o yaml prints them. FILE - is standard input. What has no counterpart becomes a comment.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := readInput(cmd.InOrStdin(), args[0])
			if err != nil {
				return err
			}
			file, err := migrate.Convert(migrate.Kind(kind), text)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			if _, err := io.WriteString(cmd.OutOrStdout(), file.Text); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.ErrOrStderr(), "sluice: %d comments say what to do by hand; then run sluice check -c on the file\n", file.Open)
			return err
		},
	}
	c.Flags().StringVar(&kind, "from", "", "litellm, llama-swap or kubeai (default: found by the fields of the file)")
	return c
}

// readInput reads a file, or standard input if the path is -.
func readInput(stdin io.Reader, path string) ([]byte, error) {
	if path == "-" {
		return io.ReadAll(stdin)
	}
	return os.ReadFile(path)
}

package main

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-gateway/sluice/internal/console"
)

// clearScreen moves the cursor home and clears the screen below it.
const clearScreen = "\x1b[H\x1b[2J"

func newTopCommand() *cobra.Command {
	var flags viewFlags
	interval := 2 * time.Second
	c := &cobra.Command{
		Use:   "top [--interval 2s]",
		Short: "Show models and replicas again and again, until Ctrl-C",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if interval < 100*time.Millisecond {
				return fmt.Errorf("--interval is %v: use at least 100ms", interval)
			}
			return top(cmd, &flags, interval)
		},
	}
	flags.adminAccess.addFlags(c)
	flags.output = outputTable
	c.Flags().DurationVar(&interval, "interval", interval, "time between two pictures")
	return c
}

// top prints picture after picture. On a terminal each replaces the one before.
func top(cmd *cobra.Command, flags *viewFlags, interval time.Duration) error {
	terminal := console.Open(os.Stdout) != nil
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		picture, err := topPicture(cmd, flags)
		if cmd.Context().Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if terminal {
			picture = clearScreen + picture
		}
		if _, err := fmt.Fprintln(cmd.OutOrStdout(), picture); err != nil {
			return err
		}
		select {
		case <-cmd.Context().Done():
			return nil
		case <-tick.C:
		}
	}
}

// topPicture returns the status, the models and the replicas as they are now.
func topPicture(cmd *cobra.Command, flags *viewFlags) (string, error) {
	client, err := flags.open()
	if err != nil {
		return "", err
	}
	var text bytes.Buffer
	var status gatewayStatus
	if err := client.Call(cmd.Context(), http.MethodGet, "/api/v1/status", nil, &status); err != nil {
		return "", err
	}
	if err := statusText(cmd, client, status, &text); err != nil {
		return "", err
	}
	var list replicaList
	if err := client.Call(cmd.Context(), http.MethodGet, "/api/v1/replicas", nil, &list); err != nil {
		return "", err
	}
	fmt.Fprintln(&text)
	writeReplicas(&text, list.Replicas)
	return text.String(), nil
}

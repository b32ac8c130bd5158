package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"
)

func newLogsCommand() *cobra.Command {
	var access adminAccess
	var follow bool
	var search string
	tail := 200
	c := &cobra.Command{
		Use:   "logs REPLICA [-f] [--tail N] [--search TEXT]",
		Short: "Print the log of a replica's engine, without secrets",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := access.client()
			if err != nil {
				return err
			}
			query := url.Values{"tail": {strconv.Itoa(tail)}, "follow": {strconv.FormatBool(follow)}}
			if search != "" {
				query.Set("search", search)
			}
			resp, err := client.Do(cmd.Context(), http.MethodGet, fmt.Sprintf(replicaPath, url.PathEscape(args[0]))+"log?"+query.Encode(), nil)
			if err != nil {
				return err
			}
			defer resp.Body.Close() //nolint:errcheck // the body was read
			n, err := io.Copy(cmd.OutOrStdout(), resp.Body)
			if cmd.Context().Err() != nil { // Ctrl-C
				return nil
			}
			if n == 0 && err == nil && tail > 0 {
				fmt.Fprintln(cmd.ErrOrStderr(), noLine(args[0], search))
			}
			return err
		},
	}
	access.addFlags(c)
	c.ValidArgsFunction = access.completeReplicas()
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on with the lines that come")
	c.Flags().IntVar(&tail, "tail", tail, "how many of the last lines are printed first")
	c.Flags().StringVar(&search, "search", "", "only lines that contain this text, in any case")
	return c
}

// noLine says that a log has no line, or none with the text of a search.
func noLine(replica, search string) string {
	if search == "" {
		return fmt.Sprintf("The log of %s has no line.", printable(replica))
	}
	return fmt.Sprintf("No line with %q was found in the log of %s.", search, printable(replica))
}

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
			_, err = io.Copy(cmd.OutOrStdout(), resp.Body)
			if cmd.Context().Err() != nil { // Ctrl-C
				return nil
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

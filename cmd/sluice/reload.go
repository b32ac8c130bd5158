package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-gateway/sluice/internal/adminclient"
)

func newReloadCommand() *cobra.Command {
	var access adminAccess
	var force, dryRun bool
	c := &cobra.Command{
		Use:   "reload [-c FILE] [--dry-run [NEWFILE] | --force]",
		Short: "Have a running gateway read its configuration file now",
		Long: `Have a running gateway read its configuration file now.

A gateway reads its file by itself when it changes. It holds a file back that would remove every
tenant, every model that has replicas, or every moderation rule: --force confirms such a file.

With --dry-run it prints what would change and which replicas would be replaced, and nothing is
changed. NEWFILE is a file with the content to be; without it, the gateway's own file is compared.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && !dryRun {
				return errors.New("a file is for --dry-run alone: a gateway reads the file that it was started with")
			}
			client, err := access.client()
			if err != nil {
				return err
			}
			if dryRun {
				return showReload(cmd, client, args)
			}
			return reload(cmd, client, force)
		},
	}
	c.Flags().BoolVar(&force, "force", false, "put the file in force although it removes every tenant, every model that has replicas, or every moderation rule")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "print what a reload would change and which replicas it would replace, and change nothing")
	c.MarkFlagsMutuallyExclusive("force", "dry-run")
	access.addFlags(c)
	return c
}

// reload has the gateway read its file, and prints that it has, and what a restart is needed for.
func reload(cmd *cobra.Command, client adminclient.Client, force bool) error {
	if err := client.Call(cmd.Context(), http.MethodPost, "/api/v1/reload", map[string]bool{"force": force}, nil); err != nil {
		return err
	}
	var s gatewayStatus
	_ = client.Call(cmd.Context(), http.MethodGet, "/api/v1/status", nil, &s) // the reload itself has succeeded
	out := cmd.OutOrStdout()
	fmt.Fprintln(out, printable(cmp.Or(s.Config.Path, "The file")+" is in force.")) // -c may name another file with the same admin
	writeRestart(out, s.Config.NeedsRestart)
	return nil
}

// writeRestart prints the fields whose new values a restart is needed for.
func writeRestart(w io.Writer, fields []string) {
	if len(fields) > 0 {
		fmt.Fprintln(w, printable("A restart is needed for: "+strings.Join(fields, ", ")))
	}
}

// showReload prints what a reload would change: with the content of a file, or as the gateway's own
// file is now.
func showReload(cmd *cobra.Command, client adminclient.Client, files []string) error {
	body := map[string]string{}
	if len(files) > 0 {
		data, err := os.ReadFile(files[0])
		if err != nil {
			return err
		}
		body["content"] = string(data)
	}
	var plan struct {
		Changed []struct {
			What, Name, Change     string
			Fields, Replaces, Ends []string
		}
		RestartRequired []string `json:"restart_required"`
		NeedsForce      string   `json:"needs_force"`
	}
	if err := client.Call(cmd.Context(), http.MethodPost, "/api/v1/reload?dry_run=true", body, &plan); err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	for _, c := range plan.Changed {
		line := strings.TrimSpace(c.What+" "+c.Name) + ": " + c.Change
		for _, more := range []struct {
			says string
			list []string
		}{{" ", c.Fields}, {", replaces ", c.Replaces}, {", ends ", c.Ends}} {
			if len(more.list) > 0 {
				line += more.says + strings.Join(more.list, ", ")
			}
		}
		fmt.Fprintln(out, printable(line))
	}
	if len(plan.Changed) == 0 {
		fmt.Fprintln(out, "The file says what is in force.")
	}
	writeRestart(out, plan.RestartRequired)
	if plan.NeedsForce != "" {
		fmt.Fprintln(out, printable("It needs --force: "+plan.NeedsForce))
	}
	return nil
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-gateway/sluice/internal/weights"
)

// fetchFlags are the flags of the fetch command.
type fetchFlags struct {
	source weights.Source
	// link is the name of a link in the cache directory to what was fetched. Empty: none is made.
	link string
	// listen is the address on which GET /progress is served meanwhile. Empty: it is not served.
	listen string
}

func newFetchCommand() *cobra.Command {
	var flags fetchFlags
	cmd := &cobra.Command{
		Use:   "fetch ORG/NAME",
		Short: "Fetch the weights of a model from a hub into a directory, and print where they are",
		Long: `Fetch the weights of a model from a hub into a directory, and print where they are.

The command goes on where an earlier fetch broke off, and checks what it got. The variable HF_TOKEN
has the token for the hub. The loaders of weights on Kubernetes run this command.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			flags.source.Repository, flags.source.Token = args[0], os.Getenv("HF_TOKEN")
			path, err := flags.run(cmd.Context())
			if err == nil {
				_, err = fmt.Fprintln(cmd.OutOrStdout(), path)
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&flags.source.CacheDir, "cache-dir", "", "directory of the weights; by default the hub's own cache")
	f.StringVar(&flags.source.Endpoint, "endpoint", "", "URL of the hub or of a mirror; by default $HF_ENDPOINT, else "+weights.DefaultEndpoint)
	f.StringVar(&flags.source.Revision, "revision", "", "branch, tag or commit; by default "+weights.DefaultRevision)
	f.StringVar(&flags.source.File, "file", "", "one file of the repository; by default what an engine needs")
	f.BoolVar(&flags.source.GGUF, "gguf", false, "choose a GGUF file")
	f.StringVar(&flags.link, "link", "", "name of a link in the cache directory: to the snapshot with --file, else to what an engine loads")
	f.StringVar(&flags.listen, "listen", "", "address on which GET /progress is served meanwhile")
	return cmd
}

// run fetches the weights and returns the path of what an engine loads.
func (f fetchFlags) run(ctx context.Context) (string, error) {
	var progress atomic.Pointer[weights.Progress]
	progress.Store(new(weights.Progress))
	if f.listen != "" {
		stop, err := serveProgress(ctx, f.listen, &progress)
		if err != nil {
			return "", err
		}
		defer stop()
	}
	show := progressLines(os.Stderr)
	path, err := new(weights.Fetcher).Fetch(ctx, f.source, func(p weights.Progress) {
		progress.Store(&p)
		show(p)
	})
	if err != nil || f.link == "" {
		return path, err
	}
	return f.linkTo(path)
}

// progressLines returns a func that writes the progress each 10 s. It writes at once that the hub
// does not answer, because the tries after that take a while.
func progressLines(w io.Writer) func(weights.Progress) {
	logged := time.Time{}
	return func(p weights.Progress) {
		if now := time.Now(); now.Sub(logged) >= 10*time.Second || p.Trouble != "" {
			logged = now
			fmt.Fprintln(w, p)
		}
	}
}

// linkTo makes the link and returns the path of what an engine loads, through the link.
func (f fetchFlags) linkTo(path string) (string, error) {
	if f.source.CacheDir == "" {
		return "", errors.New("--link needs --cache-dir")
	}
	link := filepath.Join(f.source.CacheDir, f.link)
	if f.source.File == "" {
		return link, weights.Link(link, path)
	}
	file := filepath.FromSlash(f.source.File)
	snapshot, ok := strings.CutSuffix(path, file)
	if !ok {
		return "", fmt.Errorf("--file %s: the engine loads %s: name that one", f.source.File, filepath.Base(path))
	}
	return filepath.Join(link, file), weights.Link(link, filepath.Clean(snapshot))
}

// serveProgress serves GET /progress until stop is called.
func serveProgress(ctx context.Context, address string, progress *atomic.Pointer[weights.Progress]) (stop func(), err error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /progress", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(progress.Load()) // The client may have gone.
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }() // It ends when stop closes the server.
	return func() { _ = server.Close() }, nil
}

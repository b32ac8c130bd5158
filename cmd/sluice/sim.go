package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-gateway/sluice/internal/sim"
)

// simFlags are the flags of "sluice sim" that are not fields of sim.Config.
type simFlags struct {
	host   string
	port   int
	model  string
	served []string
	fault  string
}

// newSimCommand is "sluice sim": a simulated engine for the quick start, for demonstrations and for tests.
func newSimCommand() *cobra.Command {
	var flags simFlags
	config := sim.Config{Exit: os.Exit}
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Run a simulated inference engine",
		Long: `Run a simulated inference engine that speaks the OpenAI API like vLLM does.

It needs no GPU and no model: it answers in readable sentences made from your own words and keeps time like a real
engine, with a prompt to take in, a batch that slows down as it fills, a prefix cache and a queue. It also breaks on
request: send the header x-sim-fault, or start it with --fault (status=503, cut=3, stall=3:10s, eof=3, exit …).`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runSim(cmd, &flags, config) },
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&flags.host, "host", "127.0.0.1", "address to listen on")
	f.IntVar(&flags.port, "port", 8000, "port to listen on; 0 takes a free one")
	f.StringVar(&flags.model, "model", sim.DefaultModel, "model to pretend to be")
	f.StringSliceVar(&flags.served, "served-model-name", nil, "names that clients use (default: the model)")
	f.StringVar(&config.Name, "name", "", "how the engine calls itself in its answers (default: after its model and port)")
	f.StringVar(&config.APIKey, "api-key", "", "key that clients must send")
	f.IntVar(&config.MaxNumSeqs, "max-num-seqs", sim.DefaultMaxNumSeqs, "sequences worked on at once; more wait")
	f.Float64Var(&config.PrefillRate, "prefill-rate", 8000, "prompt tokens taken in a second; 0 is no limit")
	f.DurationVar(&config.TokenInterval, "token-interval", 20*time.Millisecond, "time per output token at batch size 1; 0 is none")
	f.Float64Var(&config.BatchSlowdown, "batch-slowdown", 0.01, "share by which each further running request slows a token down")
	f.IntVar(&config.CacheTokens, "cache-tokens", sim.DefaultCacheTokens, "size of the prefix cache; 0 is none")
	f.DurationVar(&config.LoadTime, "load-time", 0, "time until /health says 200")
	f.IntVar(&config.EmbeddingDim, "embedding-dim", sim.DefaultEmbeddingDim, "length of embedding vectors")
	f.Uint64Var(&config.Seed, "seed", 0, "varies the answers")
	f.StringVar(&flags.fault, "fault", "", "misbehave on every request, as in slow=50ms,cut=3; exit dies while loading")
	f.DurationVar(&config.KeepAlive, "keep-alive", sim.DefaultKeepAlive, "how long an idle connection is kept")
	f.IntVar(&config.KeepRequests, "keep-requests", sim.DefaultKeepRequests, "requests that GET /sim/requests remembers; 0 is none")
	return cmd
}

// runSim serves until it is told to stop.
func runSim(cmd *cobra.Command, flags *simFlags, config sim.Config) error {
	if config.MaxNumSeqs < 1 || config.EmbeddingDim < 1 {
		return errors.New("--max-num-seqs and --embedding-dim must be at least 1")
	}
	if config.PrefillRate < 0 || config.TokenInterval < 0 || config.BatchSlowdown < 0 || config.LoadTime < 0 {
		return errors.New("--prefill-rate, --token-interval, --batch-slowdown and --load-time must not be negative")
	}
	if config.CacheTokens == 0 { // for sim.Config zero is the default
		config.CacheTokens = -1
	}
	if config.KeepRequests == 0 {
		config.KeepRequests = -1
	}
	fault, err := sim.ParseFault(flags.fault)
	if err != nil {
		return fmt.Errorf("--fault: %w", err)
	}
	config.Fault = fault
	if config.Models = flags.served; len(flags.served) == 0 {
		config.Models = []string{flags.model}
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", net.JoinHostPort(flags.host, strconv.Itoa(flags.port)))
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "simulated engine for %q listens on http://%s\n", config.Models[0], ln.Addr())
	return sim.New(config).Run(ctx, ln)
}

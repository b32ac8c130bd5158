package main

import (
	"cmp"
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

// simFlags holds the flags of "sluice sim" that are not fields of sim.Config.
type simFlags struct {
	host   string
	port   int
	model  string
	served []string
	fault  string
	// cacheTokens is 0 for no limit and -1 for the default.
	cacheTokens int
}

// newSimCommand returns "sluice sim", a simulated engine for the quick start, for demonstrations
// and for tests.
func newSimCommand() *cobra.Command {
	var flags simFlags
	config := sim.Config{Exit: os.Exit}
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Run a simulated inference engine",
		Long: `Run a simulated inference engine that serves the OpenAI API as vLLM does.

The engine needs no GPU and no model. It answers in readable sentences made of the words of the
prompt. Its timing is that of a real engine: it has a prefill, a batch that slows down as it fills,
a prefix cache and a queue. It fails on request: send the header x-sim-fault, or start it with
--fault (status=503, cut=3, stall=3:10s, eof=3, exit …).`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runSim(cmd, &flags, config) },
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&flags.host, "host", "127.0.0.1", "address to listen on")
	f.IntVar(&flags.port, "port", 8000, "port to listen on; 0 picks a free port")
	f.StringVar(&flags.model, "model", sim.DefaultModel, "model to simulate")
	f.StringSliceVar(&flags.served, "served-model-name", nil, "names that clients use (default: the model)")
	f.StringVar(&config.Name, "name", "", "name of the engine in its answers (default: after its model and port)")
	f.StringVar(&config.APIKey, "api-key", "", "key that clients must send")
	f.IntVar(&config.MaxNumSeqs, "max-num-seqs", sim.DefaultMaxNumSeqs, "sequences that run at once; further ones wait")
	f.Float64Var(&config.PrefillRate, "prefill-rate", 8000, "prompt tokens prefilled per second; 0 is no limit")
	f.DurationVar(&config.TokenInterval, "token-interval", 20*time.Millisecond, "time per output token at batch size 1; 0 is none")
	f.Float64Var(&config.BatchSlowdown, "batch-slowdown", 0.01, "share by which each further running request slows down a token")
	f.Float64Var(&config.PrefillSlowdown, "prefill-slowdown", 0, "share by which each decoding request lengthens a prefill")
	f.IntVar(&config.MaxBatchedTokens, "max-num-batched-tokens", sim.DefaultBatchTokens, "tokens in the prefill queue beyond which further sequences wait")
	f.IntVar(&config.BlockSize, "block-size", sim.DefaultBlockSize, "tokens in a block of GPU memory")
	f.IntVar(&flags.cacheTokens, "cache-tokens", -1,
		"GPU memory in tokens, for running sequences and the prefix cache; 0 is no limit and no prefix cache;\n"+
			"-1 is 131072, or 512 for each of --max-num-seqs if that is more")
	f.DurationVar(&config.LoadTime, "load-time", 0, "time until /health answers 200")
	f.IntVar(&config.EmbeddingDim, "embedding-dim", sim.DefaultEmbeddingDim, "length of embedding vectors")
	f.Uint64Var(&config.Seed, "seed", 0, "seed of the answers")
	f.StringVar(&flags.fault, "fault", "", "fault of every request, as in slow=50ms,cut=3; exit ends the engine while it loads")
	f.DurationVar(&config.KeepAlive, "keep-alive", sim.DefaultKeepAlive, "how long an idle connection is kept")
	f.IntVar(&config.KeepRequests, "keep-requests", sim.DefaultKeepRequests, "number of requests that GET /sim/requests lists; 0 is none")
	return cmd
}

// runSim serves until the command's context is cancelled or SIGTERM or SIGINT arrives.
func runSim(cmd *cobra.Command, flags *simFlags, config sim.Config) error {
	if min(config.MaxNumSeqs, config.EmbeddingDim, config.MaxBatchedTokens, config.BlockSize) < 1 {
		return errors.New("--max-num-seqs, --max-num-batched-tokens, --block-size and --embedding-dim must be at least 1")
	}
	if min(config.PrefillRate, config.PrefillSlowdown, config.BatchSlowdown) < 0 || min(config.TokenInterval, config.LoadTime) < 0 {
		return errors.New("--prefill-rate, --prefill-slowdown, --token-interval, --batch-slowdown and --load-time must not be negative")
	}
	switch config.CacheTokens = flags.cacheTokens; flags.cacheTokens { // for sim.Config zero is the default
	case 0:
		config.CacheTokens = -1
	case -1:
		config.CacheTokens = 0
	}
	config.KeepRequests = cmp.Or(config.KeepRequests, -1)
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

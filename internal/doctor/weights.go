package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/weights"
)

// weights looks whether the hub has what Sluice fetches for each model, and whether a folder
// can take it, unless it is here already. With nodes, another machine may fetch it.
func (e *examination) weights(ctx context.Context) {
	if e.Config.Control.Nodes != "" {
		return
	}
	e.each(len(e.Config.Models), func(e *examination, i int) { e.weightsOf(ctx, e.Config.Models[i]) })
}

// weightsOf looks for the weights of a model.
func (e *examination) weightsOf(ctx context.Context, m config.Model) {
	source := e.Config.Weights(m)
	if source == nil {
		return
	}
	what := "weights of model " + m.Name
	if path, ok := weights.Fetched(*source); ok {
		e.ok(what, path)
		return
	}
	dir, err := source.Dir()
	if err == nil {
		_, err = writable(dir)
	}
	if err != nil {
		e.fault(what, err.Error(), "set cache_dir of the registry to a folder that the gateway's user can write")
		return
	}
	says, err := askHub(ctx, *source, cmp.Or(e.patience, tryTimeout))
	if err != nil {
		e.fault(what, err.Error(), "no replica of the model starts until then; a network without the hub needs HTTPS_PROXY, "+
			"endpoint of the registry, or a registry of kind directory")
		return
	}
	e.ok(what, says)
}

// askHub asks the hub what it has of the weights, once.
func askHub(ctx context.Context, source weights.Source, timeout time.Duration) (says string, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	fetcher := weights.Fetcher{Patience: time.Nanosecond}
	listing, err := fetcher.List(ctx, source)
	if errors.Is(err, context.DeadlineExceeded) {
		return "", fmt.Errorf("the hub does not answer within %v", timeout)
	}
	if err != nil {
		return "", err
	}
	selection, err := listing.Select(source)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("not here yet; the hub has %s (files: %d), which the first start fetches",
		weights.FormatBytes(selection.Bytes()), len(selection.Files)), nil
}

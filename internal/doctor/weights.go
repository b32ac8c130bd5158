package doctor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-gateway/sluice/internal/weights"
)

// weights looks whether the hub has what Sluice fetches for each model, and whether a folder
// can take it, unless it is here already. With nodes, another machine may fetch it.
func (e *examination) weights(ctx context.Context) {
	if e.Config.Control.Nodes != "" {
		return
	}
	for _, m := range e.Config.Models {
		source := e.Config.Weights(m)
		if source == nil {
			continue
		}
		what := "weights of model " + m.Name
		if path, ok := weights.Fetched(*source); ok {
			e.ok(what, path)
			continue
		}
		dir, err := source.Dir()
		if err == nil {
			_, err = writable(dir)
		}
		if err != nil {
			e.fault(what, err.Error(), "set cache_dir of the registry to a folder that the gateway's user can write")
			continue
		}
		says, err := askHub(ctx, *source)
		if err != nil {
			e.fault(what, err.Error(), "no replica of the model starts until then; a network without the hub needs HTTPS_PROXY, "+
				"endpoint of the registry, or a registry of kind directory")
			continue
		}
		e.ok(what, says)
	}
}

// askHub asks the hub what it has of the weights, once.
func askHub(ctx context.Context, source weights.Source) (says string, err error) {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	fetcher := weights.Fetcher{Patience: time.Nanosecond}
	listing, err := fetcher.List(ctx, source)
	if errors.Is(err, context.DeadlineExceeded) {
		return "", fmt.Errorf("the hub does not answer within %v", tryTimeout)
	}
	if err != nil {
		return "", err
	}
	selection, err := listing.Select(source)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("not here yet; the hub has %s in %d files, which the first start fetches",
		weights.FormatBytes(selection.Bytes()), len(selection.Files)), nil
}

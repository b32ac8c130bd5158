package kubernetes

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"go.uber.org/zap"
)

// health holds the current errors of a cluster and logs when an error appears or disappears.
type health struct {
	log *zap.Logger

	mu sync.Mutex
	// errors holds error texts by the operation that failed. Guarded by mu.
	errors map[string]string
}

func newHealth(log *zap.Logger) *health { return &health{log: log, errors: map[string]string{}} }

// renewLease is the write of the gateway's lease, which shows whether the API is reachable.
const renewLease = "renew the gateway's lease"

// set records the result of an operation.
func (h *health) set(what string, err error) {
	if err != nil {
		h.fail(what, err)
	} else {
		h.clear(what)
	}
}

func (h *health) fail(what string, err error) {
	h.mu.Lock()
	_, known := h.errors[what]
	h.errors[what] = err.Error()
	h.mu.Unlock()
	if !known {
		h.log.Warn("Kubernetes operation failed", zap.String("operation", what), zap.Error(err))
	}
}

func (h *health) clear(what string) {
	h.mu.Lock()
	_, known := h.errors[what]
	delete(h.errors, what)
	h.mu.Unlock()
	if known {
		h.log.Info("Kubernetes operation recovered", zap.String("operation", what))
	}
}

// problem returns the current errors, separated by "; ".
func (h *health) problem() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []string
	for _, what := range slices.Sorted(maps.Keys(h.errors)) {
		all = append(all, what+": "+h.errors[what])
	}
	return strings.Join(all, "; ")
}

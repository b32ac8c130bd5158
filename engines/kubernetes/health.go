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
	// reachable is true if the last write of the gateway's lease succeeded. Guarded by mu.
	reachable bool
	// errors holds error texts by the operation that failed. Guarded by mu.
	errors map[string]string
}

func newHealth(log *zap.Logger) *health { return &health{log: log, errors: map[string]string{}} }

const renewLease = "renew the gateway's lease"

// setReachable records the result of writing the gateway's lease, which shows whether the API is
// reachable.
func (h *health) setReachable(err error) {
	if err != nil {
		h.fail(renewLease, err)
	} else {
		h.clear(renewLease)
	}
	h.mu.Lock()
	h.reachable = err == nil
	h.mu.Unlock()
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

func (h *health) state() (reachable bool, problem string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []string
	for _, what := range slices.Sorted(maps.Keys(h.errors)) {
		all = append(all, what+": "+h.errors[what])
	}
	return h.reachable, strings.Join(all, "; ")
}

package kubernetes

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"go.uber.org/zap"
)

// health is what goes wrong in a place. A change is logged, here and nowhere else.
type health struct {
	log *zap.Logger

	mu sync.Mutex
	// reachable: the gateway's lease was written last; guarded by mu
	reachable bool
	// problems by what was tried; guarded by mu
	errors map[string]string
}

func newHealth(log *zap.Logger) *health { return &health{log: log, errors: map[string]string{}} }

const renewLease = "renew the gateway's lease"

// reach notes how the last renewal went, which is what tells whether the API can be reached.
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
		h.log.Warn("Kubernetes: cannot "+what, zap.Error(err))
	}
}

func (h *health) clear(what string) {
	h.mu.Lock()
	_, known := h.errors[what]
	delete(h.errors, what)
	h.mu.Unlock()
	if known {
		h.log.Info("Kubernetes: works again: " + what)
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

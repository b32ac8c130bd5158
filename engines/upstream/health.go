package upstream

import (
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"
)

// modelHealth is the health of a server for one of its models.
type modelHealth struct {
	// fault tells why the server gets no requests for the model. It is empty if it gets some.
	fault string
	// since is when fault was last set or cleared.
	since time.Time
}

// Fault says why a server gets no requests.
type Fault struct {
	// Models are the models that it gets no requests for, sorted. nil means all of its models.
	Models []string
	Reason string
}

// RecordFailure records that a request for the model to the replica failed: there was no
// connection, or the response had a status of 500 or above. The server gets no more requests for
// the model until its next successful check. The last healthy server of a model keeps getting
// requests. A drained server does not count, because it takes none. An empty model means all models
// of the server.
func (l *Launcher) RecordFailure(replica, model, what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.servers {
		if s.id == replica && s.fault == "" && l.failLocked(s, model, what) {
			s.failedAt = time.Now()
			l.publishLocked()
			return
		}
	}
}

// failLocked takes s out of the model, or of all its models if model is empty. It returns false if
// s stays, because s is out already or the last healthy server of each. l.mu must be held.
func (l *Launcher) failLocked(s *server, model, what string) (failed bool) {
	models, _ := l.servedLocked(s)
	for _, name := range models {
		if model != "" && name != model || s.health[name].fault != "" || l.isLastLocked(s, name) {
			continue
		}
		if s.health == nil {
			s.health = map[string]modelHealth{}
		}
		s.health[name] = modelHealth{fault: what, since: time.Now()}
		failed = true
		l.Log.Info("upstream health changed", zap.String("replica", s.id), zap.String("model", name),
			zap.Bool("healthy", false), zap.String("reason", what))
	}
	return failed
}

// recoverLocked returns s to the models that it was taken out of. l.mu must be held.
func (l *Launcher) recoverLocked(s *server) {
	for name, h := range s.health {
		if h.fault != "" {
			s.health[name] = modelHealth{since: time.Now()}
			l.Log.Info("upstream health changed", zap.String("replica", s.id), zap.String("model", name), zap.Bool("healthy", true))
		}
	}
}

// isLastLocked reports whether no other server of the model is healthy for it and not drained. l.mu
// must be held.
func (l *Launcher) isLastLocked(s *server, model string) bool {
	for _, o := range l.servers {
		if o == s || o.fault != "" || !o.checked || o.health[model].fault != "" || l.Drained(o.id) {
			continue
		}
		if others, _ := l.servedLocked(o); slices.Contains(others, model) {
			return false
		}
	}
	return true
}

// isLastOfAnyLocked reports whether s is the last healthy server of one of its models. l.mu must be
// held.
func (l *Launcher) isLastOfAnyLocked(s *server) bool {
	models, _ := l.servedLocked(s)
	return slices.ContainsFunc(models, func(name string) bool { return l.isLastLocked(s, name) })
}

// Faults returns why servers get no requests, by the keys of the servers: their URLs, with the
// address if a URL has several.
func (l *Launcher) Faults() map[string]Fault {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[string]Fault{}
	for key, s := range l.servers {
		if s.checked && s.fault != "" {
			all[key] = Fault{Reason: s.fault}
			continue
		}
		served, _ := l.servedLocked(s)
		for _, name := range slices.Sorted(maps.Keys(s.health)) {
			if h := s.health[name]; h.fault != "" && slices.Contains(served, name) {
				all[key] = Fault{Models: append(all[key].Models, name), Reason: h.fault}
			}
		}
	}
	return all
}

// Package condition keeps the conditions of a gateway: named states with a reason and a message, in
// Kubernetes' sense. The package internal/gateway uses it: it makes the registry, gives it to the
// parts that report faults, and shows it on the admin listener.
//
// A condition comes from one of two places. A part that learns of a fault by an event calls Set,
// and Clear when the fault has gone. A state that can be read at any time comes from a source, a
// func that lists the conditions that hold now. The table in types.go has one row for each type.
package condition

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/beat"
)

// Status tells whether a condition holds.
type Status string

// The values of Status. Unknown is for a state that cannot be read.
const (
	True    Status = "true"
	False   Status = "false"
	Unknown Status = "unknown"
)

// Severity tells how urgent a condition is while it differs from its normal status. It is Info
// while the condition has its normal status.
type Severity string

// The values of Severity.
const (
	Info    Severity = "info"
	Warning Severity = "warning"
	Error   Severity = "error"
)

// Condition is one named state of the gateway, with the field names of the admin API.
type Condition struct {
	Type Type `json:"type"`
	// Subject is what the condition is about: the name of a model, the id of a replica, the URL of
	// an upstream. It is empty for a state of the whole gateway.
	Subject string `json:"subject"`
	Status  Status `json:"status"`
	// Severity is set by the registry, unless the source has set it.
	Severity Severity `json:"severity"`
	// Reason is one word in CamelCase, for programs.
	Reason string `json:"reason"`
	// Message is one sentence or more for the operator: what is wrong, with its numbers. The
	// registry adds what to do, from the table of types.
	Message string `json:"message"`
	// Action is what to do, where that of the table of types is not right. The registry adds it to
	// the message.
	Action string `json:"-"`
	// Since is when Status changed last. It is set by the registry.
	Since time.Time `json:"since"`
}

// Normal reports whether the condition has the status that needs no attention.
func (c Condition) Normal() bool { return c.Status == rowOf(c.Type).normal }

// key identifies a condition in the registry.
type key struct {
	kind    Type
	subject string
}

// Registry holds the conditions of one gateway. Its methods are safe for concurrent use. All
// methods of a nil Registry do nothing, so that a part works without one.
type Registry struct {
	log *zap.Logger
	now func() time.Time

	mu      sync.Mutex
	sources []func() []Condition
	// held are the conditions of Set that Clear has not removed.
	held map[key]Condition
	// last are the conditions of the last look, for Since and for the log.
	last map[key]Condition
}

// New returns an empty Registry. log receives each change of a condition.
func New(log *zap.Logger) *Registry {
	return &Registry{log: log, now: time.Now, held: map[key]Condition{}, last: map[key]Condition{}}
}

// AddSource adds a func that lists conditions at any time, with their status. It is called once a
// second and at each List, without a lock of the registry. It must be quick and safe for concurrent
// use. A condition that the source does not list any more is over.
func (r *Registry) AddSource(source func() []Condition) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sources = append(r.sources, source)
}

// Set says that the fault of this type holds for a subject. message says what is wrong, in whole
// sentences. A second call for the same subject replaces reason and message.
func (r *Registry) Set(t Type, subject, reason, message string) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held[key{t, subject}] = Fault(t, subject, reason, message)
}

// Clear says that the fault of this type does not hold for a subject any more.
func (r *Registry) Clear(t Type, subject string) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.held, key{t, subject})
}

// Fault returns a condition that differs from the normal status of its type.
func Fault(t Type, subject, reason, message string) Condition {
	status := True
	if rowOf(t).normal == True {
		status = False
	}
	return Condition{Type: t, Subject: subject, Status: status, Reason: reason, Message: message}
}

// OK returns a condition with the normal status of its type.
func OK(t Type, subject, reason, message string) Condition {
	return Condition{Type: t, Subject: subject, Status: rowOf(t).normal, Reason: reason, Message: message}
}

// Mute ends the log lines. A gateway that drains calls it, because all that the gateway then stops
// would be logged as a fault.
func (r *Registry) Mute() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log = zap.NewNop()
}

// List returns all conditions. Those that need attention come first, errors before warnings. The
// types that are about the whole gateway are always listed.
func (r *Registry) List() []Condition {
	if r == nil {
		return nil
	}
	now := r.look()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rememberLocked(now)
	return slices.SortedFunc(maps.Values(now), compare)
}

// Run looks at all sources once a second until ctx ends, so that Since is right and each change is
// logged. It returns nil.
func (r *Registry) Run(ctx context.Context) error {
	for {
		r.List()
		select {
		case <-ctx.Done():
			return nil
		case <-beat.After(time.Second):
		}
	}
}

// look returns the conditions that hold now, complete but for Since.
func (r *Registry) look() map[key]Condition {
	r.mu.Lock()
	sources := slices.Clone(r.sources)
	all := map[key]Condition{}
	for i := range types {
		if row := &types[i]; row.global {
			all[key{row.kind, ""}] = complete(OK(row.kind, "", "AsExpected", ""))
		}
	}
	for k, c := range r.held {
		all[k] = complete(c)
	}
	r.mu.Unlock()
	for _, source := range sources {
		for _, c := range source() {
			c = complete(c)
			if have, ok := all[key{c.Type, c.Subject}]; !ok || have.Normal() {
				all[key{c.Type, c.Subject}] = c
			}
		}
	}
	return all
}

// complete returns c with its severity, and with what to do at the end of its message.
func complete(c Condition) Condition {
	row := rowOf(c.Type)
	if c.Normal() {
		c.Severity = Info
		return c
	}
	c.Severity = cmp.Or(c.Severity, row.severity)
	if action := cmp.Or(c.Action, row.action); action != "" {
		c.Message += " " + action
	}
	return c
}

// rememberLocked sets Since of now's conditions and logs what has changed. r.mu is held.
func (r *Registry) rememberLocked(now map[key]Condition) {
	for k, c := range now {
		before, known := r.last[k]
		c.Since = before.Since
		if !known || before.Status != c.Status {
			c.Since = r.now()
			r.logChange(c, known)
		}
		now[k] = c
	}
	for k, c := range r.last {
		if _, ok := now[k]; !ok && !c.Normal() {
			r.log.Info("condition cleared", zap.String("type", string(c.Type)), zap.String("subject", c.Subject))
		}
	}
	r.last = now
}

// logChange logs a condition that is new or whose status has changed. A condition that is normal
// from its beginning is not logged.
func (r *Registry) logChange(c Condition, known bool) {
	fields := []zap.Field{zap.String("type", string(c.Type)), zap.String("subject", c.Subject),
		zap.String("status", string(c.Status)), zap.String("reason", c.Reason)}
	if c.Normal() {
		if known {
			r.log.Info("condition cleared", fields...)
		}
		return
	}
	log := r.log.Info
	switch c.Severity {
	case Warning:
		log = r.log.Warn
	case Error:
		log = r.log.Error
	}
	log("condition reached", append(fields, zap.String("message", c.Message))...)
}

// compare orders conditions: those that need attention first, then by severity, type and subject.
func compare(a, b Condition) int {
	return cmp.Or(
		rank(a)-rank(b),
		cmp.Compare(a.Type, b.Type),
		cmp.Compare(a.Subject, b.Subject),
	)
}

// rank is the place of a condition in a list: 0 for errors.
func rank(c Condition) int {
	switch {
	case c.Normal():
		return 3
	case c.Severity == Error:
		return 0
	case c.Severity == Warning:
		return 1
	}
	return 2
}

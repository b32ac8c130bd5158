package trace

import (
	"cmp"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/sluice-gateway/sluice/internal/request"
)

// The phases of a request.
const (
	phaseQueue   = "queue"
	phasePrefill = "prefill"
	phaseDecode  = "decode"
	// phaseGenerate replaces prefill and decode for a response that is not a stream, whose first
	// token is not known.
	phaseGenerate = "generate"
)

// recorded holds the data of a request for its spans.
type recorded struct {
	own, client             trace.SpanContext
	began, ended            time.Time
	id, path, tenant, model string
	// clientID is the client's own id of the request; empty if it gave none
	clientID string
	// decided is the model that a managed call was admitted to
	decided         string
	stream, managed bool
	// status is the HTTP status; 0 means not known
	status int
	result request.Outcome
	// code is the error code that the client received, codeStatus its HTTP status. They are empty
	// and 0 if there was no error or it is not known.
	code          string
	codeStatus    int
	phases        []phase
	steps, chunks series
}

// phase is one phase of a request. Phases on a replica also describe the replica.
type phase struct {
	name         string
	began, ended time.Time
	// model is the model's own name. model, replica and batch are empty in the phase queue.
	model, replica string
	batch          int
}

// enter ends the current phase and begins another. It does nothing after maxPhases phases.
func (r *recorded) enter(p phase) {
	if n := len(r.phases); n >= maxPhases {
		return
	} else if n > 0 {
		last := &r.phases[n-1]
		last.ended = p.began
		if p.name == phaseDecode {
			p.replica, p.batch = last.replica, last.batch
		}
	}
	r.phases = append(r.phases, p)
}

// setOutcome records the relay's outcome of the call.
func (r *recorded) setOutcome(o request.Outcome) {
	r.result, r.code = o, o.Code()
	if o.Fault != nil {
		r.codeStatus = o.Fault.HTTPStatus()
	}
	r.result.Usage.CachedKnown = o.Usage.CachedKnown || o.Usage.Known // the relay reads the usage completely
}

// native converts the joined record of a native request.
func native(q request.Summary, own, client trace.SpanContext) *recorded {
	answered := q.Route == request.RouteNative
	r := &recorded{
		own: own, client: client, began: q.Started, ended: q.Started.Add(q.Duration),
		id: q.ID, clientID: q.ClientID, path: q.Path, tenant: q.Tenant, model: q.Model, stream: q.Stream, status: q.Status,
		code: q.Code,
		result: request.Outcome{
			Replica: q.Replica, Cause: q.Cause, Attempts: q.Attempts, Answered: answered, Finish: q.FinishReason, Usage: q.Usage(),
		},
	}
	r.enter(phase{name: phaseQueue, began: q.Started})
	if q.Replica == "" {
		return r
	}
	r.enter(phase{name: phasePrefill, began: q.Started.Add(q.Waited), replica: q.Replica})
	if !q.Stream || q.FirstByte <= 0 || !answered {
		return r
	}
	r.result.TTFT, r.result.Held = q.FirstByte, q.Waited
	r.enter(phase{name: phaseDecode, began: q.Started.Add(max(q.FirstByte, q.Waited))})
	if q.LastByte > q.FirstByte {
		r.result.Decode = q.LastByte - q.FirstByte
		r.phases[len(r.phases)-1].ended = q.Started.Add(q.LastByte)
	}
	return r
}

// maxKept bounds the moments of a series. A stream has two series: steps and chunks.
const maxKept = 32

// series keeps evenly spread samples of moments whose number is not known in advance. It keeps
// those whose number is a multiple of stride, and doubles stride when it has too many.
type series struct {
	stride, next int
	kept         []moment
}

type moment struct {
	n            int
	began, ended time.Time
}

// add adds the n-th moment. It ignores a number that is not greater than the last one.
func (s *series) add(n int, began, ended time.Time) {
	if n < s.next {
		return
	}
	s.next = n + 1
	s.stride = cmp.Or(s.stride, 1)
	for n%s.stride == 0 && len(s.kept) == maxKept {
		s.stride *= 2
		left := s.kept[:0]
		for _, m := range s.kept {
			if m.n%s.stride == 0 {
				left = append(left, m)
			}
		}
		s.kept = left
	}
	if n%s.stride == 0 {
		s.kept = append(s.kept, moment{n, began, ended})
	}
}

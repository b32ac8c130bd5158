package relay

import (
	"github.com/sluice-gateway/sluice/internal/memory"
	"github.com/sluice-gateway/sluice/internal/openai/lifecycle"
	"github.com/sluice-gateway/sluice/internal/openai/sse"
)

// maxFollowedBytes bounds what a stream keeps of a response of the Responses API, in bytes.
const maxFollowedBytes = 1 << 20

// followedResponse follows the events that a client receives of a response of the Responses API, so
// that Sluice can end the response early as the engine would.
type followedResponse struct {
	lifecycle.Response
	// memory is the reservation for what the response keeps.
	memory memory.Hold
}

// follow observes an event that is published. A response that has become too large is followed
// without its items.
func (f *followedResponse) follow(e *sse.Event) {
	if e.IsComment() {
		return
	}
	f.See(e.Data)
	if n := f.Kept(); n > 0 && (n > maxFollowedBytes || !f.memory.Resize(int64(n))) {
		f.Forget()
		f.memory.Release()
	}
}

// publishIncomplete ends a response of the Responses API early, with what was generated. reason is
// a finish reason.
func (s *engineStream) publishIncomplete(reason string) {
	why := "max_output_tokens"
	if reason == finishFiltered {
		why = finishFiltered
	}
	s.publishEnd(lifecycle.End{Status: "incomplete", Reason: why})
}

// publishFailed tells the client of a response of the Responses API about the fault. An error event
// follows: it makes those clients raise an exception that look at nothing else.
func (s *engineStream) publishFailed() {
	s.publishEnd(lifecycle.End{Status: "failed", Error: s.failover.result.Fault.EventObject()})
}

// publishEnd publishes the events that end a response of the Responses API.
func (s *engineStream) publishEnd(end lifecycle.End) {
	made := identityOf(nil, s.failover.ticket.Model)
	end.ID, end.Model, end.Created, end.Usage = "resp_"+made.id, made.model, made.created, responseUsageOf(s.usageSoFar(), s.failover.result.Usage.Cached)
	var out []byte
	for _, e := range s.response.Events(end) {
		out = append(append(append(out, "event: "...), e.Type...), '\n')
		out = sse.AppendData(out, e.Data)
	}
	s.gen.publishOwn(out)
	s.gen.nextSequence.Store(s.response.Sequence())
}

// responseUsage is the usage of a response of the Responses API.
type responseUsage struct {
	Input        int64 `json:"input_tokens"`
	InputDetails struct {
		Cached int64 `json:"cached_tokens"`
	} `json:"input_tokens_details"`
	Output        int64 `json:"output_tokens"`
	OutputDetails struct {
		Reasoning int64 `json:"reasoning_tokens"`
	} `json:"output_tokens_details"`
	Total int64 `json:"total_tokens"`
	// Estimated says that the engine has not counted them.
	Estimated bool `json:"estimated,omitempty"`
}

// responseUsageOf returns a usage in the form of the Responses API.
func responseUsageOf(u *tokenCount, cached int64) (r responseUsage) {
	r.Input, r.Output, r.Total = u.Prompt, u.Completion, u.Total
	r.InputDetails.Cached, r.Estimated = cached, u.Estimated
	return r
}

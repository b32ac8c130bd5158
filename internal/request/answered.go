package request

import (
	"net/http"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// Answered makes the record of a request that Sluice is about to answer itself with a status. fault
// is the error of the answer; nil: none. Envoy's log entry, which joins the record when the answer
// has been written, has neither the tenant nor the code. There is no record of a request whose
// client has left, because its entry has come already. Nor is there one of a request that a remote
// gateway has forwarded, because the entry comes there.
func (s *Store) Answered(r *http.Request, status int, fault *openai.Error) {
	s.AnsweredFor(r, "", status, fault)
}

// AnsweredFor is Answered for a request that is for a model (by its own name) or a pool.
func (s *Store) AnsweredFor(r *http.Request, model string, status int, fault *openai.Error) {
	by := r.Header.Get(headers.Forwarded)
	if s == nil || r.Context().Err() != nil || by != "" && by != headers.ForwardedByProcess {
		return
	}
	record := s.Begin(Arrival{
		ID: r.Header.Get(headers.RequestID), Method: r.Method, Path: r.URL.Path, Tenant: r.Header.Get(headers.Tenant), Model: model,
	})
	s.mu.Lock()
	record.summary.Status, record.summary.Source = status, headers.SourceGateway
	s.mu.Unlock()
	record.Close(fault)
}

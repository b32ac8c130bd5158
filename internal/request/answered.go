package request

import (
	"net/http"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// Answered makes the record of a request that Sluice is about to answer itself. fault is the error
// of the answer; nil: none. Envoy's log entry, which joins the record when the answer has been
// written, has neither the tenant nor the code. There is no record of a request whose client has
// left, because its entry has come already. Nor is there one of a request that another gateway has
// forwarded, because the entry comes there.
func (s *Store) Answered(r *http.Request, fault *openai.Error) {
	if r.Context().Err() != nil || r.Header.Get(headers.Forwarded) != "" {
		return
	}
	s.Begin(Arrival{
		ID: r.Header.Get(headers.RequestID), Method: r.Method, Path: r.URL.Path, Tenant: r.Header.Get(headers.Tenant),
	}).Close(fault)
}

package decide

import (
	"strconv"
	"time"

	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/failover"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/routes"
)

// Kind says what an Answer makes Envoy do.
type Kind uint8

// The kinds of answers.
const (
	// Continue makes Envoy read the body. It answers Headers.
	Continue Kind = iota
	// Go makes Envoy choose the route again, by the headers that the answer sets, and send the
	// request there.
	Go
	// Reply makes Envoy answer the client.
	Reply
)

// Answer is what Envoy is told. A transport must not change it.
type Answer struct {
	Kind Kind
	// Set are headers, of the request or of the reply, that replace those of the same name. Remove
	// are the names of headers to remove from the request.
	Set    []Header
	Remove []string
	// Body replaces the body of the request. nil means no change. In a Reply it is the body.
	Body []byte
	// Status is the HTTP status of a Reply, and Details what Envoy's access log tells of it.
	Status  int
	Details string
	// Metadata is the request's dynamic metadata. It belongs to Go.
	Metadata Metadata
}

// Header is a header and its value.
type Header struct{ Name, Value string }

// set adds a header.
func (a *Answer) set(name, value string) { a.Set = append(a.Set, Header{name, value}) }

// proceed is the answer to most headers. It must not be changed.
var proceed = &Answer{Kind: Continue}

// continueWithout returns the answer with which Envoy goes on with a request, without the headers
// of these names.
func continueWithout(names []string) *Answer {
	if len(names) == 0 {
		return proceed
	}
	return &Answer{Kind: Continue, Remove: names}
}

// departure says how a request leaves for its replica.
type departure struct {
	// waited is how long the request has waited.
	waited time.Duration
	// traceparent is the header for the engine. It is empty if the request is not traced.
	traceparent string
}

// setNative makes Envoy send the request to a replica. Headers name the cluster and the replicas;
// Envoy's route matches on them. The body is changed only if it has options of Sluice or an alias
// for the model.
func (a *Answer) setNative(t *dispatch.Ticket, scan *openai.Request, body []byte, from departure) {
	a.set(headers.Cluster, t.Cluster())
	a.set(headers.Endpoint, t.Endpoints())
	if n := t.Retries(); n != failover.RouteRetries {
		a.set("x-envoy-max-retries", strconv.Itoa(n))
	}
	to := routes.Decided{Stream: scan.Stream, OwnRetries: !t.HasFallback() || !t.FailOver.Usual()}
	if to.OwnRetries && t.HasFallback() {
		a.Set = append(a.Set, retryHeaders[t.FailOver&failover.EveryBit]...)
	}
	if a.setReaders(t, scan); from.traceparent != "" {
		a.set("traceparent", from.traceparent)
	}
	to.ClientTimeout = a.setTimeout(t, scan, from.waited)
	a.set(headers.Route, to.Key())
	if rewritten, changed := scan.Rewrite(body, t.Served); changed {
		a.set("content-length", strconv.Itoa(len(rewritten)))
		a.Body = rewritten
	}
}

// setReaders adds the headers that make Envoy read the response. Such a response must not be
// compressed: its usage and its id could not be read, and its bytes would be too cheap.
func (a *Answer) setReaders(t *dispatch.Ticket, scan *openai.Request) {
	if t.Watched() || t.WantsResponseID() {
		a.set(headers.Observe, "1")
	}
	sampled := scan.Endpoint.Generates() && t.AcquireSample(scan.Stream)
	if sampled {
		a.set(headers.Usage, usageProtocol(scan.Endpoint)+headers.UsageAndStream)
	} else if t.Measured() {
		a.set(headers.Usage, usageProtocol(scan.Endpoint))
	}
	if sampled || t.Measured() || t.WantsResponseID() {
		a.set("accept-encoding", "identity")
	}
}

// usageProtocol returns the value of headers.Usage, which says how a response tells its usage.
func usageProtocol(e openai.Endpoint) string {
	if e.OfMessages() {
		return headers.UsageOfMessages
	}
	return headers.UsageOfOpenAI
}

// retryHeaders has, for each set of statuses, the headers that make Envoy try the next replica
// after one of them. The headers are shared by all answers and never changed.
var retryHeaders = func() (all [failover.EveryBit + 1][]Header) {
	for set := range all {
		retryOn, codes := failover.Statuses(set).Envoy()
		if retryOn != "" {
			all[set] = append(all[set], Header{"x-envoy-retry-on", retryOn})
		}
		if codes != "" {
			all[set] = append(all[set], Header{"x-envoy-retriable-status-codes", codes})
		}
	}
	return all
}()

// setTimeout adds the timeout of the response: the shortest of the model's limit, the client's
// MaxDuration and the client's Timeout. Envoy counts the timeout from now. The client's limits
// count from the arrival of its request, so waited is subtracted from them. isClients says that the
// timeout is one of the client's: when it expires, the status is 408, not 504.
func (a *Answer) setTimeout(t *dispatch.Ticket, scan *openai.Request, waited time.Duration) (isClients bool) {
	shortest := t.MaxDuration
	if d := scan.MaxDuration - waited; scan.MaxDuration > 0 && (shortest == 0 || d < shortest) {
		shortest, isClients = d, true
	}
	if d := scan.Timeout - waited; scan.Timeout > 0 && (shortest == 0 || d < shortest) {
		shortest, isClients = d, true
	}
	if shortest == 0 || !isClients && t.BoundByRoute {
		return false
	}
	a.set("x-envoy-upstream-rq-timeout-ms", strconv.FormatInt(max(shortest.Milliseconds(), 1), 10))
	return isClients
}

// reply returns the answer with which Envoy sends the error e to the client without calling an
// upstream, in the form of the API that the client speaks.
func reply(e *openai.Error, ofMessages bool) *Answer {
	a := &Answer{Kind: Reply, Status: e.HTTPStatus(), Body: e.Body(), Details: headers.DetailsPrefix + string(e.Code), Set: make([]Header, 0, 4)}
	if ofMessages {
		a.Body = e.MessagesBody()
	}
	a.set("content-type", "application/json")
	a.set(headers.Source, headers.SourceGateway)
	if s := e.RetryAfterSeconds(); s != "" {
		a.set("retry-after", s)
	}
	if e.MustNotRepeat() {
		a.set(headers.ShouldRetry, "false")
	}
	for name, value := range e.Header {
		a.set(name, value)
	}
	switch a.Status {
	case 401:
		a.set("www-authenticate", "Bearer")
	case 405:
		a.set("allow", "POST")
	}
	return a
}

// Package decidetest has the tests of package internal/decide that every transport must pass. The
// tests of extproc and internal/frames run them.
package decidetest

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/decide"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/request"
)

// Client is Envoy's end of one request over a transport.
type Client interface {
	// Headers sends the headers of the request.
	Headers(pairs []decide.Header, bodyless bool)
	// Body sends the body. Headers that were not refused must have been sent.
	Body(text string)
	// Answer returns the next answer that is not decide.Continue. It waits a minute at most.
	Answer() Answer
	// Finish tells that the response has ended, and Leave that the client has left. Both return
	// when the transport has been told.
	Finish()
	Leave()
}

// Answer is what Envoy is told.
type Answer struct {
	decide.Answer
	// Other is the dynamic metadata that has no field of its own in Metadata.
	Other map[string]string
	// Wait is not 0 if the request is to wait; the rest is empty then.
	Wait time.Duration
}

// Values returns the headers that an answer sets.
func (a Answer) Values() map[string]string {
	all := map[string]string{}
	for _, h := range a.Set {
		all[h.Name] = h.Value
	}
	return all
}

// Noted returns the dynamic metadata that an answer sets.
func (a Answer) Noted() map[string]string {
	all := maps.Collect(a.Metadata.All)
	maps.Copy(all, a.Other)
	return all
}

// Stage is a gateway's decider with a transport.
type Stage struct {
	*decide.Decider
	t    testing.TB
	Open func() Client
}

// Key is the header with the key of the tenant acme, who may use the model m.
var Key = decide.Header{Name: "authorization", Value: "Bearer key"}

// New returns a decider of a gateway with one model m, also known as alias, on two replicas, which
// serve slots requests each at a time. The model other exists and has no replica.
func New(t testing.TB, slots int, uploads decide.UploadLimits) *decide.Decider {
	t.Helper()
	return newDecider(t, 2, slots, uploads)
}

// newDecider is New with so many replicas.
func newDecider(t testing.TB, replicas, slots int, uploads decide.UploadLimits) *decide.Decider {
	t.Helper()
	fleet := engines.NewFleet()
	part := engines.Part{Models: []engines.Model{{Name: "m", Aliases: []string{"alias"}}, {Name: "other"}}}
	routable := map[string]netip.AddrPort{}
	for i := range replicas {
		id, address := fmt.Sprint("m-", i), netip.MustParseAddrPort(fmt.Sprint("127.0.0.1:900", i))
		part.Replicas = append(part.Replicas, engines.Replica{ID: id, Model: "m", State: engines.Ready, Slots: slots, Address: address})
		routable[id] = address
	}
	fleet.Set("test", part)
	d := dispatch.New(dispatch.Config{Fleet: fleet, Admission: admission.New(admission.Config{})})
	d.SetRules(dispatch.Rules{Default: dispatch.Policy{MaxDuration: time.Minute}})
	d.SetRoutable("model/m", routable)
	auth := new(authz.Authenticator)
	if err := auth.Set(authz.Config{Tenants: []authz.TenantConfig{{
		Tenant: authz.Tenant{Name: "acme", Models: []string{"m"}}, Keys: []authz.KeyConfig{{Hash: authz.HashKey("key")}}}}}); err != nil {
		t.Fatal(err)
	}
	return decide.New(decide.Config{
		Authenticator: auth, Dispatcher: d, Handoff: new(dispatch.Handoff), MaxBody: 1000, Uploads: uploads,
		Requests: request.NewStore(1000), Log: zap.NewNop(),
		Budget: func(*authz.Tenant) (string, *openai.Error) { return "", nil }, Trace: func(string) (string, bool) { return "", false },
		MaxOpen: func() int { return 0 },
	})
}

// request opens an exchange and sends headers: those given, and for all others what a chat has.
func (s *Stage) request(own ...decide.Header) Client {
	s.t.Helper()
	for _, h := range []decide.Header{{Name: ":method", Value: "POST"}, {Name: ":path", Value: "/v1/chat/completions"},
		{Name: "content-type", Value: "application/json"}, {Name: "x-request-id", Value: "e-1"}} {
		if !slices.ContainsFunc(own, func(o decide.Header) bool { return o.Name == h.Name }) {
			own = append(own, h)
		}
	}
	c := s.Open()
	c.Headers(own, false)
	return c
}

// chat sends a request with this body and returns the answer.
func (s *Stage) chat(body string, own ...decide.Header) (Client, Answer) {
	s.t.Helper()
	c := s.request(append(own, Key)...)
	c.Body(body)
	return c, c.Answer()
}

// view returns the state of the model m.
func (s *Stage) view() dispatch.View {
	v, _ := s.Dispatcher.View("m")
	return v
}

// lines returns the records of requests: running ones first, the newest first in each group.
func (s *Stage) lines() (all []string) {
	summaries, _ := s.Requests.List(0)
	for _, q := range summaries {
		all = append(all, fmt.Sprintf("%s %s %s %s %t %d %s%s", q.State, q.ID, q.Tenant, q.Model, q.Stream, q.BytesIn, q.Route, q.Code))
	}
	return all
}

// until waits up to a minute for a condition.
func (s *Stage) until(what string, holds func() bool) {
	s.t.Helper()
	for begun := time.Now(); !holds(); time.Sleep(time.Millisecond) {
		if time.Since(begun) > time.Minute {
			s.t.Fatal("not within a minute: " + what)
		}
	}
}

// code returns the code of the error that an answer sends to the client.
func (a Answer) code() string {
	_, rest, _ := strings.Cut(string(a.Body), `"code":"`)
	code, _, _ := strings.Cut(rest, `"`)
	return code
}

package extproc

import (
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/sluice-gateway/sluice/internal/decide"
	"github.com/sluice-gateway/sluice/internal/decide/decidetest"
	"github.com/sluice-gateway/sluice/internal/headers"
)

// TestB6_Transport runs the tests of every transport.
func TestB6_Transport(t *testing.T) {
	decidetest.Run(t, func(t testing.TB, d *decide.Decider) func() decidetest.Client {
		s := New(d)
		return func() decidetest.Client { return &client{envoy: open(t, s)} }
	})
}

// client is an envoy for package decidetest.
type client struct {
	*envoy
	// removed are the headers that the answer to the headers has removed, refused is that answer if
	// it refuses the request.
	removed []string
	refused *pb.ProcessingResponse
}

// Headers implements decidetest.Client.
func (c *client) Headers(pairs []decide.Header, bodyless bool) {
	c.t.Helper()
	h := &core.HeaderMap{}
	for _, p := range pairs {
		h.Headers = append(h.Headers, &core.HeaderValue{Key: p.Name, RawValue: []byte(p.Value)})
	}
	a := c.say(&pb.ProcessingRequest{Request: &pb.ProcessingRequest_RequestHeaders{RequestHeaders: &pb.HttpHeaders{Headers: h, EndOfStream: bodyless}}})
	if a.GetRequestHeaders() == nil {
		c.refused = a
	}
	c.removed = a.GetRequestHeaders().GetResponse().GetHeaderMutation().GetRemoveHeaders()
}

// Body implements decidetest.Client.
func (c *client) Body(text string) {
	select {
	case c.toSluice <- &pb.ProcessingRequest{Request: &pb.ProcessingRequest_RequestBody{RequestBody: &pb.HttpBody{Body: []byte(text), EndOfStream: true}}}:
	case <-c.ctx.Done():
	}
}

// Answer implements decidetest.Client.
func (c *client) Answer() decidetest.Answer {
	c.t.Helper()
	a := c.refused
	if c.refused = nil; a == nil {
		select {
		case a = <-c.toEnvoy:
		case <-time.After(time.Minute):
			c.t.Fatal("no answer within a minute")
		}
	}
	if d := a.GetOverrideMessageTimeout(); d != nil {
		return decidetest.Answer{Wait: d.AsDuration()}
	}
	if i := a.GetImmediateResponse(); i != nil {
		return decidetest.Answer{Answer: decide.Answer{Kind: decide.Reply, Status: int(i.GetStatus().GetCode()), Set: setOf(i.GetHeaders()), Body: i.GetBody(), Details: i.GetDetails()}}
	}
	r := a.GetRequestBody().GetResponse()
	if r == nil || !r.GetClearRouteCache() {
		c.t.Fatalf("an answer of another kind: %v", a)
	}
	got := decidetest.Answer{Other: map[string]string{}}
	got.Answer = decide.Answer{Kind: decide.Go, Set: setOf(r.GetHeaderMutation()), Remove: c.removed, Body: r.GetBodyMutation().GetBody()}
	for name, v := range a.GetDynamicMetadata().GetFields()[headers.Metadata].GetStructValue().GetFields() {
		switch name {
		case headers.MetadataTenant:
			got.Metadata.Tenant = v.GetStringValue()
		case headers.MetadataKey:
			got.Metadata.Key = v.GetStringValue()
		default:
			got.Other[name] = v.GetStringValue()
		}
	}
	return got
}

func setOf(m *pb.HeaderMutation) (all []decide.Header) {
	for _, h := range m.GetSetHeaders() {
		all = append(all, decide.Header{Name: h.GetHeader().GetKey(), Value: string(h.GetHeader().GetRawValue())})
	}
	return all
}

// Finish implements decidetest.Client.
func (c *client) Finish() {
	select {
	case c.toSluice <- &pb.ProcessingRequest{Request: &pb.ProcessingRequest_ResponseTrailers{}}:
	case <-c.ctx.Done():
	}
	select {
	case c.toSluice <- nil: // never: the exchange waits for the end of the stream
	case <-c.ctx.Done():
	case <-c.toEnvoy:
		close(c.toSluice)
	}
}

// Leave implements decidetest.Client.
func (c *client) Leave() { c.reset() }

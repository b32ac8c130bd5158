package dispatch

import (
	"testing"

	"github.com/sluice-gateway/sluice/internal/openai"
)

// TestR7_WayOfTheCallsBesideResponses: the relay serves the calls of the Responses API that engines
// may lack, whatever the mode, so that it can tell the client.
func TestR7_WayOfTheCallsBesideResponses(t *testing.T) {
	t.Parallel()
	for endpoint, want := range map[openai.Endpoint]way{openai.Responses: native, openai.InputTokens: managed, openai.Compact: managed} {
		s := newStage(Policy{Way: WayPolicy{Mode: ModeNative}})
		s.put("m", replicas("m-0")...)
		s.rebuild()
		r := newRequest("m", "k")
		r.Endpoint = endpoint
		if got := s.way(r).way; got != want {
			t.Errorf("%s: %v, want %v", endpoint, got, want)
		}
	}
}

// TestB9_WayOfMessages: the relay translates requests to the Messages API for engines without the
// route, whatever the mode, and Envoy sends them to those that have it.
func TestB9_WayOfMessages(t *testing.T) {
	t.Parallel()
	var both, one openai.EndpointSet
	one.Add(openai.Messages)
	both = one
	both.Add(openai.CountTokens)
	for name, c := range map[string]struct {
		endpoint openai.Endpoint
		policy   WayPolicy
		stream   bool
		want     way
	}{
		"no route":               {openai.Messages, WayPolicy{}, false, managed},
		"no route, stream":       {openai.Messages, WayPolicy{Mode: ModeNative}, true, managed},
		"the route":              {openai.Messages, WayPolicy{Messages: both}, false, native},
		"the route, stream":      {openai.Messages, WayPolicy{Messages: both}, true, nativeUntilWait},
		"the route, managed":     {openai.Messages, WayPolicy{Messages: both, Mode: ModeManaged}, true, managed},
		"no counting":            {openai.CountTokens, WayPolicy{Messages: one}, false, managed},
		"counting":               {openai.CountTokens, WayPolicy{Messages: both}, false, native},
		"a chat, no such routes": {openai.Chat, WayPolicy{}, false, native},
	} {
		s := newStage(Policy{Way: c.policy})
		s.put("m", replicas("m-0")...)
		s.rebuild()
		r := newRequest("m", "k")
		r.Endpoint, r.Stream = c.endpoint, c.stream
		if got := s.way(r).way; got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

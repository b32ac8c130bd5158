package decide

import (
	"strings"
	"testing"
)

// TestB10_HeadersSentTwice: a second header of a kind is noticed also if one of them is empty.
func TestB10_HeadersSentTwice(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name          string
		first, second string
	}{{"x-session-id", "", "s2"}, {"x-session-id", "s1", ""}, {"x-session-id", "", ""}, {"authorization", "", "Bearer x"}, {"idempotency-key", "a", "a"}} {
		var once, twice Head
		once.Add(c.name, []byte(c.first))
		twice.Add(c.name, []byte(c.first))
		twice.Add("accept", []byte(c.second))
		twice.Add(c.name, []byte(c.second))
		if once.repeated != "" || twice.repeated != c.name {
			t.Errorf("%s: %q and %q: %q, %q", c.name, c.first, c.second, once.repeated, twice.repeated)
		}
	}
}

// A client whose base URL ends in /v1 although it adds /v1 itself learns what is wrong. No client
// gets a long URL back.
func TestUnknownURLsTellOfVersionsThatAreThereTwice(t *testing.T) {
	for path, want := range map[string]string{
		"/v1/v1/messages?beta=true": "Unknown request URL: POST /v1/v1/messages. The base URL of this client must not end in /v1.",
		"/v1/nothing?a=b":           "Unknown request URL: POST /v1/nothing",
		strings.Repeat("/x", 101):   "Unknown request URL: POST " + strings.Repeat("/x", 100) + "…",
	} {
		if got := (&Head{path: path, method: "POST"}).check(1 << 20); got == nil || got.Status != 404 || got.Message != want {
			t.Errorf("%s: %+v, want %q", path, got, want)
		}
	}
}

// Clients of the Messages API get their form of errors also for URLs that are unknown.
func TestPathsOfTheMessagesAPI(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]bool{
		"/v1/messages": true, "/messages": true, "/v1/messages?beta=true": true, "/v1/messages/batches": true,
		"/v1/messages2": false, "/v1/chat/completions": false, "/v1/files?of=/messages/": false,
	} {
		if got := (&Head{path: path}).isOfMessages(); got != want {
			t.Errorf("%s: %v, want %v", path, got, want)
		}
	}
}

package engines

import "testing"

// TestPathsAtServers: a Transport says at which path of a server a request for a path arrives.
func TestPathsAtServers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		transport  *Transport
		path, want string
	}{
		{nil, "/v1/models", "/v1/models"},
		{&Transport{}, "/v1/models", "/v1/models"},
		{&Transport{Prefix: "/a"}, "/v1/models", "/a/v1/models"},
		{&Transport{API: "/v1beta/openai"}, "/v1/chat/completions", "/v1beta/openai/chat/completions"},
		{&Transport{Prefix: "/a", API: "/"}, "/v1/models", "/a/models"},
		{&Transport{Prefix: "/a", API: "/b"}, "/metrics", "/a/metrics"},
		{&Transport{API: "/b"}, "/v1x/y", "/v1x/y"},
	} {
		if got := c.transport.Path(c.path); got != c.want {
			t.Errorf("%s at %v is %s, want %s", c.path, c.transport, got, c.want)
		}
	}
}

package gateway

import (
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/config"
)

// A reload of the file changes which pages may open WebSockets, and how often a socket is pinged.
func TestRealtimeFollowsReloads(t *testing.T) {
	t.Parallel()
	file := func(mode config.AuthMode, heartbeat time.Duration) *config.Config {
		c := &config.Config{Auth: config.Auth{Mode: mode}}
		c.Discovered.Stream.Heartbeat = heartbeat
		return c
	}
	g := &Gateway{options: Options{Config: file(config.AuthKeys, time.Minute)}, streams: new(streams)}
	g.settings.first = g.options.Config
	h := g.makeRealtime()
	for _, next := range []struct {
		file    *config.Config
		origins bool
	}{{nil, false}, {file(config.AuthNone, time.Second), true}, {file(config.AuthTrustedHeader, time.Second), true}, {file(config.AuthKeys, time.Hour), false}} {
		g.settings.current.Store(next.file)
		if h.Allows("https://evil.example") == next.origins {
			t.Errorf("mode %s: a page of another host may open sockets: %v", g.config().Auth.Mode, !next.origins)
		}
		if got := h.Heartbeat(); got != g.config().Discovered.Stream.Heartbeat {
			t.Errorf("heartbeat %v", got)
		}
	}
}

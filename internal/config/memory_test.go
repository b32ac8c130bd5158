package config

import (
	"strings"
	"testing"
)

// TestX7_MemoryRules checks faults of the budgets of memory and of WebSockets.
func TestX7_MemoryRules(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]string{
		"memory: {limit: 1MiB}":                 "memory.limit: must be at least 64MiB, is 1MiB",
		"memory: {relay: 1MiB}":                 "memory.relay: must be at least 16MiB, is 1MiB",
		"memory: {limit: 64MiB, relay: 128MiB}": "memory.relay: must be at most memory.limit, 64MiB, is 128MiB",
		"memory: {max_answer: 1KiB}":            "memory.max_answer: must be at least 1MiB",
		"realtime: {max_sockets: 0}":            "realtime.max_sockets: must be at least 1",
		"realtime: {idle: -1s}":                 "realtime.idle: must be at least 0s",
	} {
		if faults := faultsOf(t, file); len(faults) != 1 || !strings.Contains(faults[0], want) {
			t.Errorf("%s\n%q, want %q", file, faults, want)
		}
	}
}

// TestX7_SocketsOfATenant shows the number of WebSockets that follows from a tenant's streams.
func TestX7_SocketsOfATenant(t *testing.T) {
	t.Parallel()
	c := &Config{Tenants: []Tenant{{Name: "small", Limits: TenantLimits{MaxConcurrentStreams: 2}}, {Name: "large", Limits: TenantLimits{MaxConcurrentStreams: 100}}, {Name: "free"}}}
	for name, want := range map[string]int{"small": 16, "large": 400, "free": 1000, "": 1000} {
		if got := c.Sockets(name); got != want {
			t.Errorf("%s: %d, want %d", name, got, want)
		}
	}
	c.Realtime.PerTenant = 3
	if got := c.Sockets("large"); got != 3 {
		t.Errorf("%d with a number in the file", got)
	}
}

package config

import "time"

// Memory bounds the memory of the gateway's own process.
type Memory struct {
	// Limit is the soft limit of the process: Go collects its garbage harder near it. The
	// environment variable GOMEMLIMIT comes first. Default 0: half of the memory of the machine or
	// of the container, at least 128MiB.
	Limit Size `yaml:"limit"`
	// Relay is the sum of what managed requests may keep: bodies, whole answers, and events for
	// clients that read slowly or come back. A request that does not fit waits for 5 s and gets 503
	// then. Default 0: half of the soft limit.
	Relay Size `yaml:"relay"`
	// MaxAnswer is the largest managed answer that is no stream. A larger one is 502. It is never
	// more than half of relay. Default 64MiB.
	MaxAnswer Size `yaml:"max_answer" default:"64MiB" min:"1MiB"`
}

// Realtime bounds the WebSockets of /v1/realtime.
type Realtime struct {
	// MaxSockets is the greatest number of open WebSockets. Default 10000.
	MaxSockets int `yaml:"max_sockets" default:"10000" min:"1" max:"1000000" restart:"true"`
	// PerTenant is the greatest number of open WebSockets of one tenant. Default 0: four for each
	// stream that the tenant's max_concurrent_streams allows, at least 16; 1,000 for a tenant
	// without that limit.
	PerTenant int `yaml:"per_tenant" min:"0" max:"1000000"`
	// Idle is how long a WebSocket may be open without a turn and without a message of its client.
	// It is then closed with code 4408. 0s means for ever. Default 10m.
	Idle time.Duration `yaml:"idle" default:"10m" min:"0s" restart:"true"`
}

// Sockets returns the greatest number of open WebSockets of a tenant.
func (c *Config) Sockets(tenant string) int {
	const perStream, least, most = 4, 16, 1000
	if n := c.Realtime.PerTenant; n > 0 {
		return n
	}
	for i := range c.Tenants {
		if t := &c.Tenants[i]; t.Name == tenant && t.Limits.MaxConcurrentStreams > 0 {
			return max(perStream*t.Limits.MaxConcurrentStreams, least)
		}
	}
	return most
}

// checkMemory checks the sizes that were written into the file.
func (k *checker) checkMemory() {
	const least, leastRelay = 64 << 20, 16 << 20
	m := &k.config.Memory
	if m.Limit != 0 && m.Limit < least {
		k.faultf(path{"memory", "limit"}, "must be at least 64MiB, is %s", m.Limit)
	}
	if m.Relay != 0 && m.Relay < leastRelay {
		k.faultf(path{"memory", "relay"}, "must be at least 16MiB, is %s", m.Relay)
	}
	if m.Limit != 0 && m.Relay > m.Limit {
		k.faultf(path{"memory", "relay"}, "must be at most memory.limit, %s, is %s", m.Limit, m.Relay)
	}
}

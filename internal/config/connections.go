package config

import (
	"net/netip"
	"time"
)

// Connections bounds the connections of clients, so that no client takes them from the others.
type Connections struct {
	// Max is the greatest number of connections of clients at a time. Envoy closes further ones.
	// Default 0: a third of the limit of open files of Envoy, after an eighth for itself.
	Max int `yaml:"max" min:"0" max:"1000000"`
	// PerSource is the greatest number of connections of one source: an IPv4 address, or the first
	// 64 bits of an IPv6 address. Default 0: no limit while fewer than 80 % of all connections are
	// in use, and the source's fair share then.
	PerSource int `yaml:"per_source" min:"0" max:"1000000"`
	// TrustedProxies are the addresses of proxies and load balancers in front of this gateway, such
	// as 10.0.0.5 or 10.0.0.0/24. per_source and fair shares do not apply to them. Default: none.
	TrustedProxies []string `yaml:"trusted_proxies" form:"network"`
	// FirstRequest is how long a new connection may take to send the first line of a request.
	// Default 10s.
	FirstRequest time.Duration `yaml:"first_request" default:"10s" min:"1s"`
}

// Trusted returns TrustedProxies as networks. The check of the configuration guarantees their form.
func (c Connections) Trusted() []netip.Prefix {
	var all []netip.Prefix
	for _, text := range c.TrustedProxies {
		if p, err := parseNetwork(text); err == nil {
			all = append(all, p)
		}
	}
	return all
}

// Upload bounds the bodies of requests while they arrive. Envoy buffers each body until it is
// complete.
type Upload struct {
	// MinRate is the lowest rate of a body, in bytes per second. A body that takes longer than
	// grace and its length divided by min_rate gets 408. A body of unknown length may take as
	// long as one of max_body. 0 allows any rate. Default 32KiB.
	MinRate Size `yaml:"min_rate" default:"32KiB"`
	// Grace is the time that each body may take in any case. Default 10s.
	Grace time.Duration `yaml:"grace" default:"10s" min:"1s"`
	// MaxBytes is the greatest sum of the bodies that arrive at a time. A request above it gets
	// 503. One tenant may have three quarters of it. A body of unknown length counts as max_body,
	// but at most as a sixteenth of max_bytes. Default 0: a quarter of Envoy's memory.
	MaxBytes Size `yaml:"max_bytes"`
	// PerTenant is the greatest number of bodies of one tenant that arrive at a time. A request
	// above it gets 429. A tenant has never more of them than its max_concurrent_streams. Default
	// 0: no other limit.
	PerTenant int `yaml:"per_tenant" min:"0" max:"1000000"`
}

// Envoy bounds what Envoy may use, and how long it may hang.
type Envoy struct {
	// Memory is the size of the heap that Envoy must not exceed. At 95 % of it, Envoy refuses
	// requests with 503. An adopted Envoy keeps its size. Default 0: a quarter of the memory of the
	// machine or of the container, at least 256MiB.
	Memory Size `yaml:"memory"`
	// Workers is the number of Envoy's worker threads. Each of them has its own connections to each
	// engine, and fewer workers cost less CPU, because one call then reads and writes for several
	// requests. A change replaces the running Envoy at the next start of the gateway, and cuts no
	// stream. An Envoy that Sluice does not start has its own number. Default 0: one for each
	// processor that Envoy may use, at most 8.
	Workers int `yaml:"workers" min:"0" max:"512"`
	// HangTimeout is how long Envoy may answer neither on its admin interface nor on listen before
	// Sluice ends it and starts another one. 0s means never. Default 30s.
	HangTimeout time.Duration `yaml:"hang_timeout" default:"30s" min:"0s"`
	// Filter says what asks Sluice about each request: ext_proc, which every Envoy has, or module,
	// Sluice's own filter inside Envoy, which costs far less. auto is module where this program has
	// the filter and this version of Envoy loads it, else ext_proc. The environment variable
	// SLUICE_FILTER takes the place of auto. Default auto.
	Filter EnvoyFilter `yaml:"filter" default:"auto" oneof:"auto,module,ext_proc" restart:"false"`
}

// EnvoyFilter says what in Envoy asks Sluice about each request.
type EnvoyFilter string

// The values of EnvoyFilter.
const (
	FilterAuto    EnvoyFilter = "auto"
	FilterModule  EnvoyFilter = "module"
	FilterExtProc EnvoyFilter = "ext_proc"
)

// parseNetwork parses an address or a network in CIDR notation.
func parseNetwork(text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	return p.Masked(), err
}

// checkConnections checks what bounds connections, headers and Envoy's memory.
func (k *checker) checkConnections() {
	for i, text := range k.config.Connections.TrustedProxies {
		if _, err := parseNetwork(text); err != nil {
			k.faultf(path{"connections", "trusted_proxies"}.item(i), "must be an address or a network such as 10.0.0.0/24, is %s", quoted(text))
		}
	}
	const most = 1 << 20
	if n := k.config.MaxHeaderBytes; n > most {
		k.faultf(path{"max_header_bytes"}, "must be at most 1MiB, is %s", n)
	}
	if n := k.config.Upload.MaxBytes; n != 0 && n < k.config.MaxBody {
		k.faultf(path{"upload", "max_bytes"}, "must be at least max_body (%s), is %s", k.config.MaxBody, n)
	}
	const least = 64 << 20
	if m := k.config.Envoy.Memory; m != 0 && m < least+2*k.config.MaxBody {
		k.faultf(path{"envoy", "memory"}, "must be at least 64MiB and twice max_body (%s), is %s: Envoy with less refuses all requests", k.config.MaxBody, m)
	}
}

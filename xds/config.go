package xds

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"strconv"
	"time"
)

// Config is what the resources depend on besides the fleet. The zero value with Listen set is
// valid.
type Config struct {
	// Listen is the address on which Envoy accepts clients, host:port. The host is an IP address or
	// "localhost". Empty means all IPv4 addresses. Port 0 lets the kernel choose a port.
	Listen string
	// MaxBody is the largest request body in bytes. 0 means 32 MiB.
	MaxBody int64
	// MaxDuration is the longest time from the complete request to the end of its response. 0 means
	// 30 minutes.
	MaxDuration time.Duration
	// HideReplica removes the header that names the replica from responses.
	HideReplica bool
	// RelaySocket is the absolute path of the unix socket of Sluice's HTTP listener for managed
	// streams, at most 107 bytes: the relay, /v1/realtime and /v1/streams. If it is empty, Envoy
	// has none of these routes. The server must keep idle connections open for more than 30 s.
	RelaySocket string
	// GRPCSocket is the path of the unix socket of Sluice's gRPC listener for clients. If it is
	// empty, Envoy has no route to the gRPC service.
	GRPCSocket string
	// MaxHeaders and MaxHeaderBytes are Sluice's own limits of a request's headers. Envoy's are
	// higher, so that Sluice can answer, and can add headers. 0 means 100 and 60 KiB.
	MaxHeaders, MaxHeaderBytes int
	// TLS is the certificate of the listener. The zero value: clients connect without TLS.
	TLS TLS
	// FirstRequest is how long a new connection may take to send the first line of a request, or
	// with TLS for its handshake. 0 means 10 s.
	FirstRequest time.Duration
	// AskSource makes Envoy ask Sluice for each new connection whether its source may have one
	// more.
	AskSource bool
	// NearLimit lets new connections in before they have sent anything. Envoy can then ask Sluice
	// at once, and closes idle connections soon.
	NearLimit bool
	// MaxRelay is the greatest number of connections to the relay. 0 means no limit.
	MaxRelay int
	// Origins are the origins of pages that may call from a browser, with spaces between, as
	// config.CORS has them. Empty: those of other origins cannot.
	Origins string
	// Elsewhere says how Envoys of other hosts reach the gateways. The zero value: they cannot.
	Elsewhere Elsewhere
	// Instance names the process that listens on the two sockets. When it changes, Envoy opens new
	// connections there, and keeps the old ones only for the requests that they have. It may be
	// empty.
	Instance string

	// Filter is Sluice's own filter inside Envoy.
	Filter Filter

	// node is the Envoy of another host that the resources are for. The zero value: they are for
	// the Envoy of this host.
	node node
}

// The defaults of Config.
const (
	DefaultMaxBody     = 32 << 20
	DefaultMaxDuration = 30 * time.Minute
	// DefaultFirstRequest is short, since a client connects when it has a request.
	DefaultFirstRequest = 10 * time.Second
	// DefaultMaxHeaders and DefaultMaxHeaderBytes are far above what clients and their proxies
	// send.
	DefaultMaxHeaders     = 100
	DefaultMaxHeaderBytes = 60 << 10
)

// withDefaults replaces zero values by the defaults.
func (c Config) withDefaults() Config {
	c.MaxBody = cmp.Or(c.MaxBody, DefaultMaxBody)
	c.MaxDuration = cmp.Or(c.MaxDuration, DefaultMaxDuration)
	c.MaxHeaders = cmp.Or(c.MaxHeaders, DefaultMaxHeaders)
	c.MaxHeaderBytes = cmp.Or(c.MaxHeaderBytes, DefaultMaxHeaderBytes)
	c.FirstRequest = cmp.Or(c.FirstRequest, DefaultFirstRequest)
	return c
}

// check returns all faults of the Config.
func (c Config) check() error {
	_, err := c.listenAddress()
	if c.MaxBody < 0 || c.MaxBody > math.MaxUint32 {
		// Envoy counts buffered bytes in 32 bits.
		err = errors.Join(err, fmt.Errorf("max body %d is not between 0 and 4 GiB", c.MaxBody))
	}
	if c.MaxDuration < 0 {
		err = errors.Join(err, fmt.Errorf("max duration %v is negative", c.MaxDuration))
	}
	if c.FirstRequest < 0 {
		err = errors.Join(err, fmt.Errorf("first request timeout %v is negative", c.FirstRequest))
	}
	return errors.Join(err, checkSocket("relay", c.RelaySocket), checkSocket("gRPC", c.GRPCSocket), checkSocket("filter", c.Filter.Socket),
		c.TLS.check(), c.checkElsewhere())
}

// checkSocket refuses the path of a unix socket that Envoy cannot use. Empty is allowed.
func checkSocket(name, path string) error {
	if path == "" || path[0] == '/' && len(path) <= maxSocketPath {
		return nil
	}
	return fmt.Errorf("the %s socket needs an absolute path of at most %d bytes, not %q", name, maxSocketPath, path)
}

// listenAddress returns Listen as an IP address and a port. Envoy does not resolve names for a
// listener.
func (c Config) listenAddress() (netip.AddrPort, error) {
	host, port, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("listen: %w", err)
	}
	switch host {
	case "":
		host = "0.0.0.0"
	case "localhost":
		host = "127.0.0.1"
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("listen: %q is not an IP address", host)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("listen: %q is not a port", port)
	}
	return netip.AddrPortFrom(addr, uint16(n)), nil
}

// bytesText formats a size for people, in the largest unit that divides it.
func bytesText(n int64) string {
	switch {
	case n%(1<<20) == 0:
		return strconv.FormatInt(n>>20, 10) + " MiB"
	case n%(1<<10) == 0:
		return strconv.FormatInt(n>>10, 10) + " KiB"
	}
	return strconv.FormatInt(n, 10) + " bytes"
}

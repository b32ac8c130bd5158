package config

import (
	"math"
	"net/netip"
	"strconv"
	"strings"
)

// checkListeners checks the addresses that Sluice and Envoy listen on. With auth.mode none, listen
// must be on loopback. Without admin_auth, admin must be.
func (k *checker) checkListeners() {
	listen, ok := k.checkAddress(path{"listen"}, &k.config.Listen)
	admin, ok2 := k.checkAddress(path{"admin"}, &k.config.Admin)
	health := k.checkHealth(listen, admin)
	k.checkControl(listen, admin, health)
	k.checkPeers(listen, admin, health)
	k.checkAdminAuth(admin)
	k.checkTLS()
	k.checkAuth()
	k.checkCORS()
	if !ok || !ok2 {
		return
	}
	if overlap(listen, admin) {
		k.faultf(path{"admin"}, "%s is also the address of listen (%s): choose another port", admin, listen)
	}
	if auth := k.config.Auth; auth.Mode == AuthNone && !auth.Public && !listen.Addr().IsLoopback() {
		k.faultf(path{"auth", "mode"}, "none admits everybody, and %s can be reached from other machines: set listen: 127.0.0.1:%d, mode: keys, "+
			"or public: true where something in front of the gateway decides who may call", listen, listen.Port())
	}
}

// checkHealth checks the address of /healthz, /readyz and /metrics, and returns it if there is one.
// others are the other listeners; an invalid one is ignored.
func (k *checker) checkHealth(others ...netip.AddrPort) netip.AddrPort {
	at := path{"health"}
	if k.config.Health == "" {
		return netip.AddrPort{}
	}
	address, ok := k.checkAddress(at, &k.config.Health)
	if ok {
		k.checkOverlap(at, address, others)
	}
	return address
}

// overlap tells whether two listeners cannot exist together: they have the same port, and the same
// address or one of them has all addresses.
func overlap(a, b netip.AddrPort) bool {
	return a.Port() == b.Port() && (a.Addr() == b.Addr() || a.Addr().IsUnspecified() || b.Addr().IsUnspecified())
}

// checkPeers checks the address that other gateways reach this one by. others are the other
// listeners; an invalid one is ignored.
func (k *checker) checkPeers(others ...netip.AddrPort) {
	at := path{"peers"}
	if k.config.Peers == "" {
		return
	}
	address, ok := k.checkAddress(at, &k.config.Peers)
	switch {
	case !ok || !k.checkOverlap(at, address, others):
	case k.config.Redis == nil && k.valid(path{"redis"}):
		k.faultf(at, "has no effect without redis, by which gateways find each other: set redis, or remove peers")
	case address.Addr().IsUnspecified():
		k.faultf(at, "must be the address that the other gateways reach this one by, is %s, which is all addresses", address)
	}
}

// checkOverlap reports a listener that overlaps with one of others, and returns whether there is
// none.
func (k *checker) checkOverlap(at path, address netip.AddrPort, others []netip.AddrPort) bool {
	for _, other := range others {
		if other.IsValid() && overlap(address, other) {
			k.faultf(at, "%s is also the address of another listener (%s): choose another port", address, other)
			return false
		}
	}
	return true
}

// isNoPort reports whether a text is a number, but not that of a TCP port.
func isNoPort(text string) bool {
	n, err := strconv.ParseUint(text, 10, 64)
	return err == nil && (n == 0 || n > math.MaxUint16)
}

// checkAddress parses host:port and rewrites it with an IP address as host.
func (k *checker) checkAddress(at path, text *string) (netip.AddrPort, bool) {
	if !k.valid(at) {
		return netip.AddrPort{}, false
	}
	host, port, found := cutLast(*text, ":")
	switch {
	case host == "localhost":
		host = "127.0.0.1"
	case host == "" && found:
		host = "0.0.0.0"
	}
	if isNoPort(port) {
		k.faultf(at, "must have a port from 1 to 65535, is %s", quoted(*text))
		return netip.AddrPort{}, false
	}
	address, err := netip.ParseAddrPort(host + ":" + port)
	if err != nil || address.Addr().Zone() != "" {
		k.faultf(at, "must be host:port with an IP address as host, such as 127.0.0.1:8080, is %s", quoted(*text))
		return netip.AddrPort{}, false
	}
	*text = address.String()
	return address, true
}

// cutLast cuts text around the last separator. Without a separator before is the whole text.
func cutLast(text, separator string) (before, after string, found bool) {
	i := strings.LastIndex(text, separator)
	if i < 0 {
		return text, "", false
	}
	return text[:i], text[i+len(separator):], true
}

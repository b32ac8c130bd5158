package authz

import (
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"
)

// ownAddressesAge is how long the addresses of this machine are believed.
const ownAddressesAge = 5 * time.Second

type ownAddresses struct {
	read time.Time
	list []netip.Addr
}

var machine atomic.Pointer[ownAddresses]

// isOwn reports whether an address is one of this machine. Envoy names its own address as the
// client's for a client at 127.0.0.1 or ::1.
func isOwn(a netip.Addr) bool {
	known := machine.Load()
	if known == nil || time.Since(known.read) > ownAddressesAge {
		known = &ownAddresses{read: time.Now()}
		all, _ := net.InterfaceAddrs() // without them, no address is one of this machine
		for _, one := range all {
			if p, err := netip.ParsePrefix(one.String()); err == nil {
				known.list = append(known.list, p.Addr().Unmap())
			}
		}
		machine.Store(known)
	}
	return slices.Contains(known.list, a.WithZone(""))
}

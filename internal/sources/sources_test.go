package sources

import (
	"net"
	"net/netip"
	"testing"
)

// peer is a connection of which only the address of the other side is used.
type peer struct {
	net.Conn
	address net.Addr
}

func (p peer) RemoteAddr() net.Addr { return p.address }

// from returns a connection from an address.
func from(address string) peer {
	return peer{address: net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(address), 4000))}
}

// One address has at most MostOfSource connections, all together have at most Most. Each end makes
// room for one.
func TestCounter(t *testing.T) {
	c := Counter{Most: 3, MostOfSource: 2}
	first, second := c.Begin(from("10.0.0.1")), c.Begin(from("::ffff:10.0.0.1")) // the same address
	if first == nil || second == nil {
		t.Fatal("a connection below both limits is not counted")
	}
	if c.Begin(from("10.0.0.1")) != nil {
		t.Error("an address has more than its part")
	}
	other := c.Begin(from("10.0.0.2"))
	if other == nil {
		t.Fatal("one address keeps another one out")
	}
	if c.Begin(from("10.0.0.3")) != nil {
		t.Error("there are more than all may have")
	}
	other()
	other()
	if c.Begin(from("10.0.0.3")) == nil || c.Begin(from("10.0.0.4")) != nil {
		t.Error("an end that is called twice makes room for other than one")
	}
	first()
	if c.Begin(from("10.0.0.1")) == nil || c.Begin(from("10.0.0.1")) != nil {
		t.Error("an end makes room for other than one of its address")
	}
	if len(c.bySource) != 2 {
		t.Errorf("the addresses %v are kept", c.bySource)
	}
}

// Without Most, any number of addresses have connections. Peers without an address are one source.
func TestCounterWithoutALimitOfAll(t *testing.T) {
	c := Counter{MostOfSource: 1}
	for _, p := range []peer{from("10.0.0.1"), from("10.0.0.2"), from("2001:db8::1"), {address: &net.UnixAddr{Name: "a"}}} {
		if c.Begin(p) == nil {
			t.Errorf("%v is not counted", p.address)
		}
	}
	if c.Begin(peer{address: &net.UnixAddr{Name: "b"}}) != nil {
		t.Error("a second peer without an address is counted")
	}
}

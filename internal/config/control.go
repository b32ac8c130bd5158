package config

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/netip"
	"strconv"
)

// Control says where nodes and Envoys of other hosts reach the gateway.
type Control struct {
	// Nodes is the host:port on which further nodes join (sluice node --join), over TLS with
	// certificates that Sluice makes itself. The command sluice node token NAME makes a token that
	// admits one node, once. Default: empty, no node can join.
	Nodes string `yaml:"nodes" form:"listener"`
	// Listen is the host:port on which Envoys of other hosts reach the gateway, over TLS with
	// certificates of both sides. The command sluice bootstrap prints what such an Envoy starts
	// with. Default: empty, only an Envoy of this host can use the gateway.
	Listen string `yaml:"listen" form:"listener"`
	// Cert is the path of the gateway's certificate, in PEM. Sluice reads the files cert and key
	// again when they change. A relative path counts from the folder of the file.
	Cert string `yaml:"cert"`
	// Key is the path of the key of cert, in PEM.
	Key string `yaml:"key"`
	// ClientCA is the path of the certificates of the authorities that sign the certificates of
	// Envoys, in PEM, read again like cert. It may be absent only if listen is on loopback, and
	// then everybody on this machine may connect.
	ClientCA string `yaml:"client_ca"`
	// Allowed are the names that the certificate of an Envoy may have: each a DNS name or a URI of
	// it. Default: empty, every certificate of client_ca is accepted.
	Allowed []string `yaml:"allowed"`
	// Addresses are the host:port at which Envoys find gateways: those of all gateways, or a name
	// with the addresses of all of them. Default: listen, which must then be one address.
	Addresses []string `yaml:"addresses" form:"target"`
	// Advertise is the IP address and port at which Envoys reach this gateway. Default: the address
	// to which an Envoy has connected, which is wrong only behind address translation.
	Advertise string `yaml:"advertise" form:"listener"`
	// ServerName is the name for which Envoys check the certificate of every gateway. Default: the
	// first DNS name of cert, else its first address.
	ServerName string `yaml:"server_name"`
}

// checkControl checks the addresses for nodes and for Envoys. others are the other listeners; an
// invalid one is ignored.
func (k *checker) checkControl(others ...netip.AddrPort) {
	c, at := &k.config.Control, path{"control"}
	nodesAt := at
	if k.isSet(at.field("nodes")) {
		nodesAt = at.field("nodes")
	}
	if c.Nodes != "" {
		if nodes, ok := k.checkAddress(nodesAt, &c.Nodes); ok {
			k.checkOverlap(nodesAt, nodes, others)
			others = append(others, nodes)
		}
	}
	if c.Listen == "" {
		k.checkNoControl(at)
		return
	}
	listen, ok := k.checkAddress(at.field("listen"), &c.Listen)
	if !ok {
		return
	}
	k.checkOverlap(at.field("listen"), listen, others)
	k.checkControlCertificates(at, listen)
	k.checkControlAddresses(at, listen)
}

// checkNoControl reports fields that have no effect because no Envoy of another host can connect.
func (k *checker) checkNoControl(at path) {
	for _, name := range []string{"cert", "key", "client_ca", "allowed", "addresses", "advertise", "server_name"} {
		if field := at.field(name); k.isSet(field) && k.valid(field) && k.valid(at.field("listen")) {
			k.faultf(field, "has no effect without control.listen, on which Envoys of other hosts connect")
			return
		}
	}
}

// checkControlCertificates reads the certificates once, so that a wrong one is a fault of the file.
func (k *checker) checkControlCertificates(at path, listen netip.AddrPort) {
	c := &k.config.Control
	for _, file := range []named{{c.Cert, at.field("cert")}, {c.Key, at.field("key")}} {
		if file.name == "" && k.valid(file.at) {
			k.faultf(file.at, "is needed with control.listen: the path of a PEM file")
		}
	}
	if c.ClientCA == "" && k.valid(at.field("client_ca")) && !listen.Addr().IsLoopback() {
		k.faultf(at.field("client_ca"), "is needed because %s can be reached from other machines: without it everybody there could "+
			"speak as Envoy and name any tenant", listen)
	}
	if !k.valid(at.field("cert")) || !k.valid(at.field("key")) || !k.valid(at.field("client_ca")) {
		return
	}
	if !k.checkPair(at, &c.Cert, &c.Key) {
		return
	}
	pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
	if err != nil {
		k.faultf(at.field("cert"), "cannot be used with its key: %v", err)
		return
	}
	if c.ServerName == "" {
		c.ServerName = firstName(pair.Leaf)
	}
	if c.ServerName == "" {
		k.faultf(at.field("cert"), "names no host, so Envoys cannot check it: make one with a subject alternative name")
	}
	if c.ClientCA == "" {
		return
	}
	c.ClientCA = k.absolutePath(c.ClientCA)
	if _, err := readCertificates(c.ClientCA); err != nil {
		k.faultf(at.field("client_ca"), "cannot be read: %v", err)
	}
}

// firstName returns the first DNS name of a certificate, else its first address, else "".
func firstName(c *x509.Certificate) string {
	switch {
	case len(c.DNSNames) > 0:
		return c.DNSNames[0]
	case len(c.IPAddresses) > 0:
		return c.IPAddresses[0].String()
	}
	return ""
}

// checkControlAddresses checks the addresses that Envoys are told.
func (k *checker) checkControlAddresses(at path, listen netip.AddrPort) {
	c := &k.config.Control
	if c.Advertise != "" {
		if address, ok := k.checkAddress(at.field("advertise"), &c.Advertise); ok && address.Addr().IsUnspecified() {
			k.faultf(at.field("advertise"), "must be the address of this gateway, is %s, which is all addresses", address)
		}
	}
	if len(c.Addresses) == 0 && k.valid(at.field("addresses")) {
		if listen.Addr().IsUnspecified() {
			k.faultf(at.field("addresses"), "is needed because %s is all addresses: list the host:port at which Envoys find the gateways", listen)
			return
		}
		c.Addresses = []string{c.Listen}
	}
	for i, address := range c.Addresses {
		host, port, err := net.SplitHostPort(address)
		number, errPort := strconv.ParseUint(port, 10, 16)
		if field := at.field("addresses").item(i); k.valid(field) && (err != nil || host == "" || errPort != nil || number == 0) {
			k.faultf(field, "must be host:port, such as sluice-control:9444, is %s", quoted(address))
		}
	}
}

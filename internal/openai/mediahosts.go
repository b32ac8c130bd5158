package openai

import (
	"errors"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/net/publicsuffix"
)

// Rules of MediaHosts that are no hosts.
const (
	// PublicHosts permits the hosts of the internet.
	PublicHosts = "public"
	// AnyHost permits every URL.
	AnyHost = "*"
)

// MediaHosts says from which hosts an engine may fetch media. The zero value permits none. Two
// values of the same rules are equal.
type MediaHosts struct {
	any, public bool
	rules       string // those of hosts, with a blank between two
}

// hostRule permits a host, the hosts below a domain, or a range of addresses.
type hostRule struct {
	// name is a host or an address as in MediaURL, or a domain if it begins with a dot. Empty:
	// addresses counts.
	name      string
	addresses netip.Prefix
	// port is the only port that is permitted. 0: every port is.
	port uint16
}

// ParseMediaHosts reads a list of rules: public, *, a host, *.domain for the hosts below it, an
// address, or a range of addresses. A host, a domain and an address may have a port.
func ParseMediaHosts(list []string) (MediaHosts, error) {
	var h MediaHosts
	for _, text := range list {
		switch text {
		case PublicHosts:
			h.public = true
		case AnyHost:
			h.any = true
		default:
			if _, err := parseHostRule(text); err != nil {
				return MediaHosts{}, err
			}
			h.rules += text + " "
		}
	}
	return h, nil
}

var errNoRange = errors.New("must be the first address of a range of IPv4 or IPv6")

var errNoHostRule = errors.New("must be public, *, or a host as in images.example.com, *.example.com, 10.0.0.5, [fd00::5]:9000 or 10.0.0.0/8")

func parseHostRule(text string) (hostRule, error) {
	if prefix, err := netip.ParsePrefix(text); err == nil {
		if prefix.Addr().Is4In6() || prefix != prefix.Masked() {
			return hostRule{}, errNoRange
		}
		return hostRule{addresses: prefix}, nil
	}
	if address, err := netip.ParseAddr(text); err == nil && address.Is6() {
		text = "[" + text + "]"
	}
	name, below := strings.CutPrefix(text, "*.")
	host, port := hostPort(name)
	_, err := netip.ParseAddr(host)
	if isAddress := err == nil; host == "" || host == PublicHosts || below && isAddress { // no host is below an address
		return hostRule{}, errNoHostRule
	}
	if below {
		host = "." + host
	}
	return hostRule{name: host, port: port}, nil
}

// Refused returns the first of the URLs that the rules do not permit. likeLlamaCpp says that the
// engine may look for the host as llama.cpp does.
func (h *MediaHosts) Refused(urls []MediaURL, likeLlamaCpp bool) (u MediaURL, refused bool) {
	if h.any || len(urls) == 0 {
		return MediaURL{}, false
	}
	var rules []hostRule
	for text := range strings.FieldsSeq(h.rules) {
		rule, _ := parseHostRule(text) // ParseMediaHosts has read it
		rules = append(rules, rule)
	}
	for _, u := range urls {
		if (!u.BehindAt || likeLlamaCpp) && !h.permits(rules, u) {
			return u, true
		}
	}
	return MediaURL{}, false
}

func (h *MediaHosts) permits(rules []hostRule, u MediaURL) bool {
	if u.Host == "" {
		return false
	}
	address, err := netip.ParseAddr(u.Host)
	isAddress := err == nil
	for _, rule := range rules {
		if rule.permits(u, address) {
			return true
		}
	}
	if isAddress {
		return h.public && isPublicAddress(address)
	}
	return h.public && isPublicName(u.Host)
}

// permits reports whether the rule permits a URL. address is the host of the URL if that is an
// address.
func (rule hostRule) permits(u MediaURL, address netip.Addr) bool {
	switch {
	case rule.port != 0 && rule.port != u.Port:
		return false
	case rule.name == "":
		return rule.addresses.Contains(address)
	case rule.name[0] == '.':
		return strings.HasSuffix(u.Host, rule.name)
	}
	return rule.name == u.Host
}

// isPublicName reports whether a name is below one of the domains of the internet. Names of one
// word, those of a cluster such as redis.default.svc and those of the metadata of a cloud are not.
func isPublicName(name string) bool {
	suffix, managed := publicsuffix.PublicSuffix(name)
	switch top := name[strings.LastIndexByte(name, '.')+1:]; {
	case top == "arpa" || top == "onion":
		return false
	case name == "metadata.goog" || name == "metadata.tencentyun.com": // within the clouds of Google and Tencent
		return false
	}
	return name != suffix && (managed || strings.Contains(suffix, "."))
}

// isPublicAddress reports whether an address is one of the internet.
func isPublicAddress(address netip.Addr) bool {
	if address.Is6() && !internet6.Contains(address) {
		return false
	}
	return !slices.ContainsFunc(notPublic, func(other netip.Prefix) bool { return other.Contains(address) })
}

// internet6 has all addresses of the internet that were ever assigned in IPv6.
var internet6 = netip.MustParsePrefix("2000::/3")

// notPublic are the ranges of addresses that are not global by the registries of the IANA for
// special purposes. It also has those by which IPv6 reaches IPv4, and the address of Azure's
// services for a virtual machine.
var notPublic = func() (all []netip.Prefix) {
	for text := range strings.FieldsSeq(`0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24
		192.0.2.0/24 192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/3 168.63.129.16/32
		2001::/23 2001:db8::/32 2002::/16 3fff::/20`) {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}()

// String names the host for people.
func (u MediaURL) String() string {
	switch {
	case u.Host == "" && u.BehindAt:
		return "what is behind the @ of a path, which some servers take for the host (write the @ as %40)"
	case u.Host == "":
		return "a URL whose host servers read in different ways (name it in ASCII, without a user, escapes or short forms of addresses)"
	case u.BehindAt:
		return "the host " + u.Host + ", which some servers find behind the @ of a path (write it as %40)"
	}
	return "the host " + u.Host
}

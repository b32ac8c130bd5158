package upstream

import (
	"context"
	"errors"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"

	"go.uber.org/zap"
)

// A host name may have several addresses. Usually the server is the first of them. With
// Settings.ResolveAll, each address is a server of its own, and the addresses are followed.

var errNoAddress = errors.New("the host name has no address")

// lookUp returns the addresses of the server at the URL, because Envoy's endpoints must be
// addresses. They are sorted, so that the first is stable while the name's addresses are. A host
// with addresses of both families is known by both, so only the IPv4 addresses count then. There is
// at least one address, or an error.
func (l *Launcher) lookUp(ctx context.Context, base string) ([]netip.AddrPort, error) {
	host, portText, err := net.SplitHostPort(hostPort(base))
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return nil, err
	}
	found, err := l.Resolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	var v4, v6 []netip.AddrPort
	for _, address := range found {
		if address = address.Unmap(); address.Is4() {
			v4 = append(v4, netip.AddrPortFrom(address, uint16(port)))
		} else {
			v6 = append(v6, netip.AddrPortFrom(address, uint16(port)))
		}
	}
	addresses := v4
	if len(v4) == 0 {
		addresses = v6
	}
	if len(addresses) == 0 {
		return nil, errNoAddress
	}
	slices.SortFunc(addresses, netip.AddrPort.Compare)
	return slices.Compact(addresses), nil
}

// followNames looks up the host names whose addresses are servers of their own, and makes and drops
// the servers of addresses that have come and gone. It keeps them if a name server does not answer.
func (l *Launcher) followNames(ctx context.Context) {
	var lookups sync.WaitGroup
	for _, url := range l.followed() {
		lookups.Go(func() {
			limited, cancel := context.WithTimeout(ctx, l.Timeout)
			defer cancel()
			addresses, err := l.lookUp(limited, url)
			if ctx.Err() == nil && (err == nil || isUnknownName(err)) {
				l.setAddresses(url, addresses)
			}
		})
	}
	lookups.Wait()
}

// followed returns the URLs whose host names are followed. A host that is an address is not.
func (l *Launcher) followed() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var urls []string
	for url, settings := range l.desired.Settings {
		host, _, _ := net.SplitHostPort(hostPort(url))
		if _, err := netip.ParseAddr(host); settings.ResolveAll && err != nil {
			urls = append(urls, url)
		}
	}
	return urls
}

// setAddresses makes each address a server of the URL, and drops its other servers. Without an
// address, one server stands for the URL, and its check says what is wrong.
func (l *Launcher) setAddresses(url string, addresses []netip.AddrPort) {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.byURLLocked()[url]
	if len(old) == 0 || !l.desired.Settings[url].ResolveAll {
		return // The URL is no longer wanted, or no longer followed.
	}
	if len(addresses) == 0 {
		addresses = []netip.AddrPort{{}}
	}
	wanted := map[string]*server{}
	for _, address := range addresses {
		s := newServer(url, address)
		wanted[s.key] = s
	}
	stays := slices.ContainsFunc(old, func(s *server) bool { return wanted[s.key] != nil })
	for key, s := range wanted {
		if l.servers[key] != nil {
			continue
		}
		s.transport, s.client, s.discovered = old[0].transport, old[0].client, old[0].discovered
		if !stays && s.pinned.IsValid() {
			s.list = old[0].list // the models stay until a server is checked
		}
		l.servers[key] = s
		l.Log.Info("upstream address found", zap.String("replica", s.id))
	}
	for _, s := range old {
		if wanted[s.key] == nil {
			delete(l.servers, s.key)
			l.Log.Info("upstream address gone", zap.String("replica", s.id))
		}
	}
	l.publishLocked()
}

// byURLLocked returns the servers by URL, those of each sorted by key. l.mu must be held.
func (l *Launcher) byURLLocked() map[string][]*server {
	all := map[string][]*server{}
	for _, key := range slices.Sorted(maps.Keys(l.servers)) {
		s := l.servers[key]
		all[s.url] = append(all[s.url], s)
	}
	return all
}

// carryOver returns the servers of a URL that stay when the configuration changes: those of its
// addresses if they are followed, else one. A new one has the list of the old ones.
func carryOver(url string, old []*server, resolveAll bool) []*server {
	kept := slices.Clone(old)
	if !resolveAll {
		kept = slices.DeleteFunc(kept, func(s *server) bool { return s.pinned.IsValid() })
	}
	if len(kept) > 0 {
		return kept
	}
	s := newServer(url, netip.AddrPort{})
	if len(old) > 0 {
		s.list = old[0].list // The models stay until the server is checked.
	}
	return []*server{s}
}

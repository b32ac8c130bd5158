package upstream

import (
	"maps"
	"net/netip"
	"slices"
	"time"
)

// Status is what is known of one server, for operators.
type Status struct {
	// URL is the server's URL, and Replica its id as a replica. A URL whose addresses are servers
	// of their own has several.
	URL, Replica string
	// Address is the address that the server is called at. It is not valid before it is known.
	Address netip.AddrPort
	// Addresses is how many addresses the host name had at the last lookup. 0 means that Address is
	// one of several servers of the URL, or that there was no lookup yet.
	Addresses int
	// Checked says that a check of the server has ended. Fault says why the server gets no
	// requests; it is empty if it gets some.
	Checked bool
	Fault   string
	// Since is when the server became healthy or faulty.
	Since time.Time
	// Discovered says that the server's own models are served.
	Discovered bool
	// NoList says that the server has no list of models.
	NoList bool
	// Listed are the names that the server lists, sorted, the first maxShownModels. ListedCount
	// counts all of them.
	Listed      []string
	ListedCount int
	// Serves are the models that the server is a replica of.
	Serves []string
	// Filtered counts the listed models that the patterns of the configuration leave out.
	Filtered int
	// Clashes are the listed names that belong to something else in the configuration.
	Clashes []string
	// Refused says what the list has that cannot be served. It is empty if there is nothing.
	Refused string
}

// maxShownModels is how many listed names a Status has.
const maxShownModels = 100

// Servers returns what is known of each server, in the order of their keys.
func (l *Launcher) Servers() []Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := []Status{}
	for _, key := range slices.Sorted(maps.Keys(l.servers)) {
		all = append(all, l.statusLocked(l.servers[key]))
	}
	return all
}

// statusLocked returns what is known of a server. l.mu must be held.
func (l *Launcher) statusLocked(s *server) Status {
	status := Status{
		URL: s.url, Replica: s.id, Address: s.address, Addresses: s.addresses, Checked: s.checked, Fault: s.fault, Since: s.since,
		Discovered: s.discovered != nil, NoList: s.checked && s.list.absent,
		Listed: s.list.listed[:min(len(s.list.listed), maxShownModels)], ListedCount: len(s.list.listed),
	}
	status.Serves, status.Clashes = l.servedLocked(s)
	if s.discovered == nil {
		return status
	}
	for _, name := range s.list.names {
		if !s.discovered.serves(name) {
			status.Filtered++
		}
	}
	if refused := s.list.refused; refused.any() {
		refused.Server = s.key
		status.Refused = refused.Message()
	}
	return status
}

// Package upstream reports servers that someone else runs as replicas. The gateway runs its
// Launcher for the upstreams in the configuration file.
//
// The Launcher checks every server every ten seconds. A check fetches the server's list of models
// from GET /v1/models or GET /models. The list shows that the server is alive and which models it
// serves. The models of a server that is listed under upstreams appear and disappear with the list.
// A server without a list is probed (probe.go), and so is one whose probe the configuration names.
// A host name with several addresses can stand for several servers (addresses.go).
//
// A URL is the name of its server here. A URL may have several servers, which differ in their key,
// their headers or the path of their API. Then the URL of each but the first has a fragment.
//
// Names of the configuration belong to the configuration (names.go). A model that it defines is
// served by the servers that it names for the model, and by discovered servers that may join. Any
// other server that lists such a name is a clash, and gets no requests for it.
package upstream

import (
	"cmp"
	"context"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/engines"
)

// Source is the source under which this package reports to the fleet.
const Source = "upstream"

// Config is the configuration of a Launcher. Fleet and Log are required.
type Config struct {
	Fleet *engines.Fleet
	Log   *zap.Logger
	// Interval is the time between two checks of a server. 0 means 10 s.
	Interval time.Duration
	// Timeout is the timeout of a check. 0 means 5 s.
	Timeout time.Duration
	// Client sends the requests of checks. Nil means a client that follows no redirects.
	Client *http.Client
	// Resolver looks up host names. Nil means net.DefaultResolver.
	Resolver *net.Resolver
	// Drained reports whether an operator has drained the replica of this id. The Launcher calls it
	// with its lock held. Nil means that none is drained.
	Drained func(replica string) bool
}

// Model is a model that the configuration file defines, with its servers.
type Model struct {
	engines.Model
	URLs []string
	// Names are the model's names on servers that know it by another name, by URL.
	Names map[string]string
}

// Desired is the wanted set of models and servers.
type Desired struct {
	// Models are the models that the file defines.
	Models []Model
	// Discover lists the servers whose own models are to be served.
	Discover []Discovered
	// Reserved holds the names of the configuration: models, aliases, adapters and pools.
	Reserved map[string]Reserved
	// Access tells how to call a server, by URL. Most servers need none.
	Access map[string]Access
	// Settings are what the configuration says of a server, by URL.
	Settings map[string]Settings
}

// Settings are what the configuration says of one server.
type Settings struct {
	// Slots is how many requests the server works on at once. 0 means that the configuration does
	// not say.
	Slots int
	// HealthPath is the path of a GET that the healthy server answers with a status from 200 to
	// 399. Empty means its list of models or, if it has none, /health, /info or /.
	HealthPath string
	// ResolveAll makes each address of the URL's host name a server of its own. Otherwise the first
	// address is the server.
	ResolveAll bool
}

// Launcher checks servers and reports them to the fleet. Its methods may be called from any
// goroutine.
type Launcher struct {
	Config
	// checkSignal asks Run for a check of all servers. Its capacity is 1.
	checkSignal chan struct{}

	mu sync.Mutex
	// desired is the argument of the last Set. servers holds the servers by key. Guarded by mu.
	desired Desired
	servers map[string]*server
	// clashes are those of the last report to the fleet. A new slice replaces them. Guarded by mu.
	clashes []Clash
}

// server is the state of one upstream server. Launcher.mu guards the fields from address on; the
// other fields never change.
type server struct {
	// url is the server's URL, and id its id as a replica. key is its name in messages: the URL,
	// with the address if the URL has several.
	url, id, key string
	// pinned is the address if the URL has several. Otherwise each check looks the address up.
	pinned    netip.AddrPort
	transport *engines.Transport
	client    *http.Client
	address   netip.AddrPort
	// addresses is how many addresses the last lookup has found.
	addresses int
	// discovered is the server's entry in Discover; nil if it has none.
	discovered *Discovered
	// list is the server's list of models. It is empty before the first successful check.
	list modelList
	// fault tells why the server gets no requests. It is empty if the server is healthy.
	fault string
	since time.Time
	// checked is true once a check has ended. checking is true while Run checks the server, and
	// again if it is to do so once more after that.
	checked, checking, again bool
	// health is the server's health for each model that has failed there.
	health map[string]modelHealth
	// failedAt is when a request to the server last failed.
	failedAt time.Time
}

// newServer returns a server that is not checked yet. An address that is not valid stands for the
// one that each check looks up.
func newServer(url string, pinned netip.AddrPort) *server {
	s := &server{url: url, id: replicaID(url), key: url, pinned: pinned, address: pinned, since: time.Now()}
	if pinned.IsValid() {
		s.id += "@" + pinned.Addr().String()
		s.key += " at " + pinned.Addr().String()
	}
	return s
}

// New returns a Launcher. It starts nothing.
func New(c Config) *Launcher {
	c.Interval = cmp.Or(c.Interval, 10*time.Second)
	c.Timeout = cmp.Or(c.Timeout, 5*time.Second)
	if c.Client == nil {
		c.Client = engines.NewClient(nil)
	}
	c.Resolver = cmp.Or(c.Resolver, net.DefaultResolver)
	if c.Drained == nil {
		c.Drained = func(string) bool { return false }
	}
	return &Launcher{Config: c, checkSignal: make(chan struct{}, 1), servers: map[string]*server{}}
}

// Set replaces the wanted models and servers. A server that is no longer named leaves the fleet at
// once. A server whose access has changed is checked before it gets requests again.
func (l *Launcher) Set(d Desired) {
	l.mu.Lock()
	l.desired = d
	known := l.byURLLocked()
	transports := transportsOf(d, known)
	l.servers = map[string]*server{}
	for _, url := range d.urls() {
		t := transports[url]
		for _, s := range carryOver(url, known[url], d.Settings[url].ResolveAll) {
			if s.client == nil || s.transport != t {
				list := s.list
				s = newServer(url, s.pinned)
				s.transport, s.client, s.list = t, l.clientFor(t), list // It keeps its models until it is checked.
			}
			s.discovered = d.discovered(url)
			l.servers[s.key] = s
		}
	}
	l.publishLocked()
	l.mu.Unlock()
	l.requestCheck()
}

func (d Desired) urls() []string {
	var urls []string
	for _, s := range d.Discover {
		urls = append(urls, s.URL)
	}
	for _, m := range d.Models {
		urls = append(urls, m.URLs...)
	}
	slices.Sort(urls)
	return slices.Compact(urls)
}

func (l *Launcher) requestCheck() {
	select {
	case l.checkSignal <- struct{}{}:
	default:
	}
}

// Run checks the servers every Interval and after each Set, until ctx ends. It then returns nil. A
// server that answers slowly delays the checks of no other.
func (l *Launcher) Run(ctx context.Context) error {
	tick := time.NewTicker(l.Interval)
	defer tick.Stop()
	// Other clients close their idle connections after a timeout.
	defer l.Client.CloseIdleConnections()
	var checks sync.WaitGroup
	defer checks.Wait()
	for asked := true; ; {
		l.followNames(ctx)
		for s, q := range l.due(asked) {
			checks.Go(func() {
				l.checkServer(ctx, s, q)
				l.checkEnded(s)
			})
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			asked = false
		case <-l.checkSignal:
			asked = true
		}
	}
}

// CheckOnce checks all servers once. The gateway calls it before it serves, so that it knows the
// models. It returns after the slowest check. Lookups and checks take at most Timeout each.
func (l *Launcher) CheckOnce(ctx context.Context) {
	l.followNames(ctx)
	var checks sync.WaitGroup
	for s, q := range l.questions() {
		checks.Go(func() { l.checkServer(ctx, s, q) })
	}
	checks.Wait()
}

// checkServer checks a server and applies the result.
func (l *Launcher) checkServer(ctx context.Context, s *server, q question) {
	if seen := l.check(ctx, q); ctx.Err() == nil {
		l.applyResult(s, seen)
	}
}

// due returns what the servers that are not being checked are to be asked. The others are checked
// once more after their check if somebody has asked for checks.
func (l *Launcher) due(asked bool) map[*server]question {
	all := l.questions()
	l.mu.Lock()
	defer l.mu.Unlock()
	for s := range all {
		if s.checking {
			s.again = s.again || asked
			delete(all, s)
		}
		s.checking = true
	}
	return all
}

// checkEnded notes that Run has checked the server.
func (l *Launcher) checkEnded(s *server) {
	l.mu.Lock()
	again := s.again
	s.checking, s.again = false, false
	l.mu.Unlock()
	if again {
		l.requestCheck()
	}
}

func (l *Launcher) questions() map[*server]question {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[*server]question{}
	for _, s := range l.servers {
		all[s] = question{Client: s.client, base: s.url, transport: s.transport, address: s.pinned, last: s.address, lastCount: s.addresses,
			healthPath: l.desired.Settings[s.url].HealthPath, discover: s.discovered != nil}
	}
	return all
}

func (l *Launcher) applyResult(s *server, seen checkResult) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.servers[s.key] != s {
		return // The server is no longer wanted, or its access has changed.
	}
	if seen.address.IsValid() {
		s.address, s.addresses = seen.address, seen.addresses
	}
	switch {
	case seen.err == nil && seen.startedAt.Before(s.failedAt):
		return // The check began before a request failed there.
	case seen.err == nil:
		if seen.list != nil {
			l.setListLocked(s, *seen.list)
		}
		l.setFaultLocked(s, "")
		l.recoverLocked(s)
	case seen.inconclusive && s.checked && s.fault == "" && l.isLastOfAnyLocked(s):
		// The server may only be too busy to answer, and it is the last one of a model.
		l.failLocked(s, "", seen.err.Error())
	default:
		l.setFaultLocked(s, seen.err.Error())
	}
	s.checked = true
	l.publishLocked()
}

// setListLocked replaces the server's list of models and logs names that are newly refused. l.mu
// must be held.
func (l *Launcher) setListLocked(s *server, list modelList) {
	before := s.list.refused
	s.list = list
	if now := list.refused; now.any() && !now.equal(before) {
		now.Server = s.key
		l.Log.Warn("discovered names refused", zap.String("replica", s.id), zap.String("reason", now.Message()))
	}
}

// setFaultLocked sets the fault of s and logs a change between healthy and faulty. l.mu must be
// held.
func (l *Launcher) setFaultLocked(s *server, fault string) {
	if s.fault == fault {
		return
	}
	if (s.fault == "") != (fault == "") {
		s.since = time.Now()
		l.Log.Info("upstream health changed", zap.String("replica", s.id),
			zap.Bool("healthy", fault == ""), zap.String("reason", fault))
	}
	s.fault = fault
}

// publishLocked reports all models and servers to the fleet. l.mu must be held.
func (l *Launcher) publishLocked() {
	var part engines.Part
	known, clashes := map[string]bool{}, map[string][]string{}
	for name := range l.desired.Reserved {
		known[name] = true // A model that a server joins is reported by its own launcher.
	}
	for _, m := range l.desired.Models {
		known[m.Name] = true
		part.Models = append(part.Models, m.Model)
	}
	for _, key := range slices.Sorted(maps.Keys(l.servers)) {
		s := l.servers[key]
		models, clashing := l.servedLocked(s)
		for _, name := range models {
			if !known[name] {
				known[name] = true
				part.Models = append(part.Models, engines.Model{Name: name, Launcher: engines.Upstream, Discovered: true})
			}
			served := l.desired.nameOn(name, s.url)
			r := s.replica(name, cmp.Or(s.list.askedAs[cmp.Or(served, name)], served))
			r.Slots = l.desired.Settings[s.url].Slots
			part.Replicas = append(part.Replicas, r)
		}
		for _, name := range clashing {
			clashes[name] = append(clashes[name], s.id)
		}
	}
	l.setClashesLocked(clashes)
	l.Fleet.Set(Source, part)
}

// replica returns the server as a replica of the model, which it knows as served; "" is the model's
// own name.
func (s *server) replica(model, served string) engines.Replica {
	r := engines.Replica{ID: s.id, Model: model, ServedModel: served, Address: s.address, Host: hostHeader(s.url), Transport: s.transport,
		Launcher: engines.Upstream, Since: s.since, Reason: s.fault, CloseDelimited: s.list.closeDelimited}
	if h := s.health[model]; s.fault == "" {
		r.Reason = h.fault
		if h.since.After(r.Since) {
			r.Since = h.since
		}
	}
	switch {
	case !s.checked:
		r.State = engines.Starting
	case r.Reason == "":
		r.State = engines.Ready
	default:
		r.State = engines.Failed
	}
	return r
}

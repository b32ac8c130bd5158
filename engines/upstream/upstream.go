// Package upstream reports servers that someone else runs as replicas. The gateway runs its
// Launcher for the upstreams in the configuration file.
//
// The Launcher checks every server every ten seconds. A check fetches the server's list of models
// from GET /v1/models or GET /models. The list shows that the server is alive and which models it
// serves. The models of a server that is listed under upstreams appear and disappear with the list.
// A model that the file defines itself is served by the servers that the file names for it.
package upstream

import (
	"context"
	"errors"
	"fmt"
	"maps"
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
}

// Model is a model that the configuration file defines, with its servers.
type Model struct {
	engines.Model
	URLs []string
}

// Desired is the wanted set of models and servers.
type Desired struct {
	// Models are the models that the file defines.
	Models []Model
	// Discover lists the URLs of servers whose own models are to be served.
	Discover []string
	// Access tells how to call a server, by URL. Most servers need none.
	Access map[string]Access
}

// Launcher checks servers and reports them to the fleet. Its methods may be called from any
// goroutine.
type Launcher struct {
	Config
	// checkSignal asks Run for a check of all servers. Its capacity is 1.
	checkSignal chan struct{}

	mu sync.Mutex
	// desired is the argument of the last Set. servers holds the servers by URL. Guarded by mu.
	desired Desired
	servers map[string]*server
}

// server is the state of one upstream server. Launcher.mu guards the fields from address on; the
// other fields never change.
type server struct {
	url, id   string
	transport *engines.Transport
	client    *http.Client
	address   netip.AddrPort
	// models is the server's list of models. It is nil before the first successful check.
	models []string
	// fault tells why the server gets no requests. It is empty if the server is healthy.
	fault string
	since time.Time
	// checked is true once a check has ended.
	checked bool
	// failedAt is when a request to the server last failed.
	failedAt time.Time
}

// New returns a Launcher. It starts nothing.
func New(c Config) *Launcher {
	if c.Interval == 0 {
		c.Interval = 10 * time.Second
	}
	if c.Timeout == 0 {
		c.Timeout = 5 * time.Second
	}
	if c.Client == nil {
		c.Client = newClient(nil)
	}
	return &Launcher{Config: c, checkSignal: make(chan struct{}, 1), servers: map[string]*server{}}
}

// Set replaces the wanted models and servers. A server that is no longer named leaves the fleet at
// once. A server whose access has changed is checked before it gets requests again.
func (l *Launcher) Set(d Desired) {
	l.mu.Lock()
	l.desired = d
	wanted := map[string]bool{}
	transports := l.transportsLocked(d)
	for _, url := range d.urls() {
		wanted[url] = true
		s, t := l.servers[url], transports[url]
		if s != nil && s.transport == t {
			continue
		}
		l.servers[url] = &server{url: url, id: replicaID(url), transport: t, client: l.clientFor(t), since: time.Now()}
		if s != nil {
			l.servers[url].models = s.models // The server keeps its models until it is checked.
		}
	}
	maps.DeleteFunc(l.servers, func(url string, _ *server) bool { return !wanted[url] })
	l.publishLocked()
	l.mu.Unlock()
	l.requestCheck()
}

func (d Desired) urls() []string {
	urls := slices.Clone(d.Discover)
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

// Run checks the servers every Interval and after each Set, until ctx ends. It then returns nil.
func (l *Launcher) Run(ctx context.Context) error {
	tick := time.NewTicker(l.Interval)
	defer tick.Stop()
	// Other clients close their idle connections after a timeout.
	defer l.Client.CloseIdleConnections()
	for {
		l.checkAll(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-l.checkSignal:
		}
	}
}

// CheckOnce checks all servers once. The gateway calls it before it serves, so that it knows the
// models.
func (l *Launcher) CheckOnce(ctx context.Context) { l.checkAll(ctx) }

// checkAll checks all servers concurrently. It returns after the slowest check, which takes at most
// Timeout.
func (l *Launcher) checkAll(ctx context.Context) {
	l.mu.Lock()
	servers := slices.Collect(maps.Values(l.servers))
	l.mu.Unlock()
	var looks sync.WaitGroup
	for _, s := range servers {
		looks.Go(func() {
			// These fields never change.
			seen := l.check(ctx, modelClient{s.client, s.url, s.transport})
			if ctx.Err() == nil {
				l.applyResult(s, seen)
			}
		})
	}
	looks.Wait()
}

// applyResult applies the result of a check.
func (l *Launcher) applyResult(s *server, seen checkResult) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.servers[s.url] != s {
		return // The server is no longer wanted, or its access has changed.
	}
	if seen.address.IsValid() {
		s.address = seen.address
	}
	switch {
	case seen.err == nil && seen.startedAt.Before(s.failedAt):
		return // The check began before a request failed there.
	case seen.err == nil:
		s.models = seen.models
		l.setFaultLocked(s, "")
	case seen.inconclusive && s.checked && s.fault == "" && l.isLastLocked(s):
		return // The server may only be too busy to answer, and it is the last one of a model.
	default:
		l.setFaultLocked(s, seen.err.Error())
	}
	s.checked = true
	l.publishLocked()
}

// RecordFailure records that a request to the replica failed: there was no connection, or the
// response had a status of 500 or above. The server gets no more requests until its next successful
// check. The last healthy server of a model keeps getting requests.
func (l *Launcher) RecordFailure(replica, what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.servers {
		if s.id == replica && s.fault == "" && !l.isLastLocked(s) {
			s.failedAt = time.Now()
			l.setFaultLocked(s, what)
			l.publishLocked()
			return
		}
	}
}

// isLastLocked reports whether s is the last healthy server of a model. l.mu must be held.
func (l *Launcher) isLastLocked(s *server) bool {
	for _, model := range l.servedLocked(s) {
		others := 0
		for _, o := range l.servers {
			if o != s && o.fault == "" && o.checked && slices.Contains(l.servedLocked(o), model) {
				others++
			}
		}
		if others == 0 {
			return true
		}
	}
	return false
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

// servedLocked returns the models of the server: those that the file assigns to it, and its own if
// it is listed in Discover. l.mu must be held.
func (l *Launcher) servedLocked(s *server) []string {
	var models []string
	for _, m := range l.desired.Models {
		if slices.Contains(m.URLs, s.url) {
			models = append(models, m.Name)
		}
	}
	if slices.Contains(l.desired.Discover, s.url) {
		for _, name := range s.models {
			if !slices.Contains(models, name) {
				models = append(models, name)
			}
		}
	}
	return models
}

// publishLocked reports all models and servers to the fleet. l.mu must be held.
func (l *Launcher) publishLocked() {
	var part engines.Part
	named := map[string]bool{}
	for _, m := range l.desired.Models {
		named[m.Name] = true
		part.Models = append(part.Models, m.Model)
	}
	for _, url := range slices.Sorted(maps.Keys(l.servers)) {
		s := l.servers[url]
		for _, name := range l.servedLocked(s) {
			if !named[name] {
				named[name] = true
				part.Models = append(part.Models, engines.Model{Name: name, Launcher: engines.Upstream, Discovered: true})
			}
			part.Replicas = append(part.Replicas, s.replica(name))
		}
	}
	l.Fleet.Set(Source, part)
}

// Faults returns why servers fail their health check, by URL.
func (l *Launcher) Faults() map[string]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[string]string{}
	for url, s := range l.servers {
		if s.checked && s.fault != "" {
			all[url] = s.fault
		}
	}
	return all
}

func (s *server) replica(model string) engines.Replica {
	r := engines.Replica{ID: s.id, Model: model, Address: s.address, Host: hostHeader(s.url), Transport: s.transport,
		Launcher: engines.Upstream, Since: s.since, Reason: s.fault}
	switch {
	case !s.checked:
		r.State = engines.Starting
	case s.fault == "":
		r.State = engines.Ready
	default:
		r.State = engines.Failed
	}
	return r
}

var errNoAddress = errors.New("the host name has no address")

func statusError(code int) error {
	if code == http.StatusUnauthorized || code == http.StatusForbidden {
		return fmt.Errorf("its list of models answered %d: check the key that the gateway sends", code)
	}
	return fmt.Errorf("its list of models answered %d", code)
}

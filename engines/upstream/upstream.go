// Package upstream makes replicas out of servers that someone else runs.
//
// Every server is looked at every ten seconds: its list of models, from GET /v1/models or GET /models, is both what it serves
// and the proof that it lives. Models of servers that the file merely lists appear and go by themselves; models that the file
// names are served by the servers it gives for them.
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

// Source is the name under which this package sets its part of the fleet.
const Source = "upstream"

// Config is what a Launcher works with.
type Config struct {
	Fleet *engines.Fleet
	Log   *zap.Logger
	// Every is the time between two looks at a server; 0 means 10 s.
	Interval time.Duration
	// Timeout of one look; 0 means 5 s.
	Timeout time.Duration
	// Client makes the looks; nil means one of our own that follows no redirects.
	Client *http.Client
}

// Model is a model that the file names and the servers that it is on.
type Model struct {
	engines.Model
	URLs []string
}

// Desired is what the launcher is to make true.
type Desired struct {
	// Models named in the file.
	Models []Model
	// Discover lists the servers whose own models are to appear.
	Discover []string
	// Access is how the servers are called, by URL; most need nothing.
	Access map[string]Access
}

// Launcher watches servers and reports them to the fleet.
type Launcher struct {
	Config
	// changed asks Run for a round outside the rhythm
	checkSignal chan struct{}

	mu sync.Mutex
	// desired and servers (by URL) are guarded by mu
	desired Desired
	servers map[string]*server
}

// server is what is known of one upstream.
type server struct {
	url, id   string
	transport *engines.Transport
	client    *http.Client
	address   netip.AddrPort
	// models it lists; nil before the first good look
	models []string
	// fault says why it gets no requests; empty when it is healthy
	fault string
	since time.Time
	// looked is whether a look has ended yet
	checked bool
	// failed is when a request last failed there
	failedAt time.Time
}

// New returns a Launcher that watches nothing yet.
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

// Set replaces what is desired. Servers that are no longer named leave the fleet at once. One that is called in another way than before is
// looked at before it gets requests again.
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
			l.servers[url].models = s.models // they do not vanish meanwhile
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

// Run looks at the servers until ctx ends.
func (l *Launcher) Run(ctx context.Context) error {
	tick := time.NewTicker(l.Interval)
	defer tick.Stop()
	defer l.Client.CloseIdleConnections() // the others' close by themselves
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

// Once looks at every server once, for a start that wants to know its models before it serves.
func (l *Launcher) CheckOnce(ctx context.Context) { l.checkAll(ctx) }

// round looks at all servers at the same time; the next round waits for the slowest, at most for Timeout.
func (l *Launcher) checkAll(ctx context.Context) {
	l.mu.Lock()
	servers := slices.Collect(maps.Values(l.servers))
	l.mu.Unlock()
	var looks sync.WaitGroup
	for _, s := range servers {
		looks.Go(func() {
			seen := l.check(ctx, modelClient{s.client, s.url, s.transport}) // these never change
			if ctx.Err() == nil {
				l.applyResult(s, seen)
			}
		})
	}
	looks.Wait()
}

// saw takes in the outcome of a look.
func (l *Launcher) applyResult(s *server, seen checkResult) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.servers[s.url] != s {
		return // no longer wanted, or not in this way
	}
	if seen.address.IsValid() {
		s.address = seen.address
	}
	switch {
	case seen.err == nil && seen.startedAt.Before(s.failedAt):
		return // it saw the server as it was before a request failed there
	case seen.err == nil:
		s.models = seen.models
		l.setFaultLocked(s, "")
	case seen.inconclusive && s.checked && s.fault == "" && l.isLastLocked(s):
		return // too busy to answer is no reason to be left with nothing
	default:
		l.setFaultLocked(s, seen.err.Error())
	}
	s.checked = true
	l.publishLocked()
}

// Failed tells that a request to the replica failed on its side: a response of 500 and above, or no connection. The server gets
// no more requests until the next good look, unless it is the last healthy one of a model of its own: then it is kept.
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

// lastLocked says whether some model would be left without a healthy server.
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

func (l *Launcher) setFaultLocked(s *server, fault string) {
	if s.fault == fault {
		return
	}
	if (s.fault == "") != (fault == "") {
		s.since = time.Now()
		l.Log.Info("upstream", zap.String("replica", s.id), zap.Bool("healthy", fault == ""), zap.String("reason", fault))
	}
	s.fault = fault
}

// servedLocked lists the models that the server stands for, by the file's word or its own.
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

// publishLocked sets this package's part of the fleet anew.
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

var errNoAddress = errors.New("the host has no address")

func statusError(code int) error {
	if code == http.StatusUnauthorized || code == http.StatusForbidden {
		return fmt.Errorf("its list of models answered %d: it wants another key than it is given", code)
	}
	return fmt.Errorf("its list of models answered %d", code)
}

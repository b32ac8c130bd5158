package gateway

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/admission/redis"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/limits"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// limitKeeper puts limits in force: those of the file, with the overrides that operators have set
// at run time.
type limitKeeper struct {
	log        *zap.Logger
	fleet      *engines.Fleet
	dispatcher *dispatch.Dispatcher
	committed
	// shared is the state in Redis; nil without Redis.
	shared *redis.Store
	// overrides joins the limits of the file with those set at run time.
	overrides *limits.Overrides

	// discovered are the discovered models that have limits. They belong to Gateway.start, and then
	// to Gateway.followFleet.
	discovered []string

	// syncing is held while the limits of the file are read and handed to overrides, so that an
	// older file never follows a newer one. enforcing does the same for the rules that the
	// dispatcher gets.
	syncing, enforcing sync.Mutex
	// streams is max_concurrent_streams of each tenant that has one, for the path of a request.
	streams atomic.Pointer[map[string]int]
	// ofKeys are the limits of the keys of run time, by the names that admission has for them.
	ofKeys atomic.Pointer[map[string]admission.TenantLimits]
}

// makeAdmission makes the controller of admission, the keeper of limits and the dispatcher. Their
// state is in Redis if the file names one, else in the state directory.
func (g *Gateway) makeAdmission() error {
	c := g.options.Config
	a := admission.Config{MaxQueueBytes: int64(c.MaxQueueBytes), Gateway: randomName(8),
		TaskJournal: filepath.Join(g.dir.Path(), "tasks.jsonl")}
	k := &limitKeeper{log: g.log, fleet: g.fleet, committed: committed{first: c}}
	k.streams.Store(&map[string]int{})
	k.ofKeys.Store(&map[string]admission.TenantLimits{})
	backend := limits.File(filepath.Join(g.dir.Path(), "limits.json"))
	if g.redis != nil {
		store, err := redis.New(redis.Config{Server: *g.redis, Gateway: a.Gateway, Lease: c.OrphanGrace + leaseMargin,
			Timeout: c.RedisTimeout, Refresh: k.refresh, Log: g.log})
		if err != nil {
			return err
		}
		k.shared, a.Shared, backend = store, store, store
	}
	k.overrides = limits.New(limits.Config{Backend: backend, Log: g.log})
	g.admission = admission.New(a)
	host, _ := os.Hostname() // an error is ignored: all gateways without a name then count as on one host
	// The policies come with the first configuration that is put in force.
	g.dispatcher = dispatch.New(dispatch.Config{Fleet: g.fleet, Admission: g.admission, Host: host,
		Demand: func(model string) { g.launchers.demand(model) }, Shared: k.shared != nil, OnPlaced: g.onPlaced(),
		Failed: g.failed, Doubted: g.doubted, ExplainPicks: g.log.Core().Enabled(zap.DebugLevel), NoSamples: !samples()})
	k.dispatcher = g.dispatcher
	g.limits, g.responses = k, &responseKeeper{log: g.log, dir: g.dir, dispatcher: g.dispatcher}
	return g.makeRemoteRouting()
}

// leaseMargin is how long the leases of a gateway that died outlive the replicas that it started.
const leaseMargin = 15 * time.Second

// components lists what runs until its context ends.
func (k *limitKeeper) components() []func(context.Context) error {
	if k.shared == nil {
		return nil
	}
	return []func(context.Context) error{k.shared.Run}
}

// fileLimits returns the limits that the file gives to models and tenants, by the keys of
// overrides. Discovered models are there too, with the limits that the file gives them all.
func (k *limitKeeper) fileLimits(c *config.Config) map[string]limits.Values {
	all := map[string]limits.Values{}
	for name, m := range k.fleet.Snapshot().Models {
		if m.Discovered {
			all[limits.ModelKey(name)] = limits.FromFile(admission.ModelScope, c.Discovered.Admission).Patchable(admission.ModelScope)
		}
	}
	for _, m := range c.Models {
		all[limits.ModelKey(m.Name)] = limits.FromFile(admission.ModelScope, m.Admission).Patchable(admission.ModelScope)
	}
	for _, t := range c.Tenants {
		all[limits.TenantKey(t.Name)] = limits.FromFile(admission.TenantScope, t, t.Limits).Patchable(admission.TenantScope)
	}
	return all
}

// mayReturn returns a function that reports whether a key is that of a model that c does not name,
// but that may be discovered. Before the upstreams and Kubernetes have answered for the first time,
// all discovered models and all models of custom resources are such models.
func mayReturn(c *config.Config) func(key string) bool {
	if !c.DiscoversModels() {
		return nil
	}
	named := map[string]bool{}
	for _, m := range c.Models {
		named[limits.ModelKey(m.Name)] = true
	}
	return func(key string) bool { return strings.HasPrefix(key, limits.ModelKey("")) && !named[key] }
}

// rules returns the rules of the file with the limits in force.
func (k *limitKeeper) rules(c *config.Config) dispatch.Rules {
	longest := maxDuration(c)
	r := dispatch.Rules{
		Default:   discoveredPolicy(c, longest),
		Models:    make(map[string]dispatch.Policy, len(c.Models)),
		Pools:     make(map[string][]string, len(c.Pools)),
		Tenants:   make(map[string]admission.TenantLimits, len(c.Tenants)),
		TaskLease: c.TaskLease, TaskLifetime: c.TaskLifetime,
		Moderated: moderated(c), DefaultModel: c.DefaultModel,
	}
	for name, m := range k.fleet.Snapshot().Models {
		if m.Discovered {
			r.Models[name] = k.withOverrides(name, r.Default)
		}
	}
	for _, m := range c.Models {
		own := policy(m, longest)
		version, _ := c.Launch(m)
		own.PrefillRate = version.PrefillRate
		r.Models[m.Name] = k.withOverrides(m.Name, own)
	}
	for _, p := range c.Pools {
		r.Pools[p.Name] = p.Models
	}
	if len(c.Pools) > 0 {
		r.FirstPool = c.Pools[0].Name
	}
	for _, t := range c.Tenants {
		r.Tenants[t.Name] = k.tenant(t)
	}
	maps.Copy(r.Tenants, fileKeyLimits(c))
	maps.Copy(r.Tenants, *k.ofKeys.Load())
	return r
}

// setKeys puts the limits of the keys of run time in force.
func (k *limitKeeper) setKeys(all map[string]admission.TenantLimits) {
	if !maps.Equal(*k.ofKeys.Load(), all) {
		k.ofKeys.Store(&all)
		k.enforce()
	}
}

// discoveredPolicy returns the policy of a model that the file does not have.
func discoveredPolicy(c *config.Config, longest time.Duration) dispatch.Policy {
	p := policy(c.DiscoveredModel(), longest)
	p.KeepStrategy = c.Discovered.StrategySet
	return p
}

// withOverrides returns the policy of a model with the limits in force.
func (k *limitKeeper) withOverrides(model string, p dispatch.Policy) dispatch.Policy {
	if e, ok := k.overrides.Get(limits.ModelKey(model)); ok {
		e.Values.SetModel(&p.Limits)
	}
	return p
}

// tenant returns the limits in force of a tenant.
func (k *limitKeeper) tenant(t config.Tenant) admission.TenantLimits {
	var l admission.TenantLimits
	limits.FromFile(admission.TenantScope, t, t.Limits).SetTenant(&l)
	if e, ok := k.overrides.Get(limits.TenantKey(t.Name)); ok {
		e.Values.SetTenant(&l)
	}
	return l
}

// limitsFault turns an error of a change of limits into what the operator reads.
func limitsFault(key string, err error) *openai.Error {
	var invalid *limits.Invalid
	switch {
	case errors.As(err, &invalid):
		return &openai.Error{Code: openai.CodeInvalidRequest, Param: invalid.Field, Message: invalid.Field + " " + invalid.Reason + "."}
	case errors.Is(err, limits.ErrUnknown):
		return notFound("There is no %s.", strings.Replace(key, "/", " ", 1))
	}
	return openai.Errorf(openai.CodeGatewayUnavailable,
		"The change could not be stored, so it is not in force at this gateway: %v", err)
}

// limitsTimeout bounds how long a change waits for the store of the overrides.
const limitsTimeout = 2 * time.Second

// commit puts the limits of c in force.
func (k *limitKeeper) commit(c *config.Config) {
	k.current.Store(c)
	k.sync()
}

// sync hands the limits of the configuration in force to overrides, and puts the result in force.
// When the store of the overrides cannot be reached, the limits of the file and the overrides that
// are already known are in force.
func (k *limitKeeper) sync() {
	ctx, cancel := context.WithTimeout(context.Background(), limitsTimeout)
	defer cancel()
	k.syncing.Lock()
	defer k.syncing.Unlock()
	c := k.config()
	if err := k.overrides.Sync(ctx, k.fileLimits(c), mayReturn(c)); err != nil {
		k.log.Error("overrides of limits not read or not stored, some may not be in force", zap.Error(err))
	}
	k.enforce()
}

// discover gives limits to the discovered models, which can then be changed at run time. It does so
// when other models were discovered than before.
func (k *limitKeeper) discover(s *engines.Snapshot) {
	if now := discoveredModels(s); !slices.Equal(k.discovered, now) {
		k.discovered = now
		k.sync()
	}
}

// discoveredModels lists the models that the file does not name, sorted.
func discoveredModels(s *engines.Snapshot) []string {
	var names []string
	for name, m := range s.Models {
		if m.Discovered {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// refresh puts the limits in force that another gateway has changed. It returns their version.
func (k *limitKeeper) refresh(ctx context.Context) (string, error) {
	if err := k.overrides.Reload(ctx); err != nil {
		return "", err
	}
	k.enforce()
	return k.overrides.Version(), nil
}

// enforce tells the dispatcher the rules of the configuration in force, with the limits in force.
func (k *limitKeeper) enforce() {
	k.enforcing.Lock()
	defer k.enforcing.Unlock()
	rules := k.rules(k.config())
	streams := map[string]int{}
	for name, l := range rules.Tenants {
		if l.MaxConcurrent > 0 {
			streams[name] = l.MaxConcurrent
		}
	}
	k.streams.Store(&streams)
	k.dispatcher.SetRules(rules)
}

// maxStreams returns max_concurrent_streams of a tenant, or 0.
func (k *limitKeeper) maxStreams(tenant string) int { return (*k.streams.Load())[tenant] }

// patch changes limits at run time, effective on the next request. key names the model or the
// tenant; a nil value removes an override.
func (k *limitKeeper) patch(ctx context.Context, key string, changes map[string]*int64) *openai.Error {
	ctx, cancel := context.WithTimeout(ctx, limitsTimeout)
	defer cancel()
	if _, err := k.overrides.Patch(ctx, key, changes); err != nil {
		return limitsFault(key, err)
	}
	k.enforce()
	return nil
}

// lookup returns the limits in force of the model or tenant that key names, those of the file, and
// the names of the limits that are overridden.
func (k *limitKeeper) lookup(key string) (values, file map[string]int64, patched []string, ok bool) {
	e, ok := k.overrides.Get(key)
	return e.Values, e.File, e.Patched, ok
}

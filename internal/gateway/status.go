package gateway

import (
	"context"
	"math"
	"os"
	"time"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/envoy"
	"github.com/sluice-gateway/sluice/internal/admin"
	"github.com/sluice-gateway/sluice/internal/adminclient"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/telemetry"
)

// adminConfig returns the funcs from which the admin listener reads. Each func reads the current
// state of the running parts.
func (g *Gateway) adminConfig() admin.Config {
	return admin.Config{
		Listen:      g.options.Config.Admin,
		Keys:        keyAdmin{g},
		Fleet:       g.fleet.Snapshot,
		Status:      g.status,
		NotReady:    g.notReady,
		Conditions:  g.conditions.List,
		ModelLoad:   g.modelLoad,
		ReplicaLoad: g.replicaLoad,
		Requests:    g.listRequests,
		Request:     g.findRequest,
		TraceURL:    g.traceURL(),
		Strategy:    g.strategy,
		Nodes:       g.launchers.allNodes,
		Upstreams:   g.upstreamViews,
		Tenants:     g.tenants,
		Usage:       g.usage.Query,
		Pools:       g.poolViews,
		Limits:      g.limits.lookup,
		PatchLimits: g.limits.patch,
		Pick:        g.pick,
		Actions:     g.operator,
		History:     g.past,
		Events:      g.events,
		PlanReload:  g.planReload,
		Reload:      func(_ context.Context, force bool) error { return g.watcher.Reload(force) },
		Chat:        admin.NewChat(adminclient.DialAddress(g.options.Config.Listen), g.options.Config.TLS != nil),
		Metrics:     g.scrape(g.metrics.Handler()),
		Access:      g.access.Load,
		SessionKey:  g.sessionKey(),
		Log:         g.log,
	}
}

func (g *Gateway) status() admin.Status {
	x, file := g.envoy.server.Status(), g.watcher.Status()
	s := admin.Status{
		Version: g.options.Version,
		PID:     os.Getpid(),
		Started: g.started,
		Upgrade: g.upgradeStatus(),
		Listen:  g.options.Config.Listen,
		TLS:     g.options.Config.TLS != nil,
		Envoy:   admin.EnvoyStatus{State: "external", Version: x.EnvoyVersion, Filter: string(config.FilterExtProc)},
		XDS:     admin.XDSStatus{Connected: x.Connected, Nacks: x.Nacks},
		Shared:  g.limits.status(),
		Config: admin.ConfigStatus{Path: file.Path, Hash: file.Hash, LoadedAt: file.LoadedAt, Faults: file.Messages(), Held: file.Held,
			NeedsRestart: file.NeedsRestart},
	}
	if x.LastNack != nil {
		last := admin.Nack(*x.LastNack)
		s.XDS.LastNack = &last
	}
	for _, n := range x.Refused {
		s.XDS.Refused = append(s.XDS.Refused, admin.Nack(n))
	}
	if g.envoy.process != nil {
		e := g.envoy.process.Status()
		s.Envoy = admin.EnvoyStatus{State: string(e.State), PID: e.PID, Version: e.Version, Adopted: e.Adopted,
			Restarts: e.Restarts, Reason: e.Reason, Filter: string(g.filter.asks(g.config()))}
		for _, l := range e.Predecessors {
			s.Envoy.Predecessors = append(s.Envoy.Predecessors, admin.Predecessor{PID: l.PID, Version: l.Version, Requests: l.Requests})
		}
	}
	return s
}

// notReady returns the reasons for which this gateway cannot take requests, one sentence each. How
// many replicas a model has is no such reason: see modelConditions.
func (g *Gateway) notReady() []string {
	var missing []string
	if g.drainUntil.Load() != nil {
		missing = append(missing, "the gateway is draining")
	}
	if g.envoy.process != nil {
		if s := g.envoy.process.Status(); s.State != envoy.StateLive {
			does, _ := describeEnvoy(s)
			missing = append(missing, does)
		}
	}
	alone := g.envoy.process == nil && g.options.Config.Control.Listen != "" // Envoys of other hosts come and go
	if x := g.envoy.server.Status(); !x.Configured && !alone {
		missing = append(missing, "Envoy has not accepted its listener")
	}
	return missing
}

// needed returns how many replicas a model must have to count as ready: the desired number, without
// the replicas above least that fit on no node. Those are not counted, because clients can be
// served without them.
func needed(m *engines.ModelSnapshot, least int) int {
	n := m.Desired
	for i := range m.Replicas {
		if m.Replicas[i].State == engines.Pending && n > least {
			n--
		}
	}
	return n
}

// upgradeStatus tells of the processes before this one.
func (g *Gateway) upgradeStatus() admin.UpgradeStatus {
	var s admin.UpgradeStatus
	s.Failed, s.FailedAt = g.succession.failure.last()
	for _, p := range g.carried.Predecessors() {
		s.Predecessors = append(s.Predecessors, admin.Predecessor{PID: p.PID, Version: p.Version, Requests: p.Requests})
	}
	return s
}

// modelLoad returns the load of a model and its limits in force.
func (g *Gateway) modelLoad(model string) admin.ModelLoad {
	v, ok := g.dispatcher.View(model)
	if !ok {
		return admin.ModelLoad{}
	}
	drained, drainedReplicas := g.dispatcher.Drained()
	return admin.ModelLoad{
		Usable: v.Ready, DrainedReplicas: g.countDrained(model, drainedReplicas), Drained: drained[model], Scale: g.launchers.scaleOf(model),
		Scaled:   g.launchers.lastScaled(model),
		InFlight: v.InFlight, Queued: v.Queued, QueuedBytes: v.QueuedBytes,
		Limits: admin.Limits{
			Weight:                     v.Policy.Limits.Weight,
			MaxConcurrentRequests:      v.Policy.Limits.MaxConcurrent,
			MaxTokensPerMinute:         v.Policy.Limits.TokensPerMinute,
			MaxPerReplica:              v.Policy.MaxPerReplica,
			MaxPrefillPerReplica:       v.Policy.MaxPrefillPerReplica,
			MaxPrefillTokensPerReplica: v.Policy.MaxPrefillTokensPerReplica,
			MaxQueue:                   v.Policy.Limits.MaxQueue,
			QueueTimeout:               v.Policy.Limits.QueueTimeout,
		},
	}
}

// countDrained returns how many ready replicas of a model are among those that an operator has
// drained.
func (g *Gateway) countDrained(model string, drained map[string]bool) (n int) {
	if m := g.fleet.Snapshot().Models[model]; m != nil && len(drained) > 0 {
		for i := range m.Replicas {
			if r := &m.Replicas[i]; r.State == engines.Ready && drained[r.ID] {
				n++
			}
		}
	}
	return n
}

// replicaLoad returns the load that this gateway has put on a replica.
func (g *Gateway) replicaLoad(r engines.Replica) admin.ReplicaLoad {
	l := g.dispatcher.Replica(r.Model, r.ID)
	_, drained := g.dispatcher.Drained()
	return admin.ReplicaLoad{InFlight: l.Load, Served: l.Served, Max: l.Limit, MaxFrom: string(l.LimitFrom), CloseDelimited: l.CloseDelimited,
		Engine: g.engineNews(r.ID), Command: replicaCommand(g.config(), g.self, r), Drained: drained[r.ID]}
}

// engineNews returns what the engine of a replica says of itself; nil if it has not been asked.
func (g *Gateway) engineNews(replica string) *admin.EngineNews {
	n, ok := g.news.News(replica)
	if !ok {
		return nil
	}
	age := math.Round(10*time.Since(n.At).Seconds()) / 10
	return &admin.EngineNews{
		Name: n.Engine, Running: told(n.Running, n.Running >= 0), Waiting: told(n.Waiting, n.Waiting >= 0),
		KVUsage: told(n.KVUsage, n.KVUsage >= 0), CacheTokens: told(n.CacheTokens, n.CacheTokens > 0),
		CachedTokens: told(n.CachedTokens, n.CachedTokens >= 0), PrefillRate: told(math.Round(n.PrefillRate), n.PrefillRate > 0),
		Slots: told(n.Slots, n.Slots > 0), AgeSeconds: told(age, !n.At.IsZero()), Fault: n.Fault,
	}
}

// told returns a pointer to the value, or nil if it is not known.
func told[T any](value T, known bool) *T {
	if !known {
		return nil
	}
	return &value
}

// tenants returns the tenants of the file. When auth.mode is none, the list also has the tenant
// that stands for callers without a key.
func (g *Gateway) tenants() []admin.Tenant {
	var list []admin.Tenant
	uses := budgetUses(budgetsInForce(g.usage.Standings(), time.Now()))
	for _, t := range g.config().Tenants {
		list = append(list, g.tenant(t, uses[t.Name]))
	}
	if _, open := g.auth.Tenant(authz.Anyone); open {
		list = append(list, g.tenant(config.Tenant{Name: authz.Anyone, Models: []string{"*"}, Priority: config.DefaultPriority, Weight: 1}, nil))
	}
	return list
}

// tenant returns a tenant for the admin listener, with its budgets and those of its keys.
func (g *Gateway) tenant(t config.Tenant, budgets []admin.BudgetUse) admin.Tenant {
	l, now := g.limits.tenant(t), g.admission.Tenant(t.Name)
	return admin.Tenant{
		Name: t.Name, Models: t.Models, Keys: len(t.Keys), Priority: string(t.Priority),
		InFlight: now.Running + now.Queued, Running: now.Running, Prefill: now.Prefill, Queued: now.Queued, Quota: tenantQuota(l, now),
		Budgets: budgets,
		Limits: admin.TenantLimits{
			Weight: l.Weight, RequestsPerMinute: l.RequestsPerMinute, TokensPerMinute: l.TokensPerMinute,
			MaxConcurrentStreams: l.MaxConcurrent, MaxPrefill: l.MaxPrefill, MaxQueueBytes: l.MaxQueueBytes,
		},
	}
}

// poolViews returns the pools for the admin listener.
func (g *Gateway) poolViews() []admin.Pool {
	var list []admin.Pool
	for _, p := range g.config().Pools {
		list = append(list, admin.Pool{Name: p.Name, Models: p.Models, Queued: g.admission.PoolStats(p.Name).Queued})
	}
	return list
}

// poolModels returns the models of each pool that a client may ask for.
func (g *Gateway) poolModels() map[string][]string {
	pools := map[string][]string{}
	for _, p := range g.config().Pools {
		pools[p.Name] = p.Models
	}
	return pools
}

// status returns the status of the state in Redis. It is zero without Redis.
func (k *limitKeeper) status() admin.SharedStatus {
	if k.shared == nil {
		return admin.SharedStatus{}
	}
	s := k.shared.Status()
	return admin.SharedStatus{Configured: true, Up: s.Up, Mode: s.Mode, Gateways: s.Gateways, Since: s.Since, LastError: s.LastError}
}

// names returns the models and pools, replicas and tenants that exist now.
func (g *Gateway) names() telemetry.Names {
	all := telemetry.Names{Models: map[string]bool{}, Upstreams: map[string]bool{}, Tenants: map[string]bool{}}
	for name, m := range g.fleet.Snapshot().Models {
		all.Models[name] = true
		for i := range m.Replicas {
			r := &m.Replicas[i]
			all.Upstreams[r.ID], all.Upstreams[r.Address.String()] = true, true
		}
	}
	for _, p := range g.config().Pools { // requests that were refused before they had a model of the pool
		all.Models[p.Name] = true
	}
	all.Tenants[authz.Anyone] = true
	for _, t := range g.config().Tenants {
		all.Tenants[t.Name] = true
	}
	return all
}

// gauges returns the values of the gauges. It is called at every scrape.
func (g *Gateway) gauges() telemetry.Gauges {
	x := g.envoy.server.Status()
	all := telemetry.Gauges{Envoy: x.EnvoyVersion, XDSNacks: x.Nacks, Envoys: x.Envoys, Conditions: g.conditions.List(), Pools: g.poolModels()}
	all.Budgets = append(g.edgeBudgets(), g.memoryBudgets()...)
	for name, m := range g.fleet.Snapshot().Models {
		v, _ := g.dispatcher.View(name)
		states := map[string]int{}
		for _, r := range m.Replicas {
			states[string(r.State)]++
			all.Restarts = append(all.Restarts, telemetry.RestartGauges{Model: name, Replica: r.ID, Count: r.Restarts})
			if n, ok := g.news.News(r.ID); ok {
				all.Engines = append(all.Engines, telemetry.EngineGauges{Model: name, Replica: r.ID,
					Running: n.Running, Waiting: n.Waiting, KVUsage: n.KVUsage})
			}
		}
		all.Models = append(all.Models, telemetry.ModelGauges{Name: name, InFlight: v.InFlight, Queued: v.Queued, Replicas: states,
			Launched: m.Launcher == engines.Local || m.Launcher == engines.Kubernetes || m.Launcher == engines.Ray, Desired: m.Desired})
	}
	tenant := func(name string) {
		now := g.admission.Tenant(name)
		all.Tenants = append(all.Tenants, telemetry.TenantGauges{Name: name, Running: now.Running, Queued: now.Queued})
	}
	for _, t := range g.config().Tenants {
		tenant(t.Name)
	}
	if _, open := g.auth.Tenant(authz.Anyone); open {
		tenant(authz.Anyone)
	}
	for _, node := range g.launchers.allNodes() {
		for _, gpu := range node.GPUs {
			if gpu.MemoryTotal > 0 {
				all.GPUs = append(all.GPUs, telemetry.GPUGauges{UUID: gpu.UUID, Total: gpu.MemoryTotal, Used: gpu.MemoryUsed})
			}
		}
	}
	if g.limits.shared != nil {
		s := g.limits.shared.Status()
		all.Shared = &telemetry.SharedGauges{Up: s.Up, Gateways: s.Gateways, Errors: uint64(s.Errors)}
	}
	all.Routing = g.routing.gauges()
	for _, s := range budgetsInForce(g.usage.Standings(), time.Now()) {
		all.Spending = append(all.Spending, telemetry.SpendingGauges{Tenant: s.Tenant, Key: s.Key, Per: string(s.Per), Of: string(s.Of),
			Used: s.Used, Soft: s.Soft, Hard: s.Hard})
	}
	return all
}

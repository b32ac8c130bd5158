package telemetry

import (
	"cmp"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-gateway/sluice/internal/condition"
)

// gaugeCollector reads all gauges at each scrape. No gauge is counted up and down, so none can
// drift.
type gaugeCollector struct {
	all                                              []*prometheus.Desc // of Describe
	metrics                                          *Metrics
	inFlight, queued, replicas, nacks, envoys, build *prometheus.Desc
	poolModel                                        *prometheus.Desc
	running, waiting                                 *prometheus.Desc // per tenant
	up, gateways, errors                             *prometheus.Desc // of the shared state
	messages, placements, sentBytes                  *prometheus.Desc // of what gateways tell each other
	gpuMemory                                        *prometheus.Desc
	condition, modelReady, desired                   *prometheus.Desc
	used, limit, refused                             *prometheus.Desc // of budgets
	spent, bound                                     *prometheus.Desc // of budgets of tenants
	engine                                           engineDescs
	restarts                                         *prometheus.Desc // per replica
}

func newGaugeCollector(m *Metrics) *gaugeCollector {
	var all []*prometheus.Desc
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		all = append(all, prometheus.NewDesc(name, help, labels, nil))
		return all[len(all)-1]
	}
	c := &gaugeCollector{
		metrics:  m,
		inFlight: desc("sluice_in_flight", "Requests that run on replicas now.", "model"),
		queued:   desc("sluice_queued", "Requests that wait for admission or for a replica now, by model.", "model"),
		poolModel: desc("sluice_pool_model",
			"Always 1, for each model of each pool. Requests that a pool refuses count for its name in the label model of other metrics.", "pool", "model"),
		replicas: desc("sluice_replicas", "Replicas now, by model and state.", "model", "state"),
		nacks:    desc("sluice_xds_nacks_total", "Configurations that Envoys have refused."),
		envoys:   desc("sluice_envoys", "Envoys that get their configuration from this gateway."),
		build:    desc("sluice_build_info", "Always 1. The labels hold the versions of Sluice and of Envoy.", "version", "envoy"),
		running:  desc("sluice_tenant_running", "Admitted requests and tasks of the tenant that have not ended.", "tenant"),
		waiting:  desc("sluice_tenant_queued", "Requests and tasks of the tenant that wait now.", "tenant"),
		up:       desc("sluice_shared_up", "1 while the Redis of the shared state answers, 0 while this gateway uses its last known share of the limits."),
		gateways: desc("sluice_gateways", "Gateways that share their state and are known to be alive, including this one."),
		errors:   desc("sluice_shared_errors_total", "Calls to the Redis of the shared state that failed or timed out."),

		messages: desc("sluice_route_messages_total",
			"Messages for routing between this gateway and the others, by result: sent, failed, received, ignored.", "result"),
		placements: desc("sluice_route_placements_total", "Placements of prompts in these messages, by result: sent, received, dropped.", "result"),
		sentBytes:  desc("sluice_route_sent_bytes_total", "Size of the messages for routing that this gateway has sent."),

		condition: desc("sluice_condition", "1 while the condition needs attention, else 0. docs/conditions.md lists the types.",
			"type", "subject", "severity"),
		desired:    desc("sluice_model_desired_replicas", "Replicas that the scaling wants the model to have.", "model"),
		modelReady: desc("sluice_model_ready", "1 while the model has the replicas that it needs now, else 0.", "model"),

		used:    desc("sluice_budget_used", "What is in use of a budget of the gateway: connections, or bytes.", "budget"),
		limit:   desc("sluice_budget_limit", "The size of a budget of the gateway: connections, or bytes.", "budget"),
		refused: desc("sluice_budget_refused_total", "Connections or requests that Sluice refused because they did not fit into a budget.", "budget"),

		spent: desc("sluice_tenant_budget_used", "What is used of a budget of a tenant or a key, in tokens or in the currency of the prices.",
			"tenant", "key", "per", "of"),
		bound: desc("sluice_tenant_budget_limit", "The soft or hard bound of a budget of a tenant or a key.", "tenant", "key", "per", "of", "bound"),

		engine: engineDescs{
			running: desc("sluice_engine_running", "Requests that the engine of a replica works on, as it says itself.", "model", "replica"),
			waiting: desc("sluice_engine_waiting", "Requests that wait inside the engine of a replica, as it says itself.", "model", "replica"),
			kvUsage: desc("sluice_engine_kv_usage", "Used share of the key-value cache of a replica, from 0 to 1, as it says itself.", "model", "replica"),
		},

		restarts: desc("sluice_replica_restarts_total",
			"Starts of a replica after its first one. A replica that is replaced by another one begins at 0.", "model", "replica"),

		gpuMemory: desc("sluice_gpu_memory_bytes", "Memory of a GPU in bytes: installed (total), and used by all programs (used).", "uuid", "kind"),
	}
	c.all = all
	return c
}

// maxSpending is the largest number of budgets that the metrics have.
const maxSpending = 1000

// shownSpending returns the budgets that the metrics have. Those of tenants come first, because
// thousands of keys may have budgets.
func shownSpending(all []SpendingGauges) []SpendingGauges {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b SpendingGauges) int { return cmp.Compare(min(len(a.Key), 1), min(len(b.Key), 1)) })
	return all[:min(len(all), maxSpending)]
}

func (c *gaugeCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range c.all {
		out <- d
	}
}

// samples are where the values of a scrape go.
type samples chan<- prometheus.Metric

func (s samples) gauge(d *prometheus.Desc, v float64, labels ...string) {
	s <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func (s samples) counter(d *prometheus.Desc, n float64, labels ...string) {
	s <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, n, labels...)
}

func (c *gaugeCollector) Collect(out chan<- prometheus.Metric) {
	var g Gauges
	if c.metrics.config.Gauges != nil {
		g = c.metrics.config.Gauges()
	}
	to := samples(out)
	to.gauge(c.build, 1, c.metrics.config.Version, g.Envoy)
	to.counter(c.nacks, float64(g.XDSNacks))
	to.gauge(c.envoys, float64(g.Envoys))
	for name, m := range c.byLabel(g.Models) {
		to.gauge(c.inFlight, float64(m.InFlight), name)
		to.gauge(c.queued, float64(m.Queued), name)
		if m.Launched {
			to.gauge(c.desired, float64(m.Desired), name)
		}
		for state, n := range m.Replicas {
			to.gauge(c.replicas, float64(n), name, state)
		}
	}
	c.collectPools(g.Pools, to)
	for name, t := range c.tenantsByLabel(g.Tenants) {
		to.gauge(c.running, float64(t.Running), name)
		to.gauge(c.waiting, float64(t.Queued), name)
	}
	c.collectConditions(g.Conditions, to)
	c.collectEngines(g.Engines, to)
	for _, r := range g.Restarts[:min(len(g.Restarts), maxEngines)] {
		if model := c.metrics.models.admit(r.Model); model != Other {
			to.counter(c.restarts, float64(r.Count), model, r.Replica)
		}
	}
	c.collectBudgets(&g, to)
	for _, gpu := range g.GPUs {
		to.gauge(c.gpuMemory, float64(gpu.Total), gpu.UUID, "total")
		to.gauge(c.gpuMemory, float64(gpu.Used), gpu.UUID, "used")
	}
	if s := g.Shared; s != nil {
		up := 0.0
		if s.Up {
			up = 1
		}
		to.gauge(c.up, up)
		to.gauge(c.gateways, float64(s.Gateways))
		to.counter(c.errors, float64(s.Errors))
	}
	c.collectRouting(g.Routing, to)
}

// collectBudgets reports the budgets of the gateway, and those of tenants and keys.
func (c *gaugeCollector) collectBudgets(g *Gauges, to samples) {
	for _, b := range g.Budgets {
		to.gauge(c.used, float64(b.Used), b.Name)
		to.gauge(c.limit, float64(b.Limit), b.Name)
		to.counter(c.refused, float64(b.Refused), b.Name)
	}
	for _, b := range shownSpending(g.Spending) {
		to.gauge(c.spent, b.Used, b.Tenant, b.Key, b.Per, b.Of)
		for bound, v := range map[string]float64{"soft": b.Soft, "hard": b.Hard} {
			if v > 0 {
				to.gauge(c.bound, v, b.Tenant, b.Key, b.Per, b.Of, bound)
			}
		}
	}
}

// collectPools reports the models of pools. Names beyond the cap of labels are left out, because
// other says neither which pool nor which model.
func (c *gaugeCollector) collectPools(pools map[string][]string, to samples) {
	for name, models := range pools {
		pool := c.metrics.models.admit(name)
		for _, m := range models {
			if model := c.metrics.models.admit(m); pool != Other && model != Other {
				to.gauge(c.poolModel, 1, pool, model)
			}
		}
	}
}

// collectRouting reports what gateways have told each other for routing.
func (c *gaugeCollector) collectRouting(g *RoutingGauges, to samples) {
	if g == nil {
		return
	}
	for result, n := range g.Messages {
		to.counter(c.messages, float64(n), result)
	}
	for result, n := range g.Placements {
		to.counter(c.placements, float64(n), result)
	}
	to.counter(c.sentBytes, float64(g.SentBytes))
}

// tenantsByLabel sums the tenants that share the label Other because there are more tenants than
// label values.
func (c *gaugeCollector) tenantsByLabel(tenants []TenantGauges) map[string]TenantGauges {
	sums := make(map[string]TenantGauges, len(tenants))
	for _, t := range tenants {
		label := c.metrics.tenants.admit(t.Name)
		sum := sums[label]
		sum.Running += t.Running
		sum.Queued += t.Queued
		sums[label] = sum
	}
	return sums
}

// byLabel sums the models that share the label Other because there are more models than label
// values.
func (c *gaugeCollector) byLabel(models []ModelGauges) map[string]ModelGauges {
	sums := make(map[string]ModelGauges, len(models))
	for _, m := range models {
		label := c.metrics.models.admit(m.Name)
		sum, ok := sums[label]
		if !ok {
			sum.Replicas = map[string]int{}
		}
		sum.InFlight += m.InFlight
		sum.Queued += m.Queued
		sum.Launched, sum.Desired = sum.Launched || m.Launched, sum.Desired+m.Desired
		for state, n := range m.Replicas {
			sum.Replicas[state] += n
		}
		sums[label] = sum
	}
	return sums
}

// maxConditions bounds the conditions that one scrape reports, because subjects are names of
// models, replicas and servers. Those that need attention come first in the list.
const maxConditions = 2000

// collectConditions reports the conditions, and for each model whether it is ready.
func (c *gaugeCollector) collectConditions(all []condition.Condition, to samples) {
	for i := range all[:min(len(all), maxConditions)] {
		one, attention := &all[i], 1.0
		if one.Normal() {
			attention = 0
		}
		to.gauge(c.condition, attention, string(one.Type), one.Subject, string(one.Severity))
		if one.Type == condition.ModelReady {
			to.gauge(c.modelReady, 1-attention, one.Subject)
		}
	}
}

// engineDescs are the gauges of engines, per replica.
type engineDescs struct{ running, waiting, kvUsage *prometheus.Desc }

// maxEngines bounds the engines that one scrape reports, because a server may list many models.
const maxEngines = 2000

// collectEngines reports what engines say of themselves. Models beyond the cap of labels are left
// out, because a sum over replicas of several models would say nothing.
func (c *gaugeCollector) collectEngines(all []EngineGauges, to samples) {
	for _, e := range all[:min(len(all), maxEngines)] {
		model := c.metrics.models.admit(e.Model)
		if model == Other {
			continue
		}
		tell := func(d *prometheus.Desc, value float64) {
			if value >= 0 {
				to.gauge(d, value, model, e.Replica)
			}
		}
		tell(c.engine.running, float64(e.Running))
		tell(c.engine.waiting, float64(e.Waiting))
		tell(c.engine.kvUsage, e.KVUsage)
	}
}

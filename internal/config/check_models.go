package config

import (
	"cmp"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// checkModels checks every model and fills in what depends on other fields. It returns the names,
// aliases and adapters of all models.
func (k *checker) checkModels() []named {
	var names []named
	for i := range k.config.Models {
		m, at := &k.config.Models[i], path{"models"}.item(i)
		names = append(names, k.checkModelNames(at, m)...)
		k.checkRouting(at.field("routing"), &m.Routing)
		k.checkStream(at.field("stream"), m)
		k.checkUnhealthyOn(at, m)
		k.setFailOverOn(at, m)
		k.checkColdStart(at, m)
		k.checkWait(at.field("admission").field("queue_timeout"), m.Admission.QueueTimeout)
		k.checkMediaHosts(at, m.MediaHosts)
		switch m.Launcher {
		case engines.Local:
			k.checkLocalModel(at, m)
		case engines.Kubernetes:
			k.checkKubernetesModel(at, m)
		case engines.Ray:
			k.checkRayModel(at, m)
		case engines.Upstream:
			k.checkUpstreamModel(at, m)
		case engines.None:
			k.checkUnservedModel(at, m)
		}
		m.Protocol, m.RerankAPI = cmp.Or(m.Protocol, ProtocolHTTP), cmp.Or(m.RerankAPI, RerankOpenAI)
		k.checkStreamMode(at, m)
	}
	return names
}

// checkModelNames checks and returns the name, the aliases and the adapters of a model.
func (k *checker) checkModelNames(at path, m *Model) []named {
	names := []named{{m.Name, at.field("name")}}
	for i, alias := range m.Aliases {
		names = append(names, named{alias, at.field("aliases").item(i)})
	}
	for i, adapter := range m.Adapters {
		names = append(names, named{adapter, at.field("adapters").item(i)})
	}
	for _, n := range names {
		k.checkName(n.at, n.name)
	}
	return names
}

// maxWait is the longest time that a request may be held. Envoy gives up on a response after an
// hour, and after that nobody could tell the client why.
const maxWait = 55 * time.Minute

// checkWait checks a time that requests may wait.
func (k *checker) checkWait(at path, d time.Duration) {
	if d > maxWait && k.valid(at) {
		k.faultf(at, "must be at most %v, is %v: Envoy holds a request for an hour at most", maxWait, d)
	}
}

func (k *checker) checkUpstreamModel(at path, m *Model) {
	k.rejectSet(at.field("cold_start"), "launcher: upstream, whose requests wait for admission.queue_timeout")
	for _, field := range refusedFields(engines.Upstream) {
		k.rejectSet(at.field(field), "launcher: upstream")
	}
	where := at.field("upstreams")
	if len(m.Upstreams) == 0 && k.valid(where) {
		k.faultf(where, "required with launcher: upstream, and missing: give the base URLs of the model's servers, such as [http://10.0.0.5:8000]")
	}
	for i := range m.Upstreams {
		k.rejectSet(where.item(i).field("join"), "the upstreams of a model")
		k.rejectSet(where.item(i).field("models"), "the upstreams of a model")
		k.checkServedModel(where.item(i).field("model"), m.Upstreams[i].Model)
	}
	k.checkUpstreams(where, m.Upstreams)
	m.Replicas = Replicas{}
}

// checkUnservedModel checks a model with launcher none: Sluice admits tasks for it and serves no
// requests.
func (k *checker) checkUnservedModel(at path, m *Model) {
	for _, field := range refusedFields(engines.None) {
		k.rejectSet(at.field(field), "launcher: none")
	}
	for _, field := range replicaLimits() {
		k.rejectSet(at.field("admission").field(field), "launcher: none")
	}
	m.Replicas = Replicas{}
}

// rejectSet reports a field that is set although it has no effect with the setting that with names.
func (k *checker) rejectSet(at path, with string) {
	if k.isSet(at) && k.valid(at) {
		k.faultf(at, "has no effect with %s; remove it", with)
	}
}

// launchFields are the fields of a model that only a launched model uses.
func launchFields() []string {
	return []string{"engine", "version", "source", "served_model", "cluster", "replicas", "scale", "resources", "gpu_resource", "hosts", "placement",
		"evict", "variables", "args",
		"env", "env_from", "secrets", "pod", "profiles", "cooldown"}
}

// refusedFields returns the fields of a model that have no effect with a launcher.
func refusedFields(launcher engines.Launcher) []string {
	switch launcher {
	case engines.Local:
		return []string{"gpu_resource", "hosts", "secrets", "pod", "profiles"}
	case engines.Kubernetes:
		return []string{"evict", "env_from"}
	case engines.Ray:
		return []string{"evict", "gpu_resource", "hosts", "pod", "profiles", "placement", "env_from", "secrets"}
	case engines.Upstream:
		return append(launchFields(), "cold_start")
	case engines.None:
		return append(launchFields(), "upstreams", "cold_start", "cold_start_timeout", "unhealthy_on", "fail_over_on", "permit_fields", "media_hosts",
			"routing", "stream")
	}
	return nil
}

// replicaLimits are the fields of admission that limit one replica.
func replicaLimits() []string {
	return []string{"max_per_replica", "max_prefill_per_replica", "max_prefill_tokens_per_replica"}
}

// checkMediaHosts checks the rules for the hosts of media.
func (k *checker) checkMediaHosts(at path, list []string) {
	for i, text := range list {
		if _, err := openai.ParseMediaHosts([]string{text}); err != nil {
			k.faultf(at.field("media_hosts").item(i), "%v, is %s", err, quoted(text))
		}
	}
}

func (k *checker) setFailOverOn(at path, m *Model) {
	if m.Launcher != engines.None && !k.isSet(at.field("fail_over_on")) {
		m.FailOverOn = []StatusClass{Status429, Status503, Status5xx}
	}
}

// checkUnhealthyOn checks the failures that make a replica unhealthy, and sets the default that
// depends on the launcher.
func (k *checker) checkUnhealthyOn(at path, m *Model) {
	where := at.field("unhealthy_on")
	if m.Launcher == engines.None || !k.valid(where) {
		return
	}
	if k.isSet(where) && len(m.UnhealthyOn) == 0 {
		k.faultf(where, "must name at least one of connect, reset, 5xx, 503, is empty")
	}
	if !k.isSet(where) {
		if m.UnhealthyOn = []Failure{FailConnect, Fail5xx}; m.Launcher == engines.Upstream {
			m.UnhealthyOn = []Failure{FailConnect, FailReset, Fail5xx, Fail503}
		}
	}
}

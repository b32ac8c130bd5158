package config

import (
	"reflect"
	"strings"

	"github.com/sluice-gateway/sluice/engines"
)

// Discovered has the settings of all models that are discovered on the servers of upstreams. Each
// field means the same as under models, and has the same default.
type Discovered struct {
	// Routing says which server gets a request. Default of strategy: prefix, and least_connections
	// for a model as long as the engine of none of its servers is recognised.
	Routing Routing `yaml:"routing"`
	// Admission says when a request may start.
	Admission Admission `yaml:"admission"`
	// Stream says how responses are delivered.
	Stream Stream `yaml:"stream"`
	// UnhealthyOn lists the failures that take a server out of rotation. Default: all.
	UnhealthyOn []Failure `yaml:"unhealthy_on" oneof:"connect,reset,5xx,503"`
	// FailOverOn lists the statuses after which a request is sent to another server of its model.
	// Default: all.
	FailOverOn []StatusClass `yaml:"fail_over_on" oneof:"429,503,5xx"`
	// PermitFields are fields of requests that clients may use although they are refused for what
	// they make the engine do, see docs/bodies.md. Default: none.
	PermitFields []GuardedField `yaml:"permit_fields"`
	// MediaHosts lists from which hosts clients may have the servers fetch images, sounds, videos
	// and documents. Default: [public].
	MediaHosts []string `yaml:"media_hosts"`

	// StrategySet tells that the file has a strategy, which then holds for every engine.
	StrategySet bool `yaml:"-"`
}

// DiscoveredModel returns the settings of a model that was discovered on an upstream and is not in
// the file.
func (c *Config) DiscoveredModel() Model { return c.Discovered.model() }

// model returns the settings as those of a model.
func (d Discovered) model() Model {
	var m Model
	newDecoder("").decodeStruct(nil, reflect.ValueOf(&m).Elem(), nil)
	m.Launcher = engines.Upstream
	m.Replicas, m.Protocol, m.RerankAPI = Replicas{}, ProtocolHTTP, RerankOpenAI
	m.Routing, m.Admission, m.Stream, m.UnhealthyOn, m.FailOverOn = d.Routing, d.Admission, d.Stream, d.UnhealthyOn, d.FailOverOn
	m.PermitFields, m.MediaHosts = d.PermitFields, d.MediaHosts
	return m
}

// checkDiscovered checks the settings of discovered models and fills in what depends on other
// fields.
func (k *checker) checkDiscovered(at path, d *Discovered) {
	m := d.model()
	k.checkRouting(at.field("routing"), &m.Routing)
	k.checkStream(at.field("stream"), &m)
	k.checkUnhealthyOn(at, &m)
	k.setFailOverOn(at, &m)
	k.checkWait(at.field("admission").field("queue_timeout"), m.Admission.QueueTimeout)
	k.checkMediaHosts(at, m.MediaHosts)
	d.Routing, d.UnhealthyOn, d.FailOverOn = m.Routing, m.UnhealthyOn, m.FailOverOn
	d.StrategySet = k.isSet(at.field("routing").field("strategy"))
}

// checkModelPatterns checks the filter for the models of a server.
func (k *checker) checkModelPatterns(at path, patterns []string) {
	for i, pattern := range patterns {
		if strings.Trim(pattern, engines.NameCharacters+"*") != "" || pattern == "" {
			k.faultf(at.item(i), "must be a name, in which * stands for any characters, is %s", quoted(pattern))
		}
	}
}

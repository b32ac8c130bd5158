package config

import "time"

// Scale says when a launched model gets more replicas, and when fewer are enough.
type Scale struct {
	// Target adds replicas before requests wait in the gateway. Default: none, replicas above
	// replicas.min are started only when requests wait.
	Target ScaleTarget `yaml:"target"`
}

// ScaleTarget is what a model's replicas shall hold to: one of running and ttft. Sluice starts
// replicas as soon as the number of replicas does not hold the target. It stops one when fewer have
// held 80 % of the target during the whole cooldown.
type ScaleTarget struct {
	// Running is the largest number of requests for each replica, the waiting ones included. At
	// most admission.max_per_replica, if that is a number. Default 0: no such target.
	Running int `yaml:"running" min:"1" max:"1000000"`
	// TTFT is the longest mean time to the first token that the gateway predicts for the requests
	// that arrive now. It needs routing.strategy prefix, which predicts it. Default 0: no such
	// target.
	TTFT time.Duration `yaml:"ttft" min:"1ms"`
}

// checkScaleTarget checks the target of a launched model: one of the two, and one that can have an
// effect.
func (k *checker) checkScaleTarget(at path, m *Model) {
	where := at.field("scale").field("target")
	running, ttft := where.field("running"), where.field("ttft")
	if !k.isSet(where) || !k.valid(where) || !k.valid(running) || !k.valid(ttft) {
		return
	}
	target, most := m.Scale.Target, int(m.Admission.MaxPerReplica)
	switch {
	case target == (ScaleTarget{}):
		k.faultf(where, "must have running or ttft, and has neither: set one of them, or remove target")
	case target.Running > 0 && target.TTFT > 0:
		k.faultf(where, "must have one of running and ttft, and has both: remove one of them")
	case most > 0 && target.Running > most:
		k.faultf(running, "must be at most admission.max_per_replica, which is %d, is %d", most, target.Running)
	case target.TTFT > 0 && m.Routing.Strategy != Prefix && k.valid(at.field("routing").field("strategy")):
		k.faultf(ttft, "needs routing.strategy: prefix, is %s: only prefix predicts the time to the first token; "+
			"set the strategy, or a target of running requests", m.Routing.Strategy)
	case m.Replicas.Max == m.Replicas.Min && k.valid(at.field("replicas").field("max")) && k.valid(at.field("replicas").field("min")):
		k.faultf(where, "has no effect while replicas.max is replicas.min, which is %d: set a larger replicas.max", m.Replicas.Min)
	}
}

package config

import "time"

// Strategy is the name of a routing strategy. Strategies lists all of them; package dispatch
// implements them.
type Strategy string

// The strategies of Routing. Each has one row in strategyRows.
const (
	// CHWBL is consistent hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam, 2018).
	CHWBL Strategy = "chwbl"
	// Prefix gives a request to the replica with the least predicted time to the first token. The
	// prediction knows what waits at each replica and what its cache has of the prompt.
	Prefix Strategy = "prefix"
	// RoundRobin gives requests to the replicas in rotation.
	RoundRobin Strategy = "round_robin"
	// LeastConnections gives a request to the replica with the fewest running requests. Among
	// equals it chooses the replica that has served the fewest.
	LeastConnections Strategy = "least_connections"
)

// Routing says which replica gets a request.
type Routing struct {
	// Strategy is prefix, chwbl, round_robin or least_connections. prefix picks the replica with
	// the least predicted time to the first token, from what waits at each replica and what its
	// cache has of the prompt. chwbl is consistent hashing with bounded loads. Default prefix.
	Strategy Strategy `yaml:"strategy" default:"prefix"`
	// VirtualNodesPerReplica is the number of points of each replica on the hash ring. Default 100.
	VirtualNodesPerReplica int `yaml:"virtual_nodes_per_replica" default:"100" min:"1"`
	// LoadFactor is the multiple of the average load that a replica may have. Above it, the next
	// replica on the ring is tried. Default 1.25.
	LoadFactor float64 `yaml:"load_factor" default:"1.25" min:"1"`
	// LoadFloor is the number of requests that a replica may always have, whatever the average load
	// is. With prefix, load_factor and load_floor only decide among replicas that are about as
	// fast. Default 8 for prefix, 0 for chwbl.
	LoadFloor int `yaml:"load_floor" min:"0"`
	// SlowStart is how long a replica that joins other replicas of its model gets less than its
	// share of the requests. The share rises during this time. 0 gives it the full share at once.
	// Default 10s, and 0 for chwbl.
	SlowStart time.Duration `yaml:"slow_start" min:"0s"`
	// MaxUserMessagesForCache is the number of user messages of a chat, counted from the first,
	// that make up its key on the ring. Default 2.
	MaxUserMessagesForCache int `yaml:"max_user_messages_for_cache" default:"2" min:"0"`
}

// strategyRow says which fields of Routing a strategy uses, and their defaults.
type strategyRow struct {
	strategy Strategy
	// usesRing tells that the strategy hashes requests onto a ring. Without it the fields of the
	// ring must be absent.
	usesRing bool
	// loadsOnly tells that a pick depends on the ring and on loads alone. load_floor and slow_start
	// must be 0.
	loadsOnly bool
	// loadFloor and slowStart are the defaults of load_floor and slow_start.
	loadFloor int
	slowStart time.Duration
}

// defaultSlowStart is the default of slow_start for every strategy that has a slow start.
const defaultSlowStart = 10 * time.Second

// defaultLoadFloor is the default of load_floor for strategy prefix: about the batch size up to
// which the latency of an engine is flat.
const defaultLoadFloor = 8

// strategyRows is the table of all strategies. The validation, the defaults and the JSON Schema of
// the file come from it. To add a strategy, add a row here and its implementation in package
// dispatch.
func strategyRows() []strategyRow {
	return []strategyRow{
		{strategy: CHWBL, usesRing: true, loadsOnly: true},
		{strategy: Prefix, usesRing: true, loadFloor: defaultLoadFloor, slowStart: defaultSlowStart},
		{strategy: RoundRobin, slowStart: defaultSlowStart},
		{strategy: LeastConnections, slowStart: defaultSlowStart},
	}
}

// Strategies returns the names of all routing strategies that the file may contain.
func Strategies() []Strategy {
	var all []Strategy
	for _, row := range strategyRows() {
		all = append(all, row.strategy)
	}
	return all
}

// allowedValues implements enumerated.
func (Strategy) allowedValues() []string { return converted[string](Strategies()) }

// ringFields are the fields of Routing that only a strategy with a hash ring uses.
func ringFields() []string {
	return []string{"virtual_nodes_per_replica", "load_factor", "load_floor", "max_user_messages_for_cache"}
}

// checkRouting checks that the fields of routing fit the strategy, and sets the defaults that
// depend on it.
func (k *checker) checkRouting(at path, r *Routing) {
	for _, row := range strategyRows() {
		if row.strategy == r.Strategy {
			k.applyStrategy(at, r, row)
		}
	}
}

// applyStrategy checks r by the row of its strategy and sets the defaults of that row.
func (k *checker) applyStrategy(at path, r *Routing, row strategyRow) {
	floor, slow := at.field("load_floor"), at.field("slow_start")
	if !k.isSet(floor) {
		r.LoadFloor = row.loadFloor
	}
	if !k.isSet(slow) {
		r.SlowStart = row.slowStart
	}
	if !row.usesRing {
		for _, field := range ringFields() {
			k.rejectSet(at.field(field), "strategy: "+string(row.strategy))
		}
	}
	if row.loadsOnly && r.SlowStart != 0 {
		k.faultf(slow, "must be 0s with strategy: %s, is %v: this strategy has no slow start; for one set strategy: prefix", row.strategy, r.SlowStart)
	}
	if row.loadsOnly && r.LoadFloor != 0 {
		k.faultf(floor, "must be 0 with strategy: %s, is %d: this strategy has no load floor; for one set strategy: prefix", row.strategy, r.LoadFloor)
	}
}

package config

import (
	"time"

	"github.com/sluice-gateway/sluice/engines"
)

// Model is what clients ask for by name.
type Model struct {
	// Name that clients ask for; unique among the names and aliases of all models and pools.
	Name string `yaml:"name" required:"true"`
	// Aliases are further names of the same model.
	Aliases []string `yaml:"aliases"`
	// Task of the model. Default: the first task that its engine serves; for an upstream it is unknown.
	Task engines.Task `yaml:"task" oneof:"text-generation,embedding,rerank,transcription"`
	// Engine that serves a local model, from the built-in ones or engines.
	Engine string `yaml:"engine"`
	// Version of the engine. Default: the last one.
	Version string `yaml:"version"`
	// Source of a local model. Needed when the engine's command cannot do without {{.Model}}.
	Source *Source `yaml:"source"`
	// Launcher says how replicas come to be: local (processes on this host), upstream (servers that someone else runs) or none (there
	// are none: tasks for the model are admitted by /schedule and done elsewhere). Default local.
	Launcher engines.Launcher `yaml:"launcher" default:"local" oneof:"local,upstream,none"`
	// Upstreams are an upstream model's servers, each by its base URL (http://host:port, with or without /v1) or as a mapping.
	Upstreams []Upstream `yaml:"upstreams"`
	// Replicas of a local model. Zero for an upstream one, which has as many as it has servers, and for one with launcher none.
	Replicas Replicas `yaml:"replicas"`
	// Resources are what each replica of a local model takes of its host. A replica that does not fit waits. With resources a replica sees
	// the GPUs that it was given and no others. Default: none are counted, and replicas see what Sluice sees.
	Resources *Resources `yaml:"resources"`
	// Placement says which GPU a replica gets: spread (one that has none of this model and the least of others) or pack (one that is
	// in use already, as far as it has room). Default spread.
	Placement Placement `yaml:"placement" default:"spread" oneof:"spread,pack"`
	// Variables of the engine, held against its schema.
	Variables map[string]any `yaml:"variables"`
	// Env is added to the environment of a local model's replicas.
	Env map[string]string `yaml:"env"`
	// Cooldown is how long fewer replicas of a local model must have been enough before one is ended, and how long nobody must have
	// asked before the last one is. Default 5m.
	Cooldown time.Duration `yaml:"cooldown" default:"5m" least:"100ms"`
	// ColdStartTimeout is how long a replica may take until it is ready, and how long a request waits for the first one. Default 10m.
	ColdStartTimeout time.Duration `yaml:"cold_start_timeout" default:"10m" least:"1s"`
	// Routing says which replica gets a request.
	Routing Routing `yaml:"routing"`
	// Admission says when a request may go on.
	Admission Admission `yaml:"admission"`
	// Stream says how responses are carried.
	Stream Stream `yaml:"stream"`
}

// Replicas says how many replicas there are.
type Replicas struct {
	// Min is the smallest number of replicas; 0 is none while nobody asks. Default 1.
	Min int `yaml:"min" default:"1" least:"0"`
	// Max is the largest number of replicas: more than min come when requests wait, and go when fewer have been enough for cooldown.
	// Default: as min, and at least 1.
	Max int `yaml:"max" least:"1"`
}

// Resources are what one replica takes. They are what placement counts with, and no bound that a replica is held to.
type Resources struct {
	// CPU is a number of processors. Default 0: not counted.
	CPU float64 `yaml:"cpu" least:"0"`
	// Memory of the host, not of its GPUs. Default 0: not counted.
	Memory Size `yaml:"memory"`
	// GPU is a whole number of GPUs that nobody else gets, several of them for one replica that works on all (tensor parallel); or less
	// than 1, a share of one GPU: replicas that share a GPU all see all of it, and their engines must be told how much of its memory is
	// theirs. Default 0: none.
	GPU float64 `yaml:"gpu" least:"0"`
}

// Placement says which of several GPUs with room a replica gets.
type Placement string

// The placements.
const (
	// Spread takes the GPU with the fewest replicas of the model, then the least used.
	Spread Placement = "spread"
	// Pack takes the most used one.
	Pack Placement = "pack"
)

// Strategy says how a replica is chosen.
type Strategy string

// The strategies of Routing.
const (
	// CHWBL is consistent hashing with bounded loads.
	CHWBL Strategy = "chwbl"
	// Prefix is CHWBL with a load under which no replica counts as busy.
	Prefix Strategy = "prefix"
	// RoundRobin takes the replicas in turn.
	RoundRobin Strategy = "round_robin"
	// LeastConnections takes the replica with the fewest requests, among equals the one that has served fewest.
	LeastConnections Strategy = "least_connections"
)

// Routing says which replica gets a request.
type Routing struct {
	// Strategy is prefix (consistent hashing with bounded loads that lets a replica have load_floor requests before it counts as
	// busy), chwbl (the same with load_floor 0), round_robin or least_connections. Default prefix.
	Strategy Strategy `yaml:"strategy" default:"prefix" oneof:"chwbl,prefix,round_robin,least_connections"`
	// VirtualNodesPerReplica is how often each replica stands on the hash ring. Default 100.
	VirtualNodesPerReplica int `yaml:"virtual_nodes_per_replica" default:"100" least:"1"`
	// LoadFactor is how many times the average load a replica may have before the next one on the ring is tried. Default 1.25.
	LoadFactor float64 `yaml:"load_factor" default:"1.25" least:"1"`
	// LoadFloor is how many requests a replica may always have, whatever the average. Default 8 for prefix, 0 for chwbl.
	LoadFloor int `yaml:"load_floor" least:"0"`
	// MaxUserMessagesForCache is how many user messages of a chat, from the first, make its key on the ring. Default 2.
	MaxUserMessagesForCache int `yaml:"max_user_messages_for_cache" default:"2" least:"0"`
}

// PerReplica is a number of requests, or 0 for "auto".
type PerReplica int

// Admission says when a request may go on.
type Admission struct {
	// Weight is the model's share of its pools' requests beside the other models of a pool. Default 1.
	Weight int `yaml:"weight" default:"1" least:"1" most:"1000000"`
	// MaxConcurrentRequests bounds the model's running requests over all replicas. Default 0: no limit.
	MaxConcurrentRequests int `yaml:"max_concurrent_requests" least:"0" most:"1000000000"`
	// MaxTokensPerMinute bounds the model's tokens. Default 0: no limit.
	MaxTokensPerMinute int `yaml:"max_tokens_per_minute" least:"0" most:"1000000000000"`
	// MaxPerReplica bounds the running requests of one replica: a number, or auto for what the engine works on at once (1 for an
	// upstream). Default auto, which is 0.
	MaxPerReplica PerReplica `yaml:"max_per_replica" default:"auto"`
	// MaxPrefillPerReplica bounds the requests of one replica that have no token yet; more of them wait. Default 0: no limit.
	MaxPrefillPerReplica int `yaml:"max_prefill_per_replica" least:"0"`
	// MaxQueue is how many requests may wait; one more gets queue_full. Default 1000.
	MaxQueue int `yaml:"max_queue" default:"1000" least:"1"`
	// QueueTimeout is how long a request may wait; then it gets queue_timeout. Default 60s.
	QueueTimeout time.Duration `yaml:"queue_timeout" default:"60s" least:"1ms"`
}

// StreamMode says how the responses of a model are carried.
type StreamMode string

// The modes of Stream.
const (
	// StreamAuto leaves the choice to Sluice.
	StreamAuto StreamMode = "auto"
	// StreamNative streams go through Envoy alone.
	StreamNative StreamMode = "native"
)

// Stream says how responses are carried.
type Stream struct {
	// Mode is auto or native (through Envoy alone, from the replica to the client). Default auto.
	Mode StreamMode `yaml:"mode" default:"auto" oneof:"auto,native"`
	// MaxDuration is how long a response may take in all. Default 30m.
	MaxDuration time.Duration `yaml:"max_duration" default:"30m" least:"1s"`
}

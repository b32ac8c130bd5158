package admin

import "time"

// Status is the status of the gateway.
type Status struct {
	// Version is the version of Sluice.
	Version string
	// PID is the process id, and Started is when this process started.
	PID     int
	Started time.Time
	// Upgrade tells of restarts for an upgrade.
	Upgrade UpgradeStatus
	// Listen is the host:port on which clients reach the API.
	Listen string
	// TLS says that clients reach the API by TLS.
	TLS    bool
	Envoy  EnvoyStatus
	XDS    XDSStatus
	Config ConfigStatus
	Shared SharedStatus
}

// EnvoyStatus is the status of Envoy.
type EnvoyStatus struct {
	// State is one of the states of the package envoy, or "external" for an Envoy that someone else
	// runs.
	State    string `json:"state"`
	PID      int    `json:"pid"`
	Version  string `json:"version"`
	Adopted  bool   `json:"adopted"`
	Restarts int    `json:"restarts"`
	// Reason is why Envoy is not live, or how the one before a live Envoy ended. An end comes with
	// the last log line if there is one.
	Reason string `json:"reason"`
	// Filter is what asks the gateway about each request: "module", Sluice's own filter, or
	// "ext_proc".
	Filter string `json:"filter"`
	// Predecessors are the Envoys whose place this one has taken and which still run.
	Predecessors []Predecessor `json:"predecessors"`
}

// UpgradeStatus tells of the processes that ran before a restart, and of restarts that failed.
type UpgradeStatus struct {
	// Failed says why the last restart has failed, and FailedAt when; empty: none has.
	Failed   string
	FailedAt time.Time
	// Predecessors are the earlier processes that still run.
	Predecessors []Predecessor
}

// Predecessor is an earlier process of the gateway, or an earlier Envoy, that still runs.
type Predecessor struct {
	PID     int    `json:"pid"`
	Version string `json:"version"`
	// Requests is the number of requests that it holds.
	Requests int `json:"requests"`
}

// XDSStatus tells which configuration Envoy has accepted and refused.
type XDSStatus struct {
	Connected bool   `json:"connected"`
	Nacks     uint64 `json:"nacks"`
	// LastNack is the last refusal, even if Envoy has accepted the resource since. nil means none.
	LastNack *Nack `json:"last_nack"`
	// Refused are the resources whose current version Envoy refuses. The page shows them as faults.
	Refused []Nack `json:"refused"`
}

// Nack is a refusal of a resource by Envoy.
type Nack struct {
	Type string `json:"type"`
	// Envoy is the node and the address of an Envoy of another host.
	Envoy    string    `json:"envoy,omitempty"`
	Resource string    `json:"resource"`
	Message  string    `json:"message"`
	Time     time.Time `json:"time"`
}

// ConfigStatus is the configuration in force.
type ConfigStatus struct {
	// Path is the path of the file. It is empty when there is no file.
	Path string
	// Hash is the SHA-256 of the content in force, in hex. Audit lines name it.
	Hash string
	// LoadedAt is when the configuration in force was read.
	LoadedAt time.Time
	// Faults are the faults of a newer file that was refused, one sentence each.
	Faults []string
	// Held tells that the newer file is held back until an operator forces it. Faults says why.
	Held bool
	// NeedsRestart names the fields whose new values take effect at the next start.
	NeedsRestart []string
}

// SharedStatus is the status of the state that several gateways share in Redis.
type SharedStatus struct {
	// Configured is false for a gateway that shares no state. The other fields are then zero.
	Configured bool `json:"configured"`
	// Up tells whether Redis answers.
	Up bool `json:"up"`
	// Mode is "shared", or "alone" while this gateway uses its last known share of the limits.
	Mode string `json:"mode"`
	// Gateways counts the gateways that are known to be alive, including this one.
	Gateways int `json:"gateways"`
	// Since is when Up changed last.
	Since time.Time `json:"-"`
	// LastError is the last error of Redis, even if Redis answers again.
	LastError string `json:"last_error"`
}

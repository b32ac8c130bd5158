package local

import (
	"cmp"
	"net/netip"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/supervise"
	"github.com/sluice-gateway/sluice/internal/process"
)

// Config configures a Launcher. Dir and Fleet are required.
type Config struct {
	// Dir is the state directory that holds the processes. It must be claimed.
	Dir *process.Dir
	// Fleet gets the reports of the launcher.
	Fleet *engines.Fleet
	// Log may be nil.
	Log *zap.Logger
	// Name is the name of this node in the fleet. Empty means the name that the inventory gives,
	// which is the host name.
	Name string
	// Address is the address of this machine on which replicas listen. Zero means 127.0.0.1.
	Address netip.Addr
	// InFlight returns the number of requests at a replica. If it is nil, a draining replica does
	// not wait for its requests, and an engine that does not answer its probes counts as busy.
	InFlight func(replicaID string) int
	// OnHealthy is called when a replica that was suspected (Suspect) is found healthy. It must not
	// block. It may be nil.
	OnHealthy func(replicaID string)
	// Inventory reads the resources of this machine. nil means its CPUs and memory, and no GPUs.
	Inventory Inventory
	// ReadEvery is the least interval between two readings of the inventory. 0 means 10 s.
	ReadEvery time.Duration

	// BackOff is the pause between a failure of a replica and its next start.
	BackOff supervise.BackOff
	// DrainTimeout is how long replicas may take to finish their requests when the gateway stops. 0
	// means 30 s.
	DrainTimeout time.Duration
	// DrainSettle is the minimum time for which a replica drains, because readers of an older
	// snapshot may still send it requests. 0 means 1 s.
	DrainSettle time.Duration
	// ProbeTimeout is how long a probe waits for its answer. 0 means 5 s.
	ProbeTimeout time.Duration
	// MaxBusy is how long requests without an answer excuse a replica whose probes have none
	// either. 0 means supervise.MaxBusy.
	MaxBusy time.Duration
}

// withDefaults replaces zero values by their defaults.
func (c Config) withDefaults() Config {
	c.Log = cmp.Or(c.Log, zap.NewNop())
	if !c.Address.IsValid() {
		c.Address = loopback()
	}
	if c.Inventory == nil {
		c.Inventory = cpuInventory{}
	}
	c.BackOff = c.BackOff.WithDefaults()
	c.DrainTimeout = cmp.Or(c.DrainTimeout, 30*time.Second)
	c.DrainSettle = cmp.Or(c.DrainSettle, time.Second)
	c.ProbeTimeout = cmp.Or(c.ProbeTimeout, 5*time.Second)
	c.ReadEvery = cmp.Or(c.ReadEvery, readInterval)
	c.MaxBusy = cmp.Or(c.MaxBusy, supervise.MaxBusy)
	return c
}

package local

import (
	"net/netip"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/process"
)

// BackOff is how long a replica that failed waits for its next start.
type BackOff struct {
	// First is the pause after the first failure, doubled after each further one; 0 means 1 s.
	First time.Duration
	// Most is the longest pause; 0 means 300 s.
	Most time.Duration
	// Reset is how long a replica must have been ready for its earlier failures to be forgotten; 0 means 60 s.
	Reset time.Duration
}

// after is the pause after so many failures in a row.
func (b BackOff) after(failures int) time.Duration {
	pause := min(b.First, b.Most)
	for range failures - 1 {
		if pause *= 2; pause >= b.Most {
			return b.Most
		}
	}
	return pause
}

// Config says what the launcher works with. Dir and Fleet are needed.
type Config struct {
	// Dir holds the processes; it must be claimed.
	Dir   *process.Dir
	Fleet *engines.Fleet
	// Log may be nil: silent.
	Log *zap.Logger
	// Name is this host's in the fleet; empty: what the inventory says, which is the host's own name.
	Name string
	// Address is where replicas listen, one of this host's; zero means 127.0.0.1.
	Address netip.Addr
	// InFlight tells how many requests a replica has. nil means that it is not known: then nothing is waited for when a replica
	// drains, and an engine that does not answer its probes is taken for busy.
	InFlight func(replicaID string) int
	// Well hears of a replica whose health was asked for by Suspect that it is well. nil: nobody does. It must be quick.
	Well func(replicaID string)
	// Inventory tells what this host has for replicas whose models name resources; nil: its processors and memory, and no GPUs.
	Inventory Inventory
	// ReadEvery is the pause between two readings of the inventory; 0 means 1 min.
	ReadEvery time.Duration

	BackOff BackOff
	// DrainTimeout is how long replicas may take to finish their requests when the gateway stops; 0 means 30 s.
	DrainTimeout time.Duration
	// DrainSettle is how long a leaving replica waits at least, for those who route by an older snapshot; 0 means 1 s.
	DrainSettle time.Duration
	// StopGrace is the time between SIGTERM and SIGKILL; 0 means 10 s.
	StopGrace time.Duration
	// ProbeTimeout is how long a probe waits for its answer; 0 means 5 s.
	ProbeTimeout time.Duration
}

// withDefaults fills in what zero stands for.
func (c Config) withDefaults() Config {
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	if !c.Address.IsValid() {
		c.Address = loopback()
	}
	if c.Inventory == nil {
		c.Inventory = processors{}
	}
	for _, d := range []struct {
		value    *time.Duration
		standard time.Duration
	}{
		{&c.BackOff.First, time.Second},
		{&c.BackOff.Most, 300 * time.Second},
		{&c.BackOff.Reset, time.Minute},
		{&c.DrainTimeout, 30 * time.Second},
		{&c.DrainSettle, time.Second},
		{&c.StopGrace, 10 * time.Second},
		{&c.ProbeTimeout, 5 * time.Second},
		{&c.ReadEvery, readEvery},
	} {
		if *d.value == 0 {
			*d.value = d.standard
		}
	}
	return c
}

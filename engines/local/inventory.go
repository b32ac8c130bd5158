package local

import (
	"cmp"
	"context"
	"os"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/placement"
	"github.com/sluice-gateway/sluice/internal/process"
)

const (
	// readInterval is the default of Config.ReadEvery.
	readInterval = 10 * time.Second
	// A reading that takes long is repeated after readShare times its duration, up to readSeldom.
	// Without persistence mode each reading wakes the GPUs of an idle machine, which takes seconds.
	readShare  = 200
	readSeldom = time.Minute
	// readTimeout is how long replicas wait for a reading. A faulty driver may never answer.
	readTimeout = 10 * time.Second
)

// Inventory reads the resources of this machine.
type Inventory interface {
	// Read reads the resources anew. Together with an error it returns what is known: a node
	// without GPUs.
	Read() (engines.Node, error)
}

// cpuInventory is the inventory of a machine without GPUs, or whose GPUs are not used.
type cpuInventory struct{}

// Read implements Inventory.
func (cpuInventory) Read() (engines.Node, error) { return nodeWithoutGPUs(), nil }

// nodeWithoutGPUs reads this machine's name, and the CPUs and the memory that Sluice may use of it:
// a container has limits. Memory that cannot be read is not counted.
func nodeWithoutGPUs() engines.Node {
	return engines.Node{Name: hostName(), CPUs: process.CPULimit(), Memory: process.MemoryLimit()}
}

func hostName() string {
	name, err := os.Hostname()
	if err != nil {
		return "localhost"
	}
	return name
}

// driverState says what the GPU driver has answered so far.
type driverState int

const (
	// driverSilent: the driver has never answered.
	driverSilent driverState = iota
	// driverFailed: it has answered, but never with devices.
	driverFailed
	// driverAnswered: it has listed its devices, now or earlier.
	driverAnswered
)

// reading is one reading of the inventory.
type reading struct {
	engines.Node
	driver driverState
	// begun is when the reading began.
	begun time.Time
	// silent: the driver has not answered in time, so the GPUs are those of an earlier reading.
	silent bool
}

// tells reports whether the reading is one by which a replica that was created then gets GPUs. An
// earlier one may not know of programs that have filled a GPU since.
func (r *reading) tells(created time.Time) bool { return r.silent || r.begun.After(created) }

// Node returns this machine as it was last read. Before Run has read it, Node returns the zero
// value.
func (l *Launcher) Node() engines.Node {
	if node := l.node.Load(); node != nil {
		return node.Node
	}
	return engines.Node{}
}

// hasNoGPUs reports whether there is no GPU that must be hidden from a replica without GPUs. It is
// false while the driver does not answer, because there may be GPUs.
func (l *Launcher) hasNoGPUs() bool {
	node := l.node.Load()
	return node == nil || len(node.GPUs) == 0 && node.driver != driverSilent
}

// readInventory reads the inventory at once, then at each interval and when the loop asks for it
// (l.renew), and tells the loop. A driver that hangs does not delay a stop. After readTimeout it
// does not delay starts either: the node is then what it was before, or has no GPUs.
func (l *Launcher) readInventory(ctx context.Context) {
	var last reading
	for ctx.Err() == nil {
		read := make(chan reading, 1)
		go func() { read <- l.readOnce(last) }()
		late := time.NewTimer(l.readTimeout)
		for answered := false; !answered && ctx.Err() == nil; {
			select {
			case <-ctx.Done():
			case last = <-read:
				answered = true
				l.storeReading(ctx, last)
			case <-late.C:
				l.storeReading(ctx, l.unanswered(last))
			}
		}
		late.Stop()
		l.awaitReading(ctx, time.Since(last.begun))
	}
}

// pauseAfter returns the time until the next reading, unless somebody asks for one. took is how
// long the last one took.
func pauseAfter(took, every time.Duration) time.Duration {
	return max(every, min(took*readShare, readSeldom))
}

// awaitReading waits until it is time for the next reading.
func (l *Launcher) awaitReading(ctx context.Context, took time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(pauseAfter(took, l.config.ReadEvery)):
	case <-l.renew:
	}
}

// storeReading gives a reading to the loop, which stores it.
func (l *Launcher) storeReading(ctx context.Context, now reading) {
	if l.config.Name != "" {
		now.Name = l.config.Name
	}
	if before := l.node.Load(); before == nil || !sameDevices(before.Node, now.Node) {
		l.logNode(now.Node)
	}
	select {
	case <-ctx.Done():
	case l.read <- now:
	}
}

// apply takes over a reading. What the replicas do not hold of a GPU's memory is held by others.
func (l *Launcher) apply(now reading) {
	now.GPUs = withForeign(now.GPUs, l.Node().GPUs, l.table.claims(), l.table.loaded(now.begun))
	l.node.Store(&now)
	l.table.node = &now
}

// withForeign returns the devices with the memory that others than the claims hold. What is in use
// beyond the shares of the claims is theirs. A replica that has not loaded yet may use nothing of
// its share, which would hide as much of others. So its device keeps what was known of others
// before, as far as the memory in use allows it.
func withForeign(gpus, before []engines.GPU, claims []placement.Claim, loaded map[string]bool) []engines.GPU {
	gpus = slices.Clone(gpus)
	for i := range gpus {
		gpu := &gpus[i]
		var claimed, used float64
		for _, c := range claims {
			if !slices.Contains(c.Devices, gpu.UUID) {
				continue
			}
			claimed += c.Share()
			if loaded[c.ID] {
				used += c.Share()
			}
		}
		beyond := func(share float64) int64 {
			return max(0, gpu.MemoryUsed-int64(min(share, 1)*float64(gpu.MemoryTotal)))
		}
		gpu.MemoryForeign = beyond(claimed)
		if at := slices.IndexFunc(before, func(b engines.GPU) bool { return b.UUID == gpu.UUID }); at >= 0 {
			gpu.MemoryForeign = max(gpu.MemoryForeign, min(before[at].MemoryForeign, beyond(used)))
		}
	}
	return gpus
}

// readOnce reads the inventory. If the driver does not answer, it keeps the GPUs of the last
// reading: silence does not prove that they are gone.
func (l *Launcher) readOnce(last reading) reading {
	begun := time.Now()
	node, err := l.config.Inventory.Read()
	if err == nil {
		return reading{Node: node, driver: driverAnswered, begun: begun}
	}
	node.Name, node.GPUs, node.Reason = cmp.Or(node.Name, last.Name), last.GPUs, err.Error()
	return reading{Node: node, driver: max(last.driver, driverFailed), begun: begun}
}

// unanswered returns the node while its driver does not answer.
func (l *Launcher) unanswered(last reading) reading {
	node := nodeWithoutGPUs()
	if last.Name != "" {
		node = last.Node
	}
	node.GPUs, node.Reason = last.GPUs, "NVIDIA's driver does not answer"
	return reading{Node: node, driver: last.driver, silent: true}
}

func sameDevices(a, b engines.Node) bool {
	return a.Reason == b.Reason && slices.EqualFunc(a.GPUs, b.GPUs, func(a, b engines.GPU) bool { return a.UUID == b.UUID })
}

func (l *Launcher) logNode(node engines.Node) {
	var uuids []string
	for _, gpu := range node.GPUs {
		uuids = append(uuids, gpu.UUID)
	}
	fields := []zap.Field{zap.Float64("cpus", node.CPUs), zap.Int64("memory", node.Memory), zap.Strings("gpus", uuids)}
	if node.Reason != "" {
		fields = append(fields, zap.String("reason", node.Reason))
	}
	l.config.Log.Info("node resources detected", fields...)
}

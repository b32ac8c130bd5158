package local

import (
	"bytes"
	"cmp"
	"context"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/engines"
)

const (
	// readEvery is the pause between two readings of the inventory.
	readEvery = time.Minute
	// readTimeout is how long replicas wait for a reading. A driver in trouble may take for ever.
	readTimeout = 10 * time.Second
)

// Inventory tells what this host has to give.
type Inventory interface {
	// Read reads it anew. Together with an error it returns what is known all the same: a host without GPUs.
	Read() (engines.Node, error)
}

// processors is the inventory of a host whose GPUs nobody asks for.
type processors struct{}

// Read implements Inventory.
func (processors) Read() (engines.Node, error) { return thisHost(), nil }

// thisHost is the host without its GPUs.
func thisHost() engines.Node {
	meminfo, _ := os.ReadFile("/proc/meminfo") // where there is none, memory is not counted
	return engines.Node{Name: hostName(), CPUs: float64(runtime.NumCPU()), Memory: memoryOf(meminfo)}
}

func hostName() string {
	name, err := os.Hostname()
	if err != nil {
		return "localhost"
	}
	return name
}

// memoryOf finds the host's memory in the text of /proc/meminfo (proc_meminfo(5)); 0 if it is not there.
func memoryOf(meminfo []byte) int64 {
	for line := range bytes.Lines(meminfo) {
		fields := strings.Fields(string(line))
		if len(fields) == 3 && fields[0] == "MemTotal:" && fields[2] == "kB" {
			kibibytes, _ := strconv.ParseInt(fields[1], 10, 64)
			return kibibytes << 10
		}
	}
	return 0
}

// word is what is known of this host's devices.
type word int

const (
	// unheard: the driver has never answered.
	unheard word = iota
	// faulty: it has answered, but never with devices.
	faulty
	// heard: it has told of its devices, now or earlier.
	heard
)

// reading is this host as the inventory tells of it.
type reading struct {
	engines.Node
	devices word
}

// Node is this host as it was last read. Before the first reading, which Run does, it is zero.
func (l *Launcher) Node() engines.Node {
	if node := l.node.Load(); node != nil {
		return node.Node
	}
	return engines.Node{}
}

// hasNoGPUs tells whether nothing has to be hidden from a replica that was given no GPU. Those of a driver that does not answer may be there.
func (l *Launcher) hasNoGPUs() bool {
	node := l.node.Load()
	return node == nil || len(node.GPUs) == 0 && node.devices != unheard
}

// readInventory reads what the host has, at once and then every minute, and tells the loop. A driver that hangs delays nobody's end, and
// after readTimeout nobody's start: then the host is what it was before, or has no GPUs as far as we know.
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
				l.learn(ctx, last)
			case <-late.C:
				l.learn(ctx, l.unanswered(last))
			}
		}
		late.Stop()
		wait(ctx, l.config.ReadEvery)
	}
}

// learn makes a reading known.
func (l *Launcher) learn(ctx context.Context, now reading) {
	if l.config.Name != "" {
		now.Name = l.config.Name
	}
	if before := l.node.Load(); before == nil || !sameDevices(before.Node, now.Node) {
		l.logNode(now.Node)
	}
	l.node.Store(&now)
	select {
	case <-ctx.Done():
	case l.read <- struct{}{}:
	}
}

// readOnce keeps the GPUs of before when the driver does not answer: its silence is no proof that they are gone.
func (l *Launcher) readOnce(last reading) reading {
	node, err := l.config.Inventory.Read()
	if err == nil {
		return reading{node, heard}
	}
	node.Name, node.GPUs, node.Reason = cmp.Or(node.Name, last.Name), last.GPUs, err.Error()
	return reading{node, max(last.devices, faulty)}
}

// unanswered is the host while its driver does not answer.
func (l *Launcher) unanswered(last reading) reading {
	node := thisHost()
	if last.Name != "" {
		node = last.Node
	}
	node.GPUs, node.Reason = last.GPUs, "NVIDIA's driver does not answer"
	return reading{node, last.devices}
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
	l.config.Log.Info("what this host has for replicas", fields...)
}

package local

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/engines"
)

// visible is the variable that tells CUDA which devices there are. Ours are named by UUID, so that no order of theirs matters.
const visible = "CUDA_VISIBLE_DEVICES"

// readEvery is the pause between two readings of the inventory.
const readEvery = time.Minute

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
	name, err := os.Hostname()
	if err != nil {
		name = host
	}
	meminfo, _ := os.ReadFile("/proc/meminfo") // where there is none, memory is not counted
	return engines.Node{Name: name, CPUs: float64(runtime.NumCPU()), Memory: memoryOf(meminfo)}
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

// Node is this host as it was last read. Before the first reading, which Run does, it is zero.
func (l *Launcher) Node() engines.Node {
	if node := l.node.Load(); node != nil {
		return *node
	}
	return engines.Node{}
}

// readInventory reads what the host has, at once and then every minute, and tells the loop. A driver that hangs delays nobody's end.
func (l *Launcher) readInventory(ctx context.Context) {
	var last engines.Node
	for {
		read := make(chan engines.Node, 1)
		go func() { read <- l.readOnce(last) }()
		select {
		case <-ctx.Done():
			return
		case node := <-read:
			if l.node.Load() == nil || !sameDevices(last, node) {
				l.logNode(node)
			}
			last = node
			l.node.Store(&node)
		}
		select {
		case <-ctx.Done():
			return
		case l.read <- struct{}{}:
		}
		wait(ctx, l.config.ReadEvery)
	}
}

// readOnce keeps the GPUs of before when the driver does not answer: its silence is no proof that they are gone.
func (l *Launcher) readOnce(last engines.Node) engines.Node {
	node, err := l.config.Inventory.Read()
	if err != nil {
		node.GPUs, node.Reason = last.GPUs, err.Error()
	}
	return node
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

// devices is what the replica's environment says of its GPUs. A model with resources sees what it was given and nothing else; one
// without sees what we see.
func (r *runner) devices(m *Model) []string {
	if r.replica.GPUs == "" && (m.Resources == nil || len(r.launcher.Node().GPUs) == 0) {
		return nil
	}
	return []string{visible + "=" + r.replica.GPUs}
}

// turns lets the replicas that share a GPU start one after another: an engine looks how much memory is free and takes it, and two that look
// at once take the same.
type turns struct {
	mu sync.Mutex
	// starting is the replica that starts, by device; guarded by mu
	starting map[string]string
	// changed is closed when a device becomes free, and replaced; guarded by mu
	changed chan struct{}
}

func newTurns() *turns { return &turns{starting: map[string]string{}, changed: make(chan struct{})} }

// take gives the replica its turn on all the devices, or tells which replica has one of them and when to ask again.
func (t *turns) take(id string, devices []string) (holder string, again <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, d := range devices {
		if other, ok := t.starting[d]; ok && other != id {
			return other, t.changed
		}
	}
	for _, d := range devices {
		t.starting[d] = id
	}
	return "", nil
}

// done ends the turn of a replica, if it has one.
func (t *turns) done(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := len(t.starting)
	maps.DeleteFunc(t.starting, func(_, holder string) bool { return holder == id })
	if len(t.starting) < before {
		close(t.changed)
		t.changed = make(chan struct{})
	}
}

// awaitTurn waits until nobody else starts on the replica's GPUs, or until staying ends.
func (r *runner) awaitTurn(staying context.Context) {
	for {
		holder, again := r.launcher.turns.take(r.id, r.replica.Devices())
		if holder == "" {
			return
		}
		r.report(staying, engines.Pending, "waits for "+holder+", which starts on the same GPU")
		select {
		case <-again:
		case <-staying.Done():
			return
		}
	}
}

// resources is what the replica takes, for its record.
func (r *runner) resources() string {
	data, _ := json.Marshal(r.replica.Resources) // numbers that came from text: they always marshal
	return string(data)
}

// resourcesOf reads what a record says. An older one says nothing.
func resourcesOf(text string) engines.Resources {
	var r engines.Resources
	_ = json.Unmarshal([]byte(text), &r) // what cannot be read is nothing
	return r
}

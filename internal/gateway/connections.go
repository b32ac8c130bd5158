package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/sluice-gateway/sluice/envoy"
	"github.com/sluice-gateway/sluice/internal/beat"
	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/connections"
	"github.com/sluice-gateway/sluice/internal/decide"
	"github.com/sluice-gateway/sluice/internal/process"
	"github.com/sluice-gateway/sluice/internal/telemetry"
)

const (
	// memoryShare is the part of the memory that Envoy may use without a number in the file.
	memoryShare = 4
	// leastMemory suffices for Envoy and for uploads of some 100 MiB.
	leastMemory = 256 << 20
	// nearLimit is the share of a budget from which on its use is a condition.
	nearLimit    = 0.8
	heapInterval = 2 * time.Second
)

// envoyBudget returns what an Envoy that is started now may use.
func envoyBudget(c *config.Config) envoy.Budget {
	var b envoy.Budget
	if files := process.FileLimit(); files > 0 {
		b = envoy.FileBudget(files)
	}
	if most := c.Connections.Max; most > 0 && (b.Connections == 0 || most < b.Connections) {
		b.Connections = most
	}
	b.Memory = int64(c.Envoy.Memory)
	if b.Memory == 0 {
		b.Memory = max(process.MemoryLimit()/memoryShare, leastMemory, 2*int64(c.MaxBody))
	}
	return b
}

// budget returns what the running Envoy may use: the zero Budget if someone else runs Envoy.
func (e *envoyLink) budget() envoy.Budget {
	if e.process == nil {
		return envoy.Budget{}
	}
	if s := e.process.Status(); s.PID != 0 {
		return s.Budget
	}
	return envoyBudget(e.first)
}

// maxOpen returns how many requests Envoy has sockets for. 0 means that it is not known.
func (e *envoyLink) maxOpen() int { return int(e.requests.Load()) }

// uploadLimits returns the limits of the bodies that Envoy is receiving.
func (g *Gateway) uploadLimits() decide.UploadLimits {
	c := g.options.Config
	bytes := int64(c.Upload.MaxBytes)
	if bytes == 0 {
		bytes = max(envoyBudget(c).Memory/memoryShare, int64(c.MaxBody))
	}
	return decide.UploadLimits{
		MinRate: int64(c.Upload.MinRate), Grace: c.Upload.Grace, MaxBytes: bytes,
		PerTenant: c.Upload.PerTenant, MaxStreams: g.limits.maxStreams,
	}
}

// connectionLimit returns the greatest number of connections of clients, or 0 if it is not known.
// An adopted Envoy may allow more than the file does now; the guard refuses those.
func (e *envoyLink) connectionLimit() int {
	limit := e.budget().Connections
	if most := e.first.Connections.Max; most > 0 && (limit == 0 || most < limit) {
		limit = most
	}
	return limit
}

// pressureFile returns the file in which Envoy reads how many connections are in use. It is empty
// if Envoy could not watch the file: an Envoy that gets no inotify instance ends itself.
func pressureFile(dir *process.Dir, log *zap.Logger) string {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		log.Warn("idle connections keep their time when connections become scarce: no inotify instance is left, raise fs.inotify.max_user_instances",
			zap.Error(err))
		return ""
	}
	_ = unix.Close(fd)
	path := filepath.Join(dir.Path(), "connections.pressure")
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		if err := connections.WritePressure(path); err != nil {
			log.Warn("file for the pressure of connections not written", zap.Error(err))
		}
	}
	return path
}

func (g *Gateway) guardConnections(listen netip.AddrPort, pressureFile string) {
	c := g.options.Config
	g.guard = connections.New(connections.Config{
		Listen: listen, Limit: g.envoy.connectionLimit, PerSource: c.Connections.PerSource,
		Trusted: c.Connections.Trusted(), PressureFile: pressureFile, Changed: g.envoy.setMode, Log: g.log,
	})
	mode := g.guard.Mode()
	g.envoy.mode.Store(&mode)
}

// setMode tells Envoy what to do with new connections.
func (e *envoyLink) setMode(m connections.Mode) {
	e.mode.Store(&m)
	if err := e.push(); err != nil {
		e.log.Error("Envoy was not told what to do with new connections", zap.Error(err))
	}
}

// watchHeap asks Envoy how much memory it uses, until ctx ends.
func (e *envoyLink) watchHeap(ctx context.Context) error {
	for {
		if n, err := e.process.Admin().Heap(ctx); err == nil { // an Envoy that does not answer has a condition of its own
			e.heap.Store(n)
		}
		e.requests.Store(int64(e.budget().Requests))
		select {
		case <-ctx.Done():
			return nil
		case <-beat.After(heapInterval):
		}
	}
}

// edgeBudgets returns the budgets of connections, of uploads, of the gateway's files and of Envoy's
// memory.
func (g *Gateway) edgeBudgets() []telemetry.BudgetGauges {
	up := g.decisions.UploadStats()
	all := []telemetry.BudgetGauges{
		{Name: "upload_bytes", Used: up.Bytes, Limit: up.Limit, Refused: up.Refused + up.Late},
		{Name: "files", Used: int64(process.OpenFiles()), Limit: int64(process.FileLimit())},
	}
	if g.guard == nil {
		return all
	}
	s := g.guard.Status()
	return append(all,
		telemetry.BudgetGauges{Name: "connections", Used: int64(s.Open), Limit: int64(s.Limit), Refused: s.Refused},
		telemetry.BudgetGauges{Name: "envoy_memory", Used: g.envoy.heap.Load(), Limit: g.envoy.budget().Memory})
}

// edgeConditions tells whether a budget of edgeBudgets is nearly used up.
func (g *Gateway) edgeConditions() []condition.Condition {
	var all []condition.Condition
	if up := g.decisions.UploadStats(); isNearLimit(up.Bytes, up.Limit) {
		all = append(all, condition.Fault(condition.MemoryNearLimit, "uploads", "NearLimit",
			fmt.Sprintf("Clients send %d bodies of %s; there may be %s of them.", up.Count, mebibytes(up.Bytes), mebibytes(up.Limit))))
	}
	if g.guard == nil {
		return all
	}
	s := g.guard.Status()
	if s.Err != nil {
		c := condition.Fault(condition.ConnectionsNearLimit, "", "NotCounted",
			fmt.Sprintf("The connections of clients cannot be counted: %v. No source is kept from taking all of them.", s.Err))
		c.Status = condition.Unknown
		all = append(all, c)
	} else if s.Near() {
		all = append(all, condition.Fault(condition.ConnectionsNearLimit, "", "NearLimit",
			fmt.Sprintf("Clients hold %d of %d connections; %s holds %d of them.", s.Open, s.Limit, s.Source, s.Most)))
	}
	heap, limit := g.envoy.heap.Load(), g.envoy.budget().Memory
	if isNearLimit(heap, limit) {
		all = append(all, condition.Fault(condition.MemoryNearLimit, "envoy", "NearLimit",
			fmt.Sprintf("Envoy uses %s of %s of memory.", mebibytes(heap), mebibytes(limit))))
	}
	return all
}

// isNearLimit reports whether nearly all of a budget is used. A limit of 0 is none.
func isNearLimit(used, limit int64) bool {
	return limit > 0 && float64(used) >= nearLimit*float64(limit)
}

// mebibytes formats a number of bytes for people.
func mebibytes(n int64) string { return fmt.Sprintf("%d MiB", n>>20) }

package gateway

import (
	"fmt"
	"math"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/memory"
	"github.com/sluice-gateway/sluice/internal/process"
	"github.com/sluice-gateway/sluice/internal/telemetry"
)

const (
	// processShare is the part of the memory of the machine or of the container that this process
	// may use without a number in the file. Envoy and local replicas have the rest.
	processShare = 2
	// leastProcess suffices for a gateway with some hundred streams.
	leastProcess = 128 << 20
	// relayShare is the part of the process's memory that managed requests may keep.
	relayShare = 2
	// processNearLimit is the share of its soft limit from which on the process's memory is a
	// condition. Go lets the heap come near the limit before it collects, so the share is high.
	processNearLimit = 0.95
)

// processMemory is what this process may use and uses.
type processMemory struct {
	// limit is the soft limit in bytes, math.MaxInt64 if there is none. byEnvironment says that
	// GOMEMLIMIT has set it.
	limit         int64
	byEnvironment bool
	budget        *memory.Budget
	monitor       memory.Monitor
	maxAnswer     int64
}

// makeMemory sets the soft limit of this process, and makes the budget of managed requests.
func (g *Gateway) makeMemory() {
	c := g.options.Config.Memory
	limit := int64(c.Limit)
	if total := process.MemoryLimit(); limit == 0 && total > 0 {
		limit = max(total/processShare, leastProcess)
	}
	m := &g.memory
	m.limit, m.byEnvironment = memory.SetLimit(limit)
	m.monitor.Reserve()
	m.budget = memory.NewBudget(relayBudget(c, m.limit))
	m.monitor.Budget = m.budget
	if m.maxAnswer = int64(c.MaxAnswer); m.budget.Limit() > 0 {
		m.maxAnswer = min(m.maxAnswer, m.budget.Limit()/2)
	}
	g.log.Info("memory limited", zap.Int64("limit_bytes", m.limit), zap.Bool("by_gomemlimit", m.byEnvironment),
		zap.Int64("relay_bytes", m.budget.Limit()), zap.Int64("max_answer_bytes", m.maxAnswer))
}

// relayBudget returns how many bytes managed requests may keep under a soft limit of the process.
func relayBudget(c config.Memory, limit int64) int64 {
	switch {
	case c.Relay > 0:
		return int64(c.Relay)
	case limit == math.MaxInt64:
		return 0
	}
	return limit / relayShare
}

// memoryBudgets returns the budgets of this process's memory and of WebSockets.
func (g *Gateway) memoryBudgets() []telemetry.BudgetGauges {
	b := g.memory.budget
	sockets := g.streams.realtime.Sockets()
	all := []telemetry.BudgetGauges{
		{Name: "gateway_memory", Used: g.memory.monitor.InUse(), Limit: g.memory.limit},
		{Name: "websockets", Used: int64(sockets.Open), Limit: int64(sockets.Limit), Refused: sockets.Refused},
		{Name: "relay_memory", Used: b.Total(), Limit: b.Limit()},
	}
	for _, k := range memory.Kinds() {
		all = append(all, telemetry.BudgetGauges{Name: "relay_" + k.String(), Used: b.Used(k), Limit: b.LimitOf(k), Refused: uint64(b.Refused(k))})
	}
	return all
}

// memoryConditions tells whether a budget of memoryBudgets is nearly used up.
func (g *Gateway) memoryConditions() []condition.Condition {
	var all []condition.Condition
	if used, limit := g.memory.monitor.InUse(), g.memory.limit; float64(used) >= processNearLimit*float64(limit) {
		all = append(all, condition.Fault(condition.MemoryNearLimit, "gateway", "NearLimit",
			fmt.Sprintf("The gateway uses %s of %s of memory.", mebibytes(used), mebibytes(limit))))
	}
	b := g.memory.budget
	if used, limit := b.Total(), b.Limit(); isNearLimit(used, limit) {
		all = append(all, condition.Fault(condition.MemoryNearLimit, "relay", "NearLimit",
			fmt.Sprintf("Managed requests keep %s of %s (memory.relay): bodies %s, answers %s, events for slow clients %s, "+
				"events for clients that come back %s.", mebibytes(used), mebibytes(limit), mebibytes(b.Used(memory.Requests)),
				mebibytes(b.Used(memory.Answers)), mebibytes(b.Used(memory.Queues)), mebibytes(b.Used(memory.Replays)))))
	}
	if s := g.streams.realtime.Sockets(); isNearLimit(int64(s.Open), int64(s.Limit)) {
		all = append(all, condition.Fault(condition.SocketsNearLimit, "", "NearLimit",
			fmt.Sprintf("Clients hold %d of %d WebSockets; tenant %s holds %d of them.", s.Open, s.Limit, s.Tenant, s.Most)))
	}
	return all
}

package admission

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// changingPools is models and pools that change while requests come and go.
type changingPools struct {
	*Controller
	t      *testing.T
	random *rand.Rand
	pools  map[string][]string
	wg     sync.WaitGroup
	// checked counts the moments in which a model had room.
	checked int
}

var changingModels = [...]string{"a", "b", "c", "d"}

const maxChangingCost = 200

// change is any change that an operator may make.
func (h *changingPools) change() {
	m := changingModels[h.random.IntN(len(changingModels))]
	switch h.random.IntN(50) {
	case 0:
		h.Remove(m)
	case 1, 2, 3:
		h.SetLimits(m, Limits{MaxConcurrent: 1 + h.random.IntN(5), TokensPerMinute: []int{0, 600, 60_000}[h.random.IntN(3)],
			MaxQueue: 1 + h.random.IntN(60), QueueTimeout: 20 * time.Second, Weight: h.random.IntN(5)})
	case 4:
		h.pools = map[string][]string{"p": {"a", "b", m}, "q": {m, "d"}}
		h.SetPools(h.pools)
	case 5:
		h.SetTenants(map[string]TenantLimits{"t0": {MaxConcurrent: 1 + h.random.IntN(9)}, "t1": {TokensPerMinute: 3000, Weight: 3}})
	}
}

// startRequest starts one request, for a model or a pool, which may be cancelled.
func (h *changingPools) startRequest() {
	r := Request{Model: changingModels[h.random.IntN(len(changingModels))], Tenant: "t" + strconv.Itoa(h.random.IntN(4)),
		Tokens: h.random.IntN(maxChangingCost), Bytes: h.random.IntN(1000), Priority: Priority(h.random.IntN(3) - 1)}
	if h.random.IntN(2) == 0 {
		r.Model, r.Pool = "", []string{"p", "q"}[h.random.IntN(2)]
	}
	patience, length, cost := pause(h.random, 30*time.Second), pause(h.random, 2*time.Second), h.random.IntN(2*maxChangingCost)
	h.wg.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if l, err := h.Admit(ctx, r); err == nil {
			time.Sleep(length)
			l.Correct(cost)
			l.Release()
		}
	})
	synctest.Wait()
}

// checkNoIdleRoom fails the test if a request waits for a model that has room for every request.
func (h *changingPools) checkNoIdleRoom() {
	for _, m := range changingModels {
		l, ok := h.Limits(m)
		now := h.Stats(m)
		if !ok || now.InFlight >= l.MaxConcurrent || l.TokensPerMinute > 0 && now.Tokens < maxChangingCost {
			continue
		}
		h.checked++
		waiting := now.Queued
		for p, models := range h.pools {
			if slices.Contains(models, m) {
				waiting += h.PoolStats(p).Queued
			}
		}
		if waiting > 0 {
			h.t.Errorf("%d wait beside %s with %+v of %+v", waiting, m, now, l)
		}
	}
}

// TestNobodyWaitsBesideRoom: whatever models, pools, limits and clients do, no request waits for a
// model that has room, and nothing is left in the end.
func TestNobodyWaitsBesideRoom(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		synctest.Test(t, func(t *testing.T) {
			h := &changingPools{Controller: New(Config{Ageing: 200 * time.Millisecond}), t: t, random: rand.New(rand.NewPCG(seed, 5)),
				pools: map[string][]string{"p": {"a", "b", "c"}, "q": {"c", "d"}}}
			for _, m := range changingModels {
				h.SetLimits(m, Limits{MaxConcurrent: 3, QueueTimeout: 20 * time.Second})
			}
			h.SetPools(h.pools)
			for range 800 {
				time.Sleep(pause(h.random, 80*time.Millisecond))
				h.change()
				h.startRequest()
				h.checkNoIdleRoom()
			}
			h.wg.Wait()
			for i := range 4 {
				got := h.Tenant("t" + strconv.Itoa(i))
				if got.Quota = (Quota{}); got != (TenantStats{}) {
					t.Errorf("tenant %d: left over: %+v", i, got)
				}
			}
			if h.checked < 50 || waitingBytesOf(h.Controller) != 0 {
				t.Errorf("looked %d times, %d bytes left over", h.checked, waitingBytesOf(h.Controller))
			}
		})
	}
}

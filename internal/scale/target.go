package scale

import (
	"math"
	"time"

	"github.com/sluice-gateway/sluice/internal/predict"
)

// Target is what the replicas of a model shall hold to. At most one field is set. The zero value
// adds no replica before requests wait.
type Target struct {
	// Running is the largest number of requests for each replica, the waiting ones included.
	Running int
	// TTFT is the longest mean time to the first token of the requests that arrive.
	TTFT time.Duration
}

// meanTTFT returns the mean predicted time to the first token. 0 means not known.
func meanTTFT(p predict.Flow) time.Duration {
	if p.Requests <= 0 {
		return 0
	}
	return time.Duration(p.TTFT / p.Requests * float64(time.Second))
}

const (
	// keepShare is the share of the target that fewer replicas must hold before the number falls.
	keepShare = 0.8
	// leastWait is the share of the target that requests may always wait. Without it, prompts that
	// take longer than the target alone would ask for any number of replicas.
	leastWait = 0.25
	// drainTime is the time in which added replicas shall have worked off what waits.
	drainTime = 60.0
	// maxBusy is the share of the time that prefill may keep replicas busy.
	maxBusy = 0.97
	// waitVariance is half of 1 plus the squared variation of prefill times, in the formula of
	// Sakasegawa. Recorded prompts have about 2.
	waitVariance = 1.5
)

// neededByTarget returns how many replicas hold the share of the target, and why. 0 means that the
// target asks for none.
func (st *modelState) neededByTarget(l Load, share float64) (int, Reason) {
	switch {
	case st.Target.Running > 0:
		per := st.Target.Running
		if l.PerReplica > 0 {
			per = min(per, l.PerReplica)
		}
		per = int(math.Ceil(float64(per) * share))
		return (l.busy() + per - 1) / per, RunningTarget
	case st.Target.TTFT > 0:
		return st.neededForTTFT(l, st.Target.TTFT.Seconds()*share), TTFTTarget
	}
	return 0, ""
}

// neededForTTFT returns how many replicas let the requests that arrive have their first token
// within target seconds on average. What arrives keeps a number of replicas busy; the more are left
// idle, the shorter the requests wait. What waits already asks for replicas that work it off within
// drainTime.
func (st *modelState) neededForTTFT(l Load, target float64) int {
	p := l.Predicted
	if p.Requests <= 0 || l.busy() == 0 { // the predictions are of requests that have ended
		return 0
	}
	prefill := p.Prefill / p.Requests
	wait, allowed := p.TTFT/p.Requests-prefill, max(target-prefill, target*leastWait)
	n := 1
	for n < st.Max && expectedWait(n, p.Prefill, prefill) > allowed {
		n++
	}
	if wait > allowed {
		n = max(n, int(math.Ceil(p.Prefill+wait*float64(l.Ready)/drainTime)))
	}
	return n
}

// expectedWait returns the seconds that requests wait on average for one of n replicas, when their
// prompts keep busy replicas busy and each takes prefill seconds. It is the approximation of
// H. Sakasegawa, "An approximation formula L_q ≈ αρ^β/(1-ρ)", 1977.
func expectedWait(n int, busy, prefill float64) float64 {
	share := busy / float64(n)
	if share >= maxBusy {
		return math.Inf(1)
	}
	return waitVariance * prefill * math.Pow(share, math.Sqrt(2*float64(n+1))-1) / (float64(n) * (1 - share))
}

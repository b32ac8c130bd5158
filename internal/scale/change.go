package scale

import "time"

// Reason is why a number of replicas has changed.
type Reason string

// The reasons.
const (
	// RequestsWait: requests waited for a replica.
	RequestsWait Reason = "requests_wait"
	// RunningTarget: fewer replicas would have had more requests each than Target.Running.
	RunningTarget Reason = "running_target"
	// TTFTTarget: fewer replicas would have been slower than Target.TTFT.
	TTFTTarget Reason = "ttft_target"
	// FewerEnough: fewer replicas were enough during the whole cooldown.
	FewerEnough Reason = "fewer_enough"
	// Idle: there was no request during the whole cooldown.
	Idle Reason = "idle"
	// Evicted: another model needed the room.
	Evicted Reason = "evicted"
	// Bounds: the configuration has other bounds.
	Bounds Reason = "bounds"
	// Found: the replicas exist from before a restart.
	Found Reason = "found"
)

// Change is a change of a number of replicas. The zero value means that it never changed.
type Change struct {
	From, To int
	Reason   Reason
	At       time.Time
}

// LastChange returns the last change of a model's number.
func (s *Scaler) LastChange(model string) Change {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st := s.models[model]; st != nil {
		return st.last
	}
	return Change{}
}

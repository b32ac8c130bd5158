package telemetry

import (
	"cmp"
	"fmt"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/sluice-gateway/sluice/internal/request"
)

// PickLog returns a func that logs, at level debug, why a request goes to its replica. It logs the
// strategy, the word for the reason, and each replica that there was with its load and its
// predicted time. It is nil if the log has no lines of this level.
func PickLog(log *zap.Logger) func(request.Summary) {
	if !log.Core().Enabled(zapcore.DebugLevel) {
		return nil
	}
	return func(q request.Summary) {
		p := &q.Prediction
		log.Debug("replica picked", zap.String("request_id", q.ID), zap.String("tenant", q.Tenant), zap.String("model", q.Model),
			zap.String("replica", q.Replica), zap.String("strategy", p.Strategy), zap.String("why", cmp.Or(p.Reason, p.Strategy)), zap.String("moved", p.Moved),
			zap.Float64("queued_ms", inMilliseconds(q.Waited)), zap.Float64("predicted_ms", inMilliseconds(p.TTFT)),
			zap.Stringers("candidates", candidates(p.Candidates)))
	}
}

// candidate is a replica of a pick as the log shows it.
type candidate request.Candidate

func candidates(all []request.Candidate) []candidate {
	shown := make([]candidate, len(all))
	for i, c := range all {
		shown[i] = candidate(c)
	}
	return shown
}

// String returns the candidate for people, such as "chat-0: 2 running, 12.5 ms, 100 tokens cached,
// 20 to compute, 0 before them".
func (c candidate) String() string {
	text := fmt.Sprintf("%s: %d running", c.Replica, c.Load)
	if c.Full {
		text += ", full"
	}
	if c.TTFT > 0 {
		text += fmt.Sprintf(", %.1f ms, %d tokens cached, %d to compute, %d before them",
			float64(c.TTFT)/float64(time.Millisecond), c.MatchedTokens, c.UncachedTokens, c.WaitingTokens)
	}
	return text
}

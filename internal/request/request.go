// Package request is what Sluice knows of one inference request as a whole. Package extproc and
// internal/relay use it to tell each other and internal/telemetry how a request begins and ends.
package request

import "time"

// Follower is told what becomes of a request.
type Follower interface {
	// Decided tells that the request leaves for this replica of this model (by its own name, not an
	// alias) after it has waited so long.
	Decided(model, replica string, waited time.Duration)
	// Carried tells that a request which the relay carried has ended, and how.
	Carried(o Outcome)
}

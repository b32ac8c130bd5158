package relay

import "github.com/sluice-gateway/sluice/internal/request"

// Result is how a call has ended.
type Result = request.Outcome

// Usage is what a call has used, in tokens.
type Usage = request.Usage

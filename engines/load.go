package engines

// Load is the work that gateways have for a model.
type Load struct {
	// Running is the number of requests at replicas. Queued is the number of waiting requests.
	Running int `json:"running,omitempty"`
	Queued  int `json:"queued,omitempty"`
	// Held is how many of the waiting requests more replicas would not help.
	Held int `json:"held,omitempty"`
	// Admitted counts all requests that were ever admitted.
	Admitted uint64 `json:"admitted,omitempty"`
	// Refused counts all requests that were ever refused at once because no replica was ready. It
	// is compared with an earlier count of the same gateway, so Add leaves it out.
	Refused uint64 `json:"refused,omitempty"`
	// Predicted is what the gateway predicted for the first tokens of recent requests.
	Predicted Predicted `json:"predicted,omitzero"`
}

// Predicted is what recent requests bring in each second. The zero value is no request.
type Predicted struct {
	// Requests is the number of requests per second.
	Requests float64 `json:"requests,omitempty"`
	// TTFT and Prefill are sums of seconds per second. TTFT adds up the predicted times to the
	// first token. Prefill adds up the part of them in which a replica computes the request's own
	// prompt.
	TTFT    float64 `json:"ttft,omitempty"`
	Prefill float64 `json:"prefill,omitempty"`
}

// Add returns the load of two gateways together, with the Refused of l alone.
func (l Load) Add(o Load) Load {
	l.Running += o.Running
	l.Queued += o.Queued
	l.Held += o.Held
	l.Admitted += o.Admitted
	l.Predicted.Requests += o.Predicted.Requests
	l.Predicted.TTFT += o.Predicted.TTFT
	l.Predicted.Prefill += o.Predicted.Prefill
	return l
}

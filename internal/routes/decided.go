package routes

// Decided is what distinguishes the routes of decided requests. The header headers.Route has their
// keys.
type Decided struct {
	// Relay means that the relay answers, and not a replica that Envoy asks.
	Relay bool
	// Stream means that the request asks for a streamed response.
	Stream bool
	// ClientTimeout means that the response is bounded by a timeout that the client has set. When
	// Envoy reports a timeout, it knows nothing of the request but its route.
	ClientTimeout bool
	// OwnRetries means that other failures are retried than those of most requests. The headers
	// x-envoy-retry-on and x-envoy-retriable-status-codes say which, if they are there.
	OwnRetries bool
}

// keys are those of all values of Decided, by their index.
var keys = func() (all [1 << 4]string) {
	for _, d := range AllDecided() {
		key := Engine
		if d.Relay {
			key = Relay
		}
		for _, part := range []struct {
			is   bool
			text string
		}{{d.Stream, "+stream"}, {d.ClientTimeout, "+timeout"}, {d.OwnRetries, "+retries"}} {
			if part.is {
				key += part.text
			}
		}
		all[d.index()] = key
	}
	return all
}()

// AllDecided lists every kind of decided requests. What the relay answers has neither a timeout nor
// retries in Envoy.
func AllDecided() []Decided {
	all := []Decided{{Relay: true}, {Relay: true, Stream: true}}
	for i := range 1 << 3 {
		all = append(all, Decided{Stream: i&1 != 0, ClientTimeout: i&2 != 0, OwnRetries: i&4 != 0})
	}
	return all
}

// Key returns the value of headers.Route for requests of this kind.
func (d Decided) Key() string { return keys[d.index()] }

func (d Decided) index() (i int) {
	for bit, is := range [...]bool{d.Stream, d.ClientTimeout, d.OwnRetries, d.Relay} {
		if is {
			i |= 1 << bit
		}
	}
	return i
}

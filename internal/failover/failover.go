// Package failover is the one rule of when a request leaves a replica that has failed for another
// one. Packages xds and extproc use it to tell Envoy, which carries native requests, and
// internal/relay uses it for managed ones, whichever protocol their engines speak. docs/failover.md
// is generated from its table.
//
// A request can move only while its client has received nothing of an answer. On the native way
// that ends with the headers of the replica's response, on the managed way with the first token.
package failover

import (
	"cmp"
	"strconv"
	"strings"
)

// The reasons for which another replica is tried, as the metrics name them.
const (
	// Connect: the replica did not accept the connection.
	Connect = "connect"
	// Reset: the replica dropped the request before its response had begun, or it broke off what
	// the client has not seen yet.
	Reset = "reset"
	// TooMany: the replica answered 429.
	TooMany = "429"
	// ServerError: the replica answered with a status of 500 or more.
	ServerError = "5xx"
	// TTFTTimeout: the replica had not begun its response in the time that one attempt has.
	TTFTTimeout = "ttft_timeout"
	// Preempted: nothing has failed; a more urgent request preempted this one in its prefill.
	Preempted = "preempted"
)

// RouteRetries is how often Envoy's routes retry a request that names no number itself. Each retry
// goes to the next replica of the list.
const RouteRetries = 3

// rule is one row of the table.
type rule struct {
	// Reason is one of the constants above.
	Reason string
	// What the replica did, for people.
	What string
	// Envoy is the condition of Envoy's retry policy that native requests have always. Empty: Envoy
	// has none, or the request's headers carry it (see Statuses.Envoy).
	Envoy string
	// Managed says what the relay does that Envoy cannot do, for people.
	Managed string
	// Statuses are the statuses of the row, all of which the model's fail_over_on can exclude. 0:
	// the row has no status.
	Statuses Statuses
	// Then says what becomes of the replica, for people.
	Then string
}

// rules is the table.
var rules = []rule{
	{Reason: Connect, What: "accepts no connection within 2 s", Envoy: "connect-failure,refused-stream", Managed: "the same",
		Then: "counts for `unhealthy_on: connect`"},
	{Reason: Reset, What: "closes the connection, or answers what is no HTTP, before its headers", Envoy: "reset",
		Managed: "until the first token; also a whole answer that is incomplete or cannot be read", Then: "counts for `unhealthy_on: reset`"},
	{Reason: TooMany, What: "answers 429", Managed: "the same", Statuses: OnTooMany,
		Then: "gets no new request for its `Retry-After` (1 s if it gives none, at most 10 s), if the model has another replica"},
	{Reason: ServerError, What: "answers 503", Managed: "the same", Statuses: OnUnavailable,
		Then: "counts for `unhealthy_on: 503`; with a `Retry-After` it also rests as after a 429"},
	{Reason: ServerError, What: "answers 500 to 599, but not 503", Managed: "also an error event before the first token, by the code of its error",
		Statuses: OnServerError, Then: "counts for `unhealthy_on: 5xx`"},
	{Reason: TTFTTimeout, What: "sends no first token within `stream.ttft_timeout`", Managed: "only streams; the model's streams are then managed",
		Then: "nothing"},
	{Reason: Preempted, What: "serves a request that has to give its slot to a more urgent one", Managed: "the request queues again", Then: "nothing"},
}

// Reasons lists the reasons, each once.
func Reasons() []string {
	var all []string
	for _, r := range rules {
		if len(all) == 0 || all[len(all)-1] != r.Reason {
			all = append(all, r.Reason)
		}
	}
	return all
}

// RetryOn returns the conditions of Envoy's retry policy that do not depend on statuses.
func RetryOn() string {
	var all []string
	for _, r := range rules {
		if r.Envoy != "" {
			all = append(all, r.Envoy)
		}
	}
	return strings.Join(all, ",")
}

// Statuses is a set of the kinds of statuses for which another replica is tried. The zero value is
// AllStatuses.
type Statuses uint8

// The kinds of statuses.
const (
	// OnTooMany is status 429.
	OnTooMany Statuses = 1 << iota
	// OnUnavailable is status 503.
	OnUnavailable
	// OnServerError is a status from 500 to 599 except 503.
	OnServerError
	// NoStatus is a set without a status.
	NoStatus
	// AllStatuses are all kinds.
	AllStatuses = OnTooMany | OnUnavailable | OnServerError
	// EveryBit has every bit that a set can have.
	EveryBit = AllStatuses | NoStatus
)

// Usual reports whether s is the set of most requests, which Envoy's routes follow by themselves.
func (s Statuses) Usual() bool { return s == 0 || s&AllStatuses == AllStatuses }

// Reason returns why another replica is tried after an answer with this status. Empty: the answer
// is for the client.
func (s Statuses) Reason(status int) string {
	s = cmp.Or(s, AllStatuses)
	reason, kind := kindOf(status)
	if s&kind == 0 {
		return ""
	}
	return reason
}

// ReasonOf returns the reason that belongs to a status, whatever a model's set is. Empty: there is
// none.
func ReasonOf(status int) string {
	reason, _ := kindOf(status)
	return reason
}

func kindOf(status int) (reason string, kind Statuses) {
	switch {
	case status == 429:
		return TooMany, OnTooMany
	case status == 503:
		return ServerError, OnUnavailable
	case status >= 500 && status <= 599:
		return ServerError, OnServerError
	}
	return "", 0
}

// Envoy returns the values of the request headers x-envoy-retry-on and
// x-envoy-retriable-status-codes that make Envoy follow the set. Both are empty if the set has no
// status.
func (s Statuses) Envoy() (retryOn, codes string) {
	s = cmp.Or(s, AllStatuses)
	var list, on []string
	if s&OnTooMany != 0 {
		// An engine behind another Envoy may mark its 429 with x-envoy-ratelimited. Envoy tries
		// nothing again after such a response, unless it is told so.
		list, on = append(list, "429"), append(on, "envoy-ratelimited")
	}
	switch {
	case s&OnServerError != 0 && s&OnUnavailable != 0:
		on = append(on, "5xx") // Envoy's own name for all of them
	case s&OnServerError != 0:
		for status := 500; status <= 599; status++ {
			if status != 503 {
				list = append(list, strconv.Itoa(status))
			}
		}
	case s&OnUnavailable != 0:
		list = append(list, "503")
	}
	if len(list) > 0 {
		on = append(on, "retriable-status-codes")
	}
	return strings.Join(on, ","), strings.Join(list, ",")
}

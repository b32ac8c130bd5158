package join

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/local"
)

// protocol is the version of what this file holds. A change that an older side would misunderstand raises it; a new field which an
// older side may leave unread does not. Models and replicas travel as the JSON of their Go types (TestWireForm pins it).
const protocol = 1

// Sizes of one message, in bytes. What comes from a node is small: a replica takes some 400 bytes. Models come with the schemas of their
// engines.
const (
	largestReport = 4 << 20
	largestOrder  = 64 << 20
)

// joinRequest asks for a certificate for the first time.
type joinRequest struct {
	// Secret is the second half of the token.
	Secret string `json:"secret"`
	renewRequest
}

// renewRequest asks for another certificate for the same name and key.
type renewRequest struct {
	// Request is a certificate signing request (PKCS #10, DER). Its common name is the node's name; nothing else in it is taken over.
	Request []byte `json:"request"`
}

// certificates answers both.
type certificates struct {
	// Node and Authority are certificates as DER.
	Node      []byte `json:"node"`
	Authority []byte `json:"authority"`
}

// report is what a node sends: any of its fields, or none of them as a sign of life.
type report struct {
	// Hello is in the first report of a stream, and in no other.
	Hello *hello `json:"hello,omitempty"`
	// Inventory is what the node has, when it has been read for the first time and when it has changed.
	Inventory *engines.Node `json:"inventory,omitempty"`
	// Replicas are all that there are, whenever one has changed, and at the beginning of the stream.
	Replicas *replicas `json:"replicas,omitempty"`
	// Leaving says that the node ends its replicas and then itself.
	Leaving bool `json:"leaving,omitempty"`
}

// hello begins a stream.
type hello struct {
	Protocol int `json:"protocol"`
	// Clock is the node's own time, for what it says of times.
	Clock time.Time `json:"clock"`
}

// replicas is a numbered picture of a node.
type replicas struct {
	// Sequence grows with each picture in a node's life.
	Sequence uint64            `json:"sequence"`
	Replicas []engines.Replica `json:"replicas"`
}

// order is what the gateway sends: any of its fields, or none of them as a sign of life.
type order struct {
	// LostAfter is in the first order of a stream: how long either side may be silent.
	LostAfter time.Duration `json:"lost_after,omitempty"`
	// Wish replaces the one before.
	Wish *wish `json:"wish,omitempty"`
	// InFlight comes when it has changed.
	InFlight *inFlight `json:"in_flight,omitempty"`
}

// wish is which replicas a node shall run.
type wish struct {
	// Models with the Indices for this node.
	Models []local.Model `json:"models"`
	// Stop says that the gateway stops: what leaves has this long for its requests, whatever its model says. 0: the gateway goes on.
	Stop time.Duration `json:"stop,omitempty"`
}

// inFlight is how many requests the node's replicas have.
type inFlight struct {
	// Seen is the Sequence of the newest picture that everybody who sends requests has followed. 0: none yet.
	Seen uint64 `json:"seen"`
	// Requests by replica; one that is not named has none.
	Requests map[string]int `json:"requests,omitempty"`
}

// UnmarshalJSON keeps whole numbers whole, as the file's decoder does: an engine's flag must not depend on the host.
func (w *wish) UnmarshalJSON(data []byte) error {
	type plain wish
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if err := d.Decode((*plain)(w)); err != nil {
		return err
	}
	for _, m := range w.Models {
		exact(m.Launch.Variables)
		exact(m.Version.Schema)
		for _, variables := range m.Version.TaskVariables {
			exact(variables)
		}
	}
	return nil
}

// exact replaces, in maps and lists however deep, each json.Number by what the file's decoder makes of such a number.
func exact(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for name, item := range v {
			v[name] = exact(item)
		}
	case []any:
		for i, item := range v {
			v[i] = exact(item)
		}
	case json.Number:
		return numberOf(v)
	}
	return value
}

func numberOf(n json.Number) any {
	if whole, err := strconv.Atoi(n.String()); err == nil {
		return whole
	}
	if whole, err := strconv.ParseUint(n.String(), 10, 64); err == nil {
		return whole
	}
	f, err := n.Float64()
	if err != nil {
		return n.String() // beyond every number: the engine may say what it thinks of it
	}
	return f
}

// named lists the ids of the replicas that the models ask for.
func named(models []local.Model) map[string]bool {
	ids := map[string]bool{}
	for _, m := range models {
		for _, index := range m.Numbers() {
			ids[local.ReplicaID(m.Name, index)] = true
		}
	}
	return ids
}

// without are the models with no replicas of any.
func without(models []local.Model) []local.Model {
	none := slices.Clone(models)
	for i := range none {
		none[i].Indices = []int{}
	}
	return none
}

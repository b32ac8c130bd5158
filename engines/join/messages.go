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

// protocol is the version of the messages in this file. Raise it for a change that an older release
// would misunderstand. A new field that an older release may ignore needs no new version. Models
// and replicas are encoded as the JSON of their Go types, which TestWireForm pins.
const protocol = 1

// revision counts the messages that older releases do not know. A gateway sends them only to nodes
// that do. 1: restarts and logs.
const revision = 1

// Limits of one message in bytes. A report is small: a replica takes about 400 bytes. An order is
// larger, because models include the schemas of their engines.
const (
	maxReportBytes = 4 << 20
	maxOrderBytes  = 64 << 20
)

// joinRequest is the request of the RPC Join. It asks for a node's first certificate.
type joinRequest struct {
	// Secret is the second half of the token.
	Secret string `json:"secret"`
	renewRequest
}

// renewRequest is the request of the RPC Renew. It asks for a new certificate for the same name and
// key.
type renewRequest struct {
	// Request is a certificate signing request (PKCS #10, DER). Its common name is the node's name.
	// The gateway ignores its other fields.
	Request []byte `json:"request"`
}

// certificates is the response of Join and Renew.
type certificates struct {
	// Node and Authority are X.509 certificates (DER).
	Node      []byte `json:"node"`
	Authority []byte `json:"authority"`
}

// report is a message of a node. All fields are optional. A report without fields is a heartbeat.
type report struct {
	// Hello is set in the first report of a stream only.
	Hello *hello `json:"hello,omitempty"`
	// Inventory is set when the inventory was read for the first time or has changed.
	Inventory *engines.Node `json:"inventory,omitempty"`
	// Replicas is set in the first report of a stream and whenever a replica has changed. It holds
	// all replicas.
	Replicas *replicaSnapshot `json:"replicas,omitempty"`
	// Stopping says that the node stops its replicas and will then disconnect.
	Stopping bool `json:"leaving,omitempty"`
}

// hello opens a stream.
type hello struct {
	Protocol int `json:"protocol"`
	// Revision is the revision that the node knows. It is 0 for releases without it.
	Revision int `json:"revision,omitempty"`
	// Clock is the current time of the node. The gateway uses it to correct the node's timestamps.
	Clock time.Time `json:"clock"`
}

// replicaSnapshot holds all replicas of a node at one time.
type replicaSnapshot struct {
	// Sequence is the number of the snapshot. It grows as long as the agent runs.
	Sequence uint64 `json:"sequence"`
	// Clock is the time of the snapshot by the clock of the node, as all times in it are. It is
	// zero for older releases.
	Clock    time.Time         `json:"clock,omitzero"`
	Replicas []engines.Replica `json:"replicas"`
}

// order is a message of the gateway. All fields are optional. An order without fields is a
// heartbeat.
type order struct {
	// LostAfter is set in the first order of a stream only. It is how long either side may be
	// silent.
	LostAfter time.Duration `json:"lost_after,omitempty"`
	// Assignment replaces the previous one.
	Assignment *assignment `json:"wish,omitempty"`
	// InFlight is set when it has changed.
	InFlight *inFlight `json:"in_flight,omitempty"`
	// Logs lists logs that the node shall send, each by the RPC Log. Since revision 1.
	Logs []logRequest `json:"logs,omitempty"`
	// Silent has the ids of replicas that have left several requests in a row without an answer
	// since the last order.
	Silent []string `json:"silent,omitempty"`
}

// logRequest asks for the log of a replica.
type logRequest struct {
	// ID is what the node sends in the first part of the log.
	ID string `json:"id"`
	// Replica is the id of the replica. The other fields are those of loglines.Query.
	Replica string `json:"replica"`
	Tail    int    `json:"tail,omitempty"`
	Search  string `json:"search,omitempty"`
	Follow  bool   `json:"follow,omitempty"`
}

// logPart is a message of the RPC Log. The node sends parts; the end of the stream is the end of
// the log.
type logPart struct {
	// ID is that of the request. It is set in the first part only.
	ID string `json:"id,omitempty"`
	// Text is the next part of the log.
	Text string `json:"text,omitempty"`
	// Error says why the log cannot be read. It is the last part.
	Error string `json:"error,omitempty"`
}

// assignment is the set of replicas that a node shall run.
type assignment struct {
	// Models lists the models. The Indices of each are the replicas for this node.
	Models []local.Model `json:"models"`
	// Stop is not 0 if the gateway is stopping. It then replaces the DrainTimeout of every model.
	Stop time.Duration `json:"stop,omitempty"`
	// Restarts has a random text for each replica that an operator has restarted in this run of
	// the gateway. The node restarts the replica when the text is another than before. Since
	// revision 1.
	Restarts map[string]string `json:"restarts,omitempty"`
}

// inFlight tells the node how many requests its replicas have.
type inFlight struct {
	// Seen is the Sequence of the newest snapshot that every user of the fleet has applied. 0 means
	// none.
	Seen uint64 `json:"seen"`
	// Requests counts requests by replica id. A replica that is missing has none.
	Requests map[string]int `json:"requests,omitempty"`
}

// UnmarshalJSON implements json.Unmarshaler. It keeps integers exact, as the decoder of the
// configuration file does. An engine must get the same flags on every node.
func (a *assignment) UnmarshalJSON(data []byte) error {
	type plain assignment
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if err := d.Decode((*plain)(a)); err != nil {
		return err
	}
	for _, m := range a.Models {
		restoreNumbers(m.Launch.Variables)
		restoreNumbers(m.Version.Schema)
		for _, variables := range m.Version.TaskVariables {
			restoreNumbers(variables)
		}
	}
	return nil
}

// restoreNumbers replaces each json.Number in nested maps and lists by the Go value that the
// decoder of the configuration file would produce.
func restoreNumbers(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for name, item := range v {
			v[name] = restoreNumbers(item)
		}
	case []any:
		for i, item := range v {
			v[i] = restoreNumbers(item)
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
		// The number exceeds float64. The engine gets the text and may reject it.
		return n.String()
	}
	return f
}

// assignedIDs returns the set of ids of the replicas that the models' Indices select.
func assignedIDs(models []local.Model) map[string]bool {
	ids := map[string]bool{}
	for _, m := range models {
		for _, index := range m.Numbers() {
			ids[engines.ReplicaID(m.Name, index)] = true
		}
	}
	return ids
}

// withoutReplicas returns copies of the models that select no replicas.
func withoutReplicas(models []local.Model) []local.Model {
	none := slices.Clone(models)
	for i := range none {
		none[i].Indices = []int{}
	}
	return none
}

package admin

import (
	"cmp"
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/internal/history"
	"github.com/sluice-gateway/sluice/internal/request"
)

// present is what the event "state" is made of.
type present struct {
	models     []modelView
	replicas   []replicaView
	conditions []condition.Condition
}

// totals is the sum of the models.
type totals struct {
	Models   int `json:"models"`
	Replicas int `json:"replicas"`
	Ready    int `json:"ready"`
	Desired  int `json:"desired"`
	InFlight int `json:"in_flight"`
	Queued   int `json:"queued"`
}

// present returns the same objects as the endpoints of models, replicas and conditions. They do not
// have the age of what engines have told, which changes all the time.
func (h *handler) present() present {
	v := present{models: h.modelViews(), replicas: h.replicaViews(), conditions: h.Conditions()}
	for i := range v.replicas {
		if e := v.replicas[i].Engine; e != nil {
			young := *e
			young.AgeSeconds, v.replicas[i].Engine = nil, &young
		}
	}
	return v
}

// state is what the clients of /api/v1/events know, encoded.
type state struct {
	models, replicas, conditions objects
	totals                       totals
	encodedTotals                []byte
}

// key is what tells an object from others of its kind.
type key struct {
	Model   string         `json:"model,omitempty"`
	ID      string         `json:"id,omitempty"`
	Type    condition.Type `json:"type,omitempty"`
	Subject string         `json:"subject,omitempty"`
}

// compare orders keys.
func (k key) compare(other key) int {
	return cmp.Or(cmp.Compare(k.Model, other.Model), cmp.Compare(k.ID, other.ID), cmp.Compare(k.Type, other.Type), cmp.Compare(k.Subject, other.Subject))
}

// objects are encoded objects by their key.
type objects struct {
	all map[key]*object
	// round is the number of the last update. An object of an earlier round is gone.
	round uint64
	// changed are the objects that the last update has changed, in its order. order has all.
	changed [][]byte
	order   []*object
}

type object struct {
	// view is what is encoded. A comparison of views costs less than an encoding.
	view    any
	encoded []byte
	round   uint64
}

func newState() *state {
	return &state{models: newObjects(), replicas: newObjects(), conditions: newObjects()}
}

func newObjects() objects { return objects{all: map[key]*object{}} }

// begin begins an update.
func (o *objects) begin() {
	o.round++
	o.changed, o.order = o.changed[:0], o.order[:0]
}

// put adds an object to the update. view is a pointer to something that does not change.
func (o *objects) put(k key, view any) {
	old := o.all[k]
	if old == nil {
		old = &object{}
		o.all[k] = old
	}
	if !reflect.DeepEqual(old.view, view) {
		old.view, old.encoded = view, encode(view)
		o.changed = append(o.changed, old.encoded)
	}
	old.round = o.round
	o.order = append(o.order, old)
}

// end ends an update and returns the keys of the objects that are gone, sorted.
func (o *objects) end() []key {
	gone := []key{}
	for k, one := range o.all {
		if one.round != o.round {
			delete(o.all, k)
			gone = append(gone, k)
		}
	}
	slices.SortFunc(gone, key.compare)
	return gone
}

// removed are the objects that are gone: the names of models, the keys of the others.
type removed struct {
	Models     []string `json:"models"`
	Replicas   []key    `json:"replicas"`
	Conditions []key    `json:"conditions"`
}

// update puts the present in the place of the state, and returns the data of an event with what has
// changed; false if nothing has.
func (s *state) update(v present) (data []byte, ok bool) {
	now := totals{Models: len(v.models), Replicas: len(v.replicas)}
	for _, o := range []*objects{&s.models, &s.replicas, &s.conditions} {
		o.begin()
	}
	for i := range v.models {
		m := &v.models[i]
		now.Ready, now.Desired = now.Ready+m.Ready, now.Desired+m.Desired
		now.InFlight, now.Queued = now.InFlight+m.InFlight, now.Queued+m.Queued
		s.models.put(key{Model: m.Name}, m)
	}
	for i := range v.replicas {
		s.replicas.put(key{Model: v.replicas[i].Model, ID: v.replicas[i].ID}, &v.replicas[i])
	}
	for i := range v.conditions {
		s.conditions.put(key{Type: v.conditions[i].Type, Subject: v.conditions[i].Subject}, &v.conditions[i])
	}
	gone := removed{[]string{}, s.replicas.end(), s.conditions.end()}
	for _, k := range s.models.end() {
		gone.Models = append(gone.Models, k.Model)
	}
	changed := len(s.models.changed) + len(s.replicas.changed) + len(s.conditions.changed)
	changed += len(gone.Models) + len(gone.Replicas) + len(gone.Conditions)
	if changed == 0 && now == s.totals && s.encodedTotals != nil {
		return nil, false
	}
	s.totals, s.encodedTotals = now, encode(now)
	data = s.object(false, s.models.changed, s.replicas.changed, s.conditions.changed)
	data = append(data, `,"removed":`...)
	return append(append(data, encode(gone)...), '}'), true
}

// whole returns the data of an event with the whole state.
func (s *state) whole() []byte {
	return append(s.object(true, s.models.list(), s.replicas.list(), s.conditions.list()), '}')
}

func (o *objects) list() [][]byte {
	all := make([][]byte, len(o.order))
	for i, one := range o.order {
		all[i] = one.encoded
	}
	return all
}

// object returns an object of JSON without its final brace.
func (s *state) object(whole bool, models, replicas, conditions [][]byte) []byte {
	b := strconv.AppendBool([]byte(`{"whole":`), whole)
	b = appendList(append(b, `,"models":`...), models)
	b = appendList(append(b, `,"replicas":`...), replicas)
	b = appendList(append(b, `,"conditions":`...), conditions)
	return append(append(b, `,"totals":`...), s.encodedTotals...)
}

func appendList(b []byte, all [][]byte) []byte {
	b = append(b, '[')
	for i, one := range all {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, one...)
	}
	return append(b, ']')
}

// encodeFinished returns the data of the event "requests".
func encodeFinished(all []request.Summary, dropped int) []byte {
	views := make([]requestView, 0, len(all))
	for i := range all {
		views = append(views, viewRequest(all[i]))
	}
	return encode(struct {
		Requests []requestView `json:"requests"`
		Dropped  int           `json:"dropped"`
	}{views, dropped})
}

// encodeSample returns the data of the event "sample": the names of the series, and the values of
// each model in their order. The name "" is the sum of all.
func encodeSample(at time.Time, s history.Sample) []byte {
	b := append([]byte(`{"at":`), encode(at.UTC())...)
	b = append(append(b, `,"names":`...), encode(history.Names())...)
	b = appendValues(append(b, `,"values":{"":`...), s.Total)
	for name, values := range s.Models {
		b = append(append(b, ','), encode(name)...)
		b = appendValues(append(b, ':'), values)
	}
	return append(b, "}}"...)
}

func appendValues(b []byte, values history.Values) []byte {
	b = append(b, '[')
	for i, v := range values {
		if i > 0 {
			b = append(b, ',')
		}
		b = history.Round(v).AppendTo(b)
	}
	return append(b, ']')
}

// encode returns the JSON of a type of this package.
func encode(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil { // a type of this package that cannot be encoded is a bug
		panic(err)
	}
	return data
}

package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/kubernetes"
	"github.com/sluice-gateway/sluice/engines/kubernetes/custom"
	"github.com/sluice-gateway/sluice/internal/config"
)

// objects are the custom resources beside the file: what they are, which of them are taken, and what their status is.
type objects struct {
	gateway *gateway
	watcher *custom.Watcher

	mu sync.Mutex
	// seen are as they were last told; guarded by mu
	seen []custom.Object
	// united: they are in force, or those that there were when they were first read; guarded by mu
	united bool
	// judged are those of them that were last put beside the file, each with the verdict; guarded by mu
	judged []judged
	// owners are the custom resources of models that come from one; guarded by mu
	owners map[string]*kubernetes.Owner
	// failed says why they could not be put in force, which is tried again; guarded by mu
	failed string
	// good are the specs that were last taken, by uid; guarded by mu
	good map[string][]byte
	// told is closed when there is more to say, and replaced; guarded by mu
	told chan struct{}
}

// judged is an object and what became of it.
type judged struct {
	custom.Object
	// model that it describes; empty for an engine.
	model string
	// refused says why it is not taken.
	refused string
	// held: an earlier spec of it is in force, because this one is refused.
	held bool
}

func newObjects(g *gateway, access kubernetes.Access, namespace string) *objects {
	o := &objects{gateway: g, told: make(chan struct{})}
	o.watcher = custom.New(custom.Config{Access: access, Namespace: namespace, IsLeader: g.kubernetes.IsLeader, OnChange: o.changed, Log: g.log})
	return o
}

// changed hears of all objects whenever one is another.
func (o *objects) changed(all []custom.Object) {
	o.mu.Lock()
	o.seen = all
	o.mu.Unlock()
	o.unite()
}

// unite puts the objects in force, or notes why that cannot be.
func (o *objects) unite() {
	failed := ""
	if err := o.gateway.unite(nil); err != nil {
		failed = "custom resources were not taken over: " + err.Error()
	}
	o.mu.Lock()
	again, first := o.failed == failed, failed == "" && !o.united
	o.failed, o.united = failed, o.united || first
	o.mu.Unlock()
	if failed != "" && !again {
		o.gateway.log.Error(failed)
	}
	if first {
		o.gateway.launch() // now that all is known
	}
}

// with adds the objects to the file. Those that are being deleted are no longer in it. One that is refused stays as it was last taken, as far as
// this process knows: a slip in an edit must not end what runs.
func (o *objects) with(file *config.Config) (*config.Config, error) {
	if o == nil {
		return file, nil
	}
	o.mu.Lock()
	seen, good := o.seen, o.good
	o.mu.Unlock()
	all, items, places := make([]judged, len(seen)), []config.Object{}, []int{}
	for i, object := range seen {
		all[i].Object = object
		if !object.Deleting {
			items = append(items, config.Object{Engine: object.Kind == custom.Engine, Name: object.Name, Spec: object.Spec})
			places = append(places, i)
		}
	}
	joint, refused, err := file.WithObjects(items) // without the lock: of hundreds of objects this takes a while
	again := false
	for _, r := range refused {
		j := &all[places[r.Object]]
		j.refused = sentences(r.Faults)
		if before, ok := good[j.UID]; ok {
			items[r.Object].Spec, j.held, again = before, true, true
		}
	}
	if err == nil && again {
		joint, refused, err = file.WithObjects(items)
		for _, r := range refused {
			j := &all[places[r.Object]]
			j.held, j.refused = false, cmp.Or(j.refused, sentences(r.Faults))
		}
	}
	if err != nil {
		return nil, err
	}
	o.judge(all, good)
	return joint, nil
}

// judge keeps the verdicts. good are the specs that were taken before.
func (o *objects) judge(all []judged, good map[string][]byte) {
	owners, taken := map[string]*kubernetes.Owner{}, map[string][]byte{}
	for i := range all {
		j := &all[i]
		spec := j.Spec
		if j.held {
			spec = good[j.UID]
		}
		if j.Kind == custom.Model {
			j.model = modelName(j.Name, spec)
		}
		if j.Deleting || j.refused != "" && !j.held {
			continue
		}
		taken[j.UID] = spec
		if j.model != "" {
			owners[j.model] = &kubernetes.Owner{APIVersion: j.APIVersion, Kind: string(j.Kind), Name: j.Name, UID: j.UID}
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.judged, o.owners, o.good = all, owners, taken
	close(o.told)
	o.told = make(chan struct{})
}

// sentences puts the faults of an object into one text, without the file that it did not come from.
func sentences(faults config.Faults) string {
	var all []string
	for _, f := range faults {
		all = append(all, f.Path+": "+f.Message)
	}
	slices.Sort(all)
	return strings.Join(all, "; ")
}

// known tells whether the configuration in force has all objects, where there may be any.
func (o *objects) known() bool {
	if o == nil {
		return true
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.united
}

// owner is the custom resource that a model comes from; nil for one of the file.
func (o *objects) owner(model string) *kubernetes.Owner {
	if o == nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.owners[model]
}

// run keeps the status of the objects true, until ctx ends.
func (o *objects) run(ctx context.Context) error {
	const pause = 200 * time.Millisecond // what changes often is told less often
	for {
		_, moved := o.gateway.fleet.Watch()
		o.mu.Lock()
		told, failed := o.told, o.failed != ""
		o.mu.Unlock()
		o.watcher.Report(o.statuses())
		o.watcher.ReleaseFinalizers(o.gone())
		select {
		case <-ctx.Done():
			return nil
		case <-moved:
		case <-told:
		case <-time.After(5 * time.Second): // what is gone of a model is no event of the fleet
			if failed {
				o.unite()
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// modelName is what an object's model is called: by its spec, or as the object itself.
func modelName(object string, spec []byte) string {
	var named struct{ Name string }
	if err := json.Unmarshal(spec, &named); err == nil && named.Name != "" {
		return named.Name
	}
	return object
}

// gone lists the deleted models of which nothing is left.
func (o *objects) gone() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var names []string
	for _, j := range o.judged {
		if j.Deleting && j.Kind == custom.Model && o.gateway.kubernetes.IsGone(j.model, j.UID) {
			names = append(names, j.Name)
		}
	}
	return names
}

// problems says which objects are not taken.
func (o *objects) problems() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var all []string
	if o.failed != "" {
		all = append(all, o.failed)
	}
	for _, j := range o.judged {
		if j.refused != "" {
			all = append(all, string(j.Kind)+" "+j.Name+" is not taken: "+j.refused)
		}
	}
	return all
}

func (o *objects) statuses() []custom.Status {
	fleet, status := o.gateway.fleet.Snapshot(), o.gateway.kubernetes.Status()
	o.mu.Lock()
	defer o.mu.Unlock()
	var all []custom.Status
	for _, j := range o.judged {
		s := custom.Status{Kind: j.Kind, Name: j.Name, Generation: j.Generation, Accepted: true}
		switch {
		case j.Deleting:
			s.Phase, s.Message = "Draining", "its requests end, then its replicas"
		case j.refused != "" && !j.held:
			s.Phase, s.Accepted, s.Message = "Failed", false, j.refused
		case j.Kind == custom.Engine:
			s.Phase = "Ready"
		case status.Faults[j.model] != "":
			s.Phase, s.Accepted, s.Message = "Failed", false, status.Faults[j.model]
		default:
			s = modelStatus(s, fleet.Models[j.model])
			if s.Ready < s.Desired {
				s.Message = cmp.Or(s.Message, status.Blocked[j.model])
			}
		}
		if j.held {
			s.Accepted, s.Message = false, "the spec before this one stays in force: "+j.refused
		}
		all = append(all, s)
	}
	return all
}

// modelStatus fills in how a model is.
func modelStatus(s custom.Status, m *engines.ModelSnapshot) custom.Status {
	s.Phase = "Pending"
	if m == nil {
		return s
	}
	states := map[engines.State]int{}
	for i := range m.Replicas {
		r := &m.Replicas[i]
		states[r.State]++
		if r.State != engines.Draining {
			s.Replicas++
		}
		if r.State != engines.Ready && r.Reason != "" && (s.Message == "" || r.State == engines.Failed) {
			s.Message = r.ID + ": " + r.Reason
		}
	}
	s.Ready, s.Desired = states[engines.Ready], m.Desired
	switch {
	case s.Ready > 0:
		s.Phase = "Ready"
	case states[engines.Starting] > 0:
		s.Phase = "Starting"
	case states[engines.Failed] > 0:
		s.Phase = "Failed"
	case s.Replicas == 0 && m.Desired == 0:
		s.Phase = "Idle"
	}
	return s
}

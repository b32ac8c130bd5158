package main

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

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
	// all are as they were last seen; guarded by mu
	all []custom.Object
	// refused says by kind and name why an object is not taken; guarded by mu
	refused map[objectKey]string
	// told is closed when there is more to say, and replaced; guarded by mu
	told chan struct{}
}

type objectKey struct {
	kind custom.Kind
	name string
}

func newObjects(g *gateway, access kubernetes.Access, namespace string) *objects {
	o := &objects{gateway: g, refused: map[objectKey]string{}, told: make(chan struct{})}
	o.watcher = custom.New(custom.Config{Access: access, Namespace: namespace, Leads: g.kubernetes.Leads, Changed: o.changed, Log: g.log})
	return o
}

// changed hears of all objects whenever one is another.
func (o *objects) changed(all []custom.Object) {
	o.mu.Lock()
	o.all = all
	o.mu.Unlock()
	if err := o.gateway.unite(nil); err != nil {
		o.gateway.log.Error("custom resources were not taken over", zap.Error(err))
	}
}

// with adds the objects to the file. Those that are being deleted are no longer in it.
func (o *objects) with(file *config.Config) (*config.Config, error) {
	if o == nil {
		return file, nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	var items []config.Object
	var keys []objectKey
	for _, object := range o.all {
		if !object.Deleting {
			items = append(items, config.Object{Engine: object.Kind == custom.Engine, Name: object.Name, Spec: object.Spec})
			keys = append(keys, objectKey{object.Kind, object.Name})
		}
	}
	joint, refused, err := file.With(items)
	if err != nil {
		return nil, err
	}
	clear(o.refused)
	for _, r := range refused {
		o.refused[keys[r.Object]] = sentences(r.Faults)
	}
	close(o.told)
	o.told = make(chan struct{})
	return joint, nil
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

// owner is the custom resource that a model comes from; nil for one of the file.
func (o *objects) owner(model string) *kubernetes.Owner {
	if o == nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, object := range o.all {
		if object.Kind == custom.Model && modelName(object) == model {
			return &kubernetes.Owner{APIVersion: object.APIVersion, Kind: string(object.Kind), Name: object.Name, UID: object.UID}
		}
	}
	return nil
}

// run keeps the status of the objects true, until ctx ends.
func (o *objects) run(ctx context.Context) error {
	const pause = 200 * time.Millisecond // what changes often is told less often
	for {
		_, moved := o.gateway.fleet.Watch()
		o.mu.Lock()
		told := o.told
		o.mu.Unlock()
		o.watcher.Report(o.statuses())
		o.watcher.Release(o.gone())
		select {
		case <-ctx.Done():
			return nil
		case <-moved:
		case <-told:
		case <-time.After(5 * time.Second): // what is gone of a model is no event of the fleet
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// modelName is what the object's model is called: by its spec, or as the object itself.
func modelName(object custom.Object) string {
	var spec struct{ Name string }
	if err := json.Unmarshal(object.Spec, &spec); err == nil && spec.Name != "" {
		return spec.Name
	}
	return object.Name
}

// gone lists the deleted models of which nothing is left.
func (o *objects) gone() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var names []string
	for _, object := range o.all {
		if object.Deleting && object.Kind == custom.Model && o.gateway.kubernetes.Gone(modelName(object)) {
			names = append(names, object.Name)
		}
	}
	return names
}

// problems says which objects are not taken.
func (o *objects) problems() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var all []string
	for key, why := range o.refused {
		all = append(all, string(key.kind)+" "+key.name+" is not taken: "+why)
	}
	return all
}

func (o *objects) statuses() []custom.Status {
	o.mu.Lock()
	defer o.mu.Unlock()
	fleet, faults := o.gateway.fleet.Snapshot(), o.gateway.kubernetes.Status().Faults
	var all []custom.Status
	for _, object := range o.all {
		s := custom.Status{Kind: object.Kind, Name: object.Name, Generation: object.Generation, Accepted: true}
		why, refused := o.refused[objectKey{object.Kind, object.Name}]
		switch {
		case object.Deleting:
			s.Phase, s.Message = "Draining", "its requests end, then its replicas"
		case refused:
			s.Phase, s.Accepted, s.Message = "Failed", false, why
		case object.Kind == custom.Engine:
			s.Phase = "Ready"
		case faults[modelName(object)] != "":
			s.Phase, s.Accepted, s.Message = "Failed", false, faults[modelName(object)]
		default:
			s = modelStatus(s, fleet.Models[modelName(object)])
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

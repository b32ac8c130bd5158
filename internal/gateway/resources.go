package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/kubernetes"
	"github.com/sluice-gateway/sluice/engines/kubernetes/custom"
	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/internal/config"
)

// customResources are the Engine and InferenceModel objects of Kubernetes. They are items of the
// configuration beside the file's own: merge adds them, run reports their status.
//
// A nil *customResources stands for a gateway without custom resources.
type customResources struct {
	log        *zap.Logger
	fleet      *engines.Fleet
	kubernetes *kubernetes.Launcher
	watcher    *custom.Watcher
	// reapply puts the file in force again, with the objects as they are now.
	reapply func() error
	// relaunch tells the launchers their models again.
	relaunch func()

	mu sync.Mutex
	// seen are the objects as Kubernetes told them last. Guarded by mu.
	seen []custom.Object
	// complete says that the objects were put in force at least once. Guarded by mu.
	complete bool
	// candidate belongs to the configuration that merge made last, inForce to the configuration in
	// force, previous to the one before that. All are guarded by mu.
	candidate, inForce, previous *verdicts
	// failure says why the objects could not be put in force; run tries again. Guarded by mu.
	failure string
	// changed is closed when there is a new status to report, and then replaced. Guarded by mu.
	changed chan struct{}
}

// verdicts says what one configuration made of the custom resources. It is immutable.
type verdicts struct {
	config  *config.Config
	objects []verdict
	// owners are the custom resources of the models that come from one, by model.
	owners map[string]*kubernetes.Owner
	// accepted are the specs that were accepted, by uid.
	accepted map[string][]byte
}

// verdict is an object and what became of it.
type verdict struct {
	custom.Object
	// model that the object describes; empty for an engine.
	model string
	// refused says why the object's spec was refused; empty when it was accepted.
	refused string
	// frozen says that an earlier spec of the object stays in force, because this one was refused.
	frozen bool
	// held says that the earlier spec was refused, too, for example because its engine was deleted.
	// The model cannot be served then, but its pods stay.
	held bool
}

// consequence says what a refused object means for what runs. It begins with a space, or is empty.
func (v *verdict) consequence() string {
	switch {
	case v.frozen:
		return " The spec that was accepted last stays in force."
	case v.held:
		return " The spec that was accepted last is refused, too. Its pods stay, but serve no requests."
	}
	return ""
}

// lastAccepted returns the spec of the object that was accepted last, or nothing. accepted are the
// specs that this process has accepted, by uid.
func (v *verdict) lastAccepted(accepted map[string][]byte) []byte {
	if spec, ok := accepted[v.UID]; ok {
		return spec
	}
	return v.Accepted
}

func newCustomResources(l *launchers, access kubernetes.Access, namespace string, reapply func() error) *customResources {
	r := &customResources{
		log: l.log, fleet: l.fleet, kubernetes: l.kubernetes, reapply: reapply, relaunch: l.apply,
		inForce: new(verdicts), changed: make(chan struct{}),
	}
	r.watcher = custom.New(custom.Config{Access: access, Namespace: namespace, IsLeader: l.kubernetes.IsLeader, OnChange: r.observe, Log: l.log})
	return r
}

// observe receives all objects whenever one of them has changed.
func (r *customResources) observe(all []custom.Object) {
	r.mu.Lock()
	r.seen = all
	r.mu.Unlock()
	r.apply()
}

// apply puts the objects in force. If that fails, apply stores the reason in failure.
func (r *customResources) apply() {
	failure := ""
	if err := r.reapply(); err != nil {
		failure = "custom resources could not be put in force: " + err.Error()
	}
	r.mu.Lock()
	repeated, first := r.failure == failure, failure == "" && !r.complete
	r.failure, r.complete = failure, r.complete || first
	r.mu.Unlock()
	if failure != "" && !repeated {
		r.log.Error(failure)
	}
	if first {
		r.relaunch() // the launchers may now stop what no object asks for
	}
}

// merge adds the objects to the file, except those that are being deleted. A refused object stays
// as it was accepted last, because a typo must not stop replicas. This process knows the accepted
// spec, or the status of the object tells it after a restart.
func (r *customResources) merge(file *config.Config) (*config.Config, error) {
	if r == nil {
		return file, nil
	}
	r.mu.Lock()
	seen, accepted := r.seen, r.inForce.accepted
	r.mu.Unlock()
	all, items, indices := make([]verdict, len(seen)), []config.Object{}, []int{}
	for i, object := range seen {
		all[i].Object = object
		if !object.Deleting {
			items = append(items, config.Object{Engine: object.Kind == custom.Engine, Name: object.Name, Spec: object.Spec})
			indices = append(indices, i)
		}
	}
	merged, refused, err := file.WithObjects(items) // without the lock: hundreds of objects take a while
	frozen := false
	for _, f := range refused {
		v := &all[indices[f.Object]]
		v.refused = faultText(f.Faults)
		if spec := v.lastAccepted(accepted); len(spec) > 0 {
			items[f.Object].Spec, v.frozen, frozen = spec, true, true
		}
	}
	if err == nil && frozen {
		merged, refused, err = file.WithObjects(items)
		for _, f := range refused {
			v := &all[indices[f.Object]]
			v.frozen, v.held, v.refused = false, v.frozen, cmp.Or(v.refused, faultText(f.Faults))
		}
	}
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.candidate = newVerdicts(merged, all, accepted)
	return merged, nil
}

// newVerdicts indexes the verdicts of a configuration. accepted are the specs that were accepted
// before, by uid.
func newVerdicts(c *config.Config, all []verdict, accepted map[string][]byte) *verdicts {
	result := &verdicts{config: c, objects: all, owners: map[string]*kubernetes.Owner{}, accepted: map[string][]byte{}}
	for i := range all {
		v := &all[i]
		spec, last := v.Spec, v.lastAccepted(accepted)
		if v.frozen || v.held {
			spec = last
		}
		if v.Kind == custom.Model {
			v.model = objectModel(v.Name, spec)
		}
		if len(last) > 0 {
			result.accepted[v.UID] = last
		}
		if v.Deleting || v.refused != "" && !v.frozen {
			continue
		}
		result.accepted[v.UID] = spec
		if v.model != "" {
			result.owners[v.model] = &kubernetes.Owner{APIVersion: v.APIVersion, Kind: string(v.Kind), Name: v.Name, UID: v.UID}
		}
	}
	return result
}

// commit puts the verdicts in force that belong to c. They are those that merge made last, or those
// that were in force before when the gateway goes back to c.
func (r *customResources) commit(c *config.Config) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	next := &verdicts{config: c} // the first configuration has no objects yet
	for _, known := range []*verdicts{r.candidate, r.previous, r.inForce} {
		if known != nil && known.config == c {
			next = known
		}
	}
	r.previous, r.inForce = r.inForce, next
	close(r.changed)
	r.changed = make(chan struct{})
}

// faultText joins the faults of an object in one text. The text does not name a file, because the
// object did not come from one.
func faultText(faults config.Faults) string {
	var all []string
	for _, f := range faults {
		all = append(all, f.Path+": "+f.Message)
	}
	slices.Sort(all)
	return strings.Join(all, "; ")
}

// known reports whether the configuration in force contains all objects that exist.
func (r *customResources) known() bool {
	if r == nil {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.complete
}

// owner is the custom resource that a model comes from. It is nil for a model of the file.
func (r *customResources) owner(model string) *kubernetes.Owner {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.inForce.owners[model]
}

// run reports the status of the objects until ctx ends.
func (r *customResources) run(ctx context.Context) error {
	const (
		pause = 200 * time.Millisecond // bounds how often a status that changes all the time is reported
		retry = 5 * time.Second        // the last pod of a deleted model leaves without a change of the fleet
	)
	for {
		_, fleetChanged := r.fleet.Watch()
		r.mu.Lock()
		changed, failed := r.changed, r.failure != ""
		r.mu.Unlock()
		r.watcher.Report(r.statuses())
		r.watcher.ReleaseFinalizers(r.goneModels())
		select {
		case <-ctx.Done():
			return nil
		case <-fleetChanged:
		case <-changed:
		case <-time.After(retry):
			if failed {
				r.apply()
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// objectModel is the name of the model that an object describes: the name in its spec, else the
// object's own.
func objectModel(object string, spec []byte) string {
	var named struct{ Name string }
	if err := json.Unmarshal(spec, &named); err == nil && named.Name != "" {
		return named.Name
	}
	return object
}

// goneModels lists the deleted objects of models of which no pod is left.
func (r *customResources) goneModels() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var names []string
	for _, v := range r.inForce.objects {
		if v.Deleting && v.Kind == custom.Model && r.kubernetes.IsGone(v.model, v.UID) {
			names = append(names, v.Name)
		}
	}
	return names
}

// held lists the models whose pods stay although no spec of their objects can be in force. A model
// whose name belongs to another is not among them.
func (r *customResources) held() []kubernetes.Model {
	var all []kubernetes.Model
	r.eachObject(func(v *verdict, owner string) {
		if v.held && v.model != "" && owner == "" {
			all = append(all, kubernetes.Model{
				Model: engines.Model{Name: v.model}, Frozen: true,
				Owner: &kubernetes.Owner{APIVersion: v.APIVersion, Kind: string(v.Kind), Name: v.Name, UID: v.UID},
			})
		}
	})
	return all
}

// eachObject calls do for each object of the configuration in force. owner says who has the name of
// the object's model; empty: nobody has it. do must not call r. A nil r has no objects.
func (r *customResources) eachObject(do func(v *verdict, owner string)) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.inForce.config == nil {
		return
	}
	reserved := reservedNames(r.inForce.config)
	for i := range r.inForce.objects {
		v := &r.inForce.objects[i]
		do(v, reserved[v.model].Owner)
	}
}

// conditions says which objects are not in force, and why.
func (r *customResources) conditions() []condition.Condition {
	var all []condition.Condition
	if why := r.watcher.Errors(); why != "" {
		all = append(all, condition.Fault(condition.ResourceRejected, "", "ReadOrWriteFailed", "Custom resources: "+sentence(why)+"."))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failure != "" {
		all = append(all, condition.Fault(condition.ResourceRejected, "", "NotInForce", sentence(r.failure)+"."))
	}
	for _, v := range r.inForce.objects {
		if v.refused != "" {
			all = append(all, condition.Fault(condition.ResourceRejected, string(v.Kind)+"/"+v.Name, "Refused",
				fmt.Sprintf("%s %s is refused: %s.%s", v.Kind, v.Name, sentence(v.refused), v.consequence())))
		}
	}
	return all
}

// statuses are the status of each object.
func (r *customResources) statuses() []custom.Status {
	fleet, pods := r.fleet.Snapshot(), r.kubernetes.Status()
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []custom.Status
	for _, v := range r.inForce.objects {
		s := custom.Status{Kind: v.Kind, Name: v.Name, Generation: v.Generation, Accepted: true}
		switch {
		case v.Deleting:
			s.Phase, s.Message = "Draining", "its requests end, then its replicas"
		case v.refused != "" && !v.frozen:
			s.Phase, s.Accepted, s.Message = "Failed", false, v.refused+v.consequence()
		case v.Kind == custom.Engine:
			s.Phase = "Ready"
		case pods.Faults[v.model] != "":
			s.Phase, s.Accepted, s.Message = "Failed", false, pods.Faults[v.model]
		default:
			s = withModelStatus(s, fleet.Models[v.model])
			s.Message = cmp.Or(s.Message, pods.Blocked[v.model])
		}
		if v.frozen {
			s.Accepted, s.Message = false, "the spec before this one stays in force: "+v.refused
		}
		s.InForce = r.inForce.accepted[v.UID]
		if m := fleet.Models[v.model]; m != nil && m.Launcher == engines.Kubernetes {
			s.Selector = r.kubernetes.Selector(v.model)
		}
		all = append(all, s)
	}
	return all
}

// withModelStatus adds what the fleet knows of the model to a status. m is nil when the fleet does
// not have the model.
func withModelStatus(s custom.Status, m *engines.ModelSnapshot) custom.Status {
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

package kubernetes

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"time"

	"go.uber.org/zap"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// repairInterval is the shortest time between two repairs of a Deployment, so that Sluice does not
// fight with another program that writes the same fields.
const repairInterval = 10 * time.Second

// specVersion is the version of the spec of an object. The API counts the generation when the spec
// changes, whoever changes it.
type specVersion struct {
	uid        types.UID
	generation int64
}

func specVersionOf(o metav1.Object) specVersion { return specVersion{o.GetUID(), o.GetGeneration()} }

// appliedDeployment is the version of a Deployment that has the spec which Sluice wants.
type appliedDeployment struct {
	specVersion
	// repaired is when the last repair changed something. The zero time means never.
	repaired time.Time
}

// keepApplied remembers that a write of Sluice changed a Deployment from one version to another, if
// the former had the spec that Sluice wants.
func (m *memory) keepApplied(from, to *appsv1.Deployment) {
	if a := m.applied[from.Name]; a.specVersion == specVersionOf(from) {
		a.generation = to.Generation
		m.applied[from.Name] = a
	}
}

// repair applies the current Deployment again if somebody else may have changed its spec. Fields
// that Sluice does not set belong to whoever has set them. again is true if a repair is due later.
func (r modelReconciler) repair(ctx context.Context) (again bool, err error) {
	if r.model.manifest == nil {
		return false, nil
	}
	c, d := r.cluster, r.deployment(r.model.manifest.Name)
	if d == nil || d.DeletionTimestamp != nil {
		return false, nil
	}
	before := r.memory.applied[d.Name]
	switch {
	case before.specVersion == specVersionOf(d):
		return false, nil
	case before.uid == d.UID && r.now.Sub(before.repaired) < repairInterval:
		return true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	changed, err := r.applyOver(ctx, d)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return true, nil // The watch will deliver the newer version.
	}
	if err != nil {
		return true, err
	}
	c.storeOf(d).recordWrite(changed, d.ResourceVersion, time.Now())
	after := appliedDeployment{specVersion: specVersionOf(changed)}
	if changed.Generation != d.Generation {
		after.repaired = r.now
		c.Log.Warn("Deployment repaired, because somebody else had changed it", zap.String("model", r.model.Name), zap.String("deployment", d.Name))
	}
	r.memory.applied[d.Name] = after
	return false, nil
}

// reclaim applies d again to the Deployment of its name. The watch does not show that one if
// somebody has changed its labels. A Deployment whose pods are not of this installation is left
// alone, and exists is returned.
func (r modelReconciler) reclaim(ctx context.Context, d *appsv1.Deployment, exists error) (*appsv1.Deployment, error) {
	c := r.cluster
	found, err := c.getWorkload(ctx, d)
	if err != nil {
		return nil, err
	}
	own := labels.SelectorFromSet(d.Spec.Selector.MatchLabels).Matches(labels.Set(found.Spec.Template.Labels))
	if found.DeletionTimestamp != nil || !own {
		return nil, exists
	}
	made, err := r.applyOver(ctx, found)
	if err == nil && keptLabels(made, c.modelLabels(r.model.Name)) == nil {
		c.Log.Warn("Deployment claimed again, because somebody else had changed its labels",
			zap.String("model", r.model.Name), zap.String("deployment", d.Name))
	}
	return made, err
}

// applyOver applies the current Deployment over the version that exists.
func (r modelReconciler) applyOver(ctx context.Context, existing *appsv1.Deployment) (*appsv1.Deployment, error) {
	data, err := appliedFields(r.model, existing)
	if err != nil {
		return nil, err
	}
	return r.cluster.patchWorkload(ctx, existing, types.ApplyPatchType, data)
}

// appliedFields returns the fields of the current Deployment that Sluice owns, for the version that
// exists. The number of replicas is that of the existing one: the plan changes it.
func appliedFields(want wanted, existing *appsv1.Deployment) ([]byte, error) {
	d := want.manifest.DeepCopy()
	d.Spec.Replicas = existing.Spec.Replicas
	made := cmp.Or(existing.Spec.Template.Annotations[annotationMade], rand.Text())
	mergeInto(&d.Spec.Template.Annotations, map[string]string{annotationMade: made})
	spec, err := appliedSpec(d, want)
	if err != nil {
		return nil, err
	}
	return json.Marshal(map[string]any{
		"apiVersion": d.APIVersion, "kind": d.Kind, "spec": spec,
		"metadata": map[string]any{
			"name": existing.Name, "namespace": existing.Namespace, "uid": existing.UID, "resourceVersion": existing.ResourceVersion,
			"labels": d.Labels, "annotations": d.Annotations,
		},
	})
}

// appliedSpec returns the spec of what d is or stands for.
func appliedSpec(d *appsv1.Deployment, want wanted) (map[string]any, error) {
	if hasGroups(d) {
		return groupsSpec(d, want.workers, want.Hosts), nil
	}
	text, err := json.Marshal(d.Spec)
	if err != nil {
		return nil, err
	}
	var spec map[string]any
	if err := json.Unmarshal(text, &spec); err != nil {
		return nil, err
	}
	spec["paused"] = false
	return spec, nil
}

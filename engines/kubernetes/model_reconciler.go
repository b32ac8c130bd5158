package kubernetes

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// modelReconciler reconciles one model once.
type modelReconciler struct {
	cluster *cluster
	// model is zero if the model is no longer wanted.
	model  wanted
	memory *memory
	// loaded holds the Jobs that have loaded weights.
	loaded map[string]bool
	// deployments and budgets are the model's. pods holds the pods of all Deployments by name.
	deployments []*appsv1.Deployment
	budgets     []*policyv1.PodDisruptionBudget
	pods        map[string][]*corev1.Pod
	now         time.Time
}

// memory is what the leader remembers of a model. Only the model's reconciliation uses it.
type memory struct {
	// needsRoomSince is since when a pod cannot be scheduled, or zero.
	needsRoomSince time.Time
	// applied holds what this gateway has applied last, by Deployment.
	applied map[string]appliedDeployment
	// appliedBudget is what a write of this gateway has made of the budget.
	appliedBudget specVersion
}

// waitsForWeights reports whether pods of the model may be made only when its weights are there.
func (w wanted) waitsForWeights() bool {
	return w.Weights != nil && w.manifest != nil && w.Desired > 0
}

// reconcile plans and executes the actions for the model.
func (r modelReconciler) reconcile(ctx context.Context) (soon bool, err error) {
	if r.model.waitsForWeights() && !r.loaded[r.cluster.jobName(*r.model.Weights)] {
		return false, nil // What runs goes on until the new weights are there.
	}
	maps.DeleteFunc(r.memory.applied, func(name string, _ appliedDeployment) bool { return r.deployment(name) == nil })
	if r.model.workers != nil {
		if err := r.cluster.groupsUsable(); err != nil {
			return false, err
		}
	}
	want := target{}
	if r.model.manifest != nil {
		want = target{current: r.model.manifest.Name, desired: r.model.Desired}
	}
	if since := r.memory.needsRoomSince; !since.IsZero() {
		want.makeRoom = r.now.Sub(since) >= makeRoomAfter
	}
	var all []deployment
	for _, d := range r.deployments {
		read := r.cluster.describe(d, r.pods, r.now)
		all = append(all, read)
		soon = soon || slices.ContainsFunc(read.pods, func(p pod) bool { return p.active() && p.draining != "" })
	}
	slices.SortFunc(all, func(a, b deployment) int { return a.created.Compare(b.created) })
	actions, needsRoom := plan(want, all)
	if !needsRoom {
		r.memory.needsRoomSince = time.Time{}
	} else if r.memory.needsRoomSince.IsZero() {
		r.memory.needsRoomSince = r.now
	}
	for _, a := range actions {
		if !r.cluster.isLeader() || ctx.Err() != nil {
			return soon, nil
		}
		if err := r.execute(ctx, a); err != nil {
			return true, fmt.Errorf("%s %s%s: %w", a.kind, a.deployment, podSuffix(a), err)
		}
	}
	if !r.cluster.isLeader() {
		return soon, nil
	}
	if err := errors.Join(r.updateMetadata(ctx), r.applyBudget(ctx), r.removeBudgets(ctx)); err != nil {
		return true, err
	}
	again, err := r.repair(ctx)
	return soon || needsRoom || again, err
}

// podSuffix returns ", pod NAME" if the action concerns a pod, else "".
func podSuffix(a action) string {
	if a.pod == "" {
		return ""
	}
	return ", pod " + a.pod
}

// execute performs one action. Every write requires the object's version that the plan was based
// on. A conflict is not an error: the watch will deliver the newer version, and the plan is made
// again.
func (r modelReconciler) execute(ctx context.Context, a action) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var err error
	switch a.kind {
	case actionCreate:
		err = r.create(ctx, a.replicas)
	case actionScale:
		err = r.patchDeployment(ctx, a.deployment, map[string]any{"spec": map[string]any{"replicas": a.replicas}})
	case actionRoom:
		err = r.patchDeployment(ctx, a.deployment, annotationPatch(map[string]any{annotationRoom: strconv.Itoa(a.replicas), annotationRoomBy: a.pod}))
	case actionNoRoom:
		err = r.patchDeployment(ctx, a.deployment, annotationPatch(map[string]any{annotationRoom: nil, annotationRoomBy: nil}))
	case actionDelete:
		err = r.remove(ctx, a.deployment)
	case actionDrain:
		err = r.annotate(ctx, a, map[string]any{annotationDraining: time.Now().UTC().Format(time.RFC3339Nano)})
	case actionUndrain:
		err = r.undrain(ctx, a)
	case actionMark:
		err = r.annotate(ctx, a, map[string]any{annotationCost: "-1000"})
	}
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) && a.kind != actionCreate {
		signal(r.cluster.reconcileSignal)
		return nil
	}
	if err == nil {
		r.cluster.Log.Info("Kubernetes object written", zap.String("action", string(a.kind)), zap.String("deployment", a.deployment),
			zap.String("pod", a.pod), zap.Int("replicas", a.replicas))
	}
	return err
}

// create creates the current Deployment with count replicas. One that exists already and is not
// watched is claimed.
func (r modelReconciler) create(ctx context.Context, count int) error {
	d := r.model.manifest.DeepCopy()
	d.Namespace, d.Spec.Replicas = r.cluster.location.namespace, new(int32(count))
	mergeInto(&d.Spec.Template.Annotations, map[string]string{annotationMade: rand.Text()})
	made, err := r.cluster.createWorkload(ctx, d, r.model)
	if apierrors.IsAlreadyExists(err) {
		made, err = r.reclaim(ctx, d, err)
	}
	if err == nil {
		err = keptLabels(made, r.cluster.modelLabels(r.model.Name))
	}
	if err == nil {
		r.cluster.storeOf(d).recordWrite(made, "", time.Now())
		r.memory.applied[made.Name] = appliedDeployment{specVersion: specVersionOf(made)}
	}
	return err
}

// keptLabels returns an error if the cluster has taken labels from what it was given. The watches
// show only objects that have them.
func keptLabels(made metav1.Object, want map[string]string) error {
	var taken []string
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if made.GetLabels()[name] != want[name] {
			taken = append(taken, name)
		}
	}
	if taken == nil {
		return nil
	}
	return fmt.Errorf("the cluster, such as an admission webhook, takes labels from %s by which Sluice finds it: %s",
		made.GetName(), strings.Join(taken, ", "))
}

// deployment returns the Deployment of this name, or nil.
func (r modelReconciler) deployment(name string) *appsv1.Deployment {
	for _, d := range r.deployments {
		if d.Name == name {
			return d
		}
	}
	return nil
}

// patchDeployment applies a merge patch to the version of the Deployment that the plan was based
// on.
func (r modelReconciler) patchDeployment(ctx context.Context, name string, patch map[string]any) error {
	d := r.deployment(name)
	data, err := versionedPatch(patch, d)
	if err != nil {
		return err
	}
	changed, err := r.cluster.patchWorkload(ctx, d, types.MergePatchType, data)
	if err == nil {
		r.cluster.storeOf(d).recordWrite(changed, d.ResourceVersion, time.Now())
		r.memory.keepApplied(d, changed)
	}
	return err
}

// annotationPatch returns a merge patch that sets annotations. A nil value removes an annotation.
func annotationPatch(annotations map[string]any) map[string]any {
	return map[string]any{"metadata": map[string]any{"annotations": annotations}}
}

// versionedPatch returns a merge patch that applies only to this version of the object.
func versionedPatch(patch map[string]any, of metav1.Object) ([]byte, error) {
	meta, _ := patch["metadata"].(map[string]any)
	if meta == nil {
		meta = map[string]any{}
	}
	meta["resourceVersion"], meta["uid"] = of.GetResourceVersion(), of.GetUID()
	patch["metadata"] = meta
	return json.Marshal(patch)
}

// remove deletes the version of the Deployment that the plan was based on, and its pods.
func (r modelReconciler) remove(ctx context.Context, name string) error {
	d := r.deployment(name)
	return r.cluster.deleteWorkload(ctx, d, metav1.DeleteOptions{
		Preconditions:     &metav1.Preconditions{UID: &d.UID, ResourceVersion: &d.ResourceVersion},
		PropagationPolicy: new(metav1.DeletePropagationBackground),
	})
}

// annotate sets annotations of the pod in a, as annotationPatch does.
func (r modelReconciler) annotate(ctx context.Context, a action, annotations map[string]any) error {
	for _, p := range r.pods[a.deployment] {
		if p.Name != a.pod {
			continue
		}
		data, err := versionedPatch(annotationPatch(annotations), p)
		if err != nil {
			return err
		}
		changed, err := r.cluster.client.CoreV1().Pods(r.cluster.location.namespace).Patch(ctx, a.pod, types.MergePatchType, data,
			metav1.PatchOptions{FieldManager: fieldManager})
		if err == nil {
			r.cluster.pods.recordWrite(changed, p.ResourceVersion, time.Now())
			signal(r.cluster.observeSignal)
		}
		return err
	}
	return nil
}

// undrain removes the draining annotation from a pod. If the pod was marked, it writes the
// Deployment first. Another gateway that has not seen the change then fails to scale the Deployment
// down.
func (r modelReconciler) undrain(ctx context.Context, a action) error {
	if slices.ContainsFunc(r.pods[a.deployment], func(p *corev1.Pod) bool { return p.Name == a.pod && isMarked(p) }) {
		recalled := annotationPatch(map[string]any{annotationRecalled: time.Now().UTC().Format(time.RFC3339Nano)})
		if err := r.patchDeployment(ctx, a.deployment, recalled); err != nil {
			return err
		}
	}
	return r.annotate(ctx, a, map[string]any{annotationDraining: nil, annotationCost: nil})
}

// sameOwner reports whether two references are to the same object.
func sameOwner(a, b metav1.OwnerReference) bool {
	return a.UID == b.UID && a.Name == b.Name && a.Kind == b.Kind
}

// updateMetadata updates the annotations and the owner of the current Deployment, which its name
// does not depend on.
func (r modelReconciler) updateMetadata(ctx context.Context) error {
	if r.model.manifest == nil {
		return nil
	}
	d, want := r.deployment(r.model.manifest.Name), r.model.manifest
	if d == nil || d.DeletionTimestamp != nil {
		return nil
	}
	meta := map[string]any{}
	for name, value := range want.Annotations {
		if d.Annotations[name] != value {
			meta["annotations"] = want.Annotations
		}
	}
	if !slices.EqualFunc(d.OwnerReferences, want.OwnerReferences, sameOwner) {
		meta["ownerReferences"] = want.OwnerReferences
	}
	if len(meta) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := r.patchDeployment(ctx, d.Name, map[string]any{"metadata": meta})
	if apierrors.IsConflict(err) {
		return nil
	}
	return ignoreNotFound(err)
}

package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"time"

	"go.uber.org/zap"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// fieldManager is the name under which Sluice owns fields of objects.
const fieldManager = "sluice"

// budget returns the PodDisruptionBudget of a model: at most one of its pods is evicted at a time.
// A pod that does not serve may always be evicted.
func (in install) budget(m wanted) *policyv1.PodDisruptionBudget {
	own := in.modelLabels(m.Name)
	return &policyv1.PodDisruptionBudget{
		TypeMeta: metav1.TypeMeta{APIVersion: "policy/v1", Kind: "PodDisruptionBudget"},
		ObjectMeta: metav1.ObjectMeta{
			Name: in.objectName(m.Name, "", maxLabelLength), Labels: own,
			Annotations: map[string]string{annotationModel: m.Name}, OwnerReferences: m.manifest.OwnerReferences,
		},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: new(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: own},
			UnhealthyPodEvictionPolicy: new(policyv1.AlwaysAllow),
		},
	}
}

// applyBudget makes the model's budget as it should be, if it is not. A spec that the cluster gave
// the budget when this gateway wrote it, such as by an admission webhook, stays.
func (r modelReconciler) applyBudget(ctx context.Context) error {
	c := r.cluster
	if r.model.manifest == nil || !c.budgets.hasSynced() {
		return nil
	}
	want := c.budget(r.model)
	b, version := c.budgets.get(want.Name, r.now), ""
	if b != nil {
		labelled := labels.SelectorFromSet(want.Labels).Matches(labels.Set(b.Labels))
		sound := reflect.DeepEqual(b.Spec, want.Spec) || r.memory.appliedBudget == specVersionOf(b)
		if labelled && sound && slices.EqualFunc(b.OwnerReferences, want.OwnerReferences, sameOwner) {
			return nil
		}
		version = b.ResourceVersion
	}
	data, err := json.Marshal(want)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	made, err := c.client.PolicyV1().PodDisruptionBudgets(c.location.namespace).Patch(ctx, want.Name, types.ApplyPatchType, data,
		metav1.PatchOptions{FieldManager: fieldManager, Force: new(true)})
	if err == nil {
		err = keptLabels(made, want.Labels)
	}
	if err == nil {
		c.budgets.recordWrite(made, version, time.Now())
		r.memory.appliedBudget = specVersionOf(made)
		c.Log.Info("PodDisruptionBudget applied", zap.String("model", r.model.Name), zap.String("budget", want.Name))
	}
	return err
}

// removeBudgets deletes the budgets of a model that is not wanted and has no Deployments.
func (r modelReconciler) removeBudgets(ctx context.Context) error {
	if r.model.manifest != nil || len(r.deployments) > 0 {
		return nil
	}
	var errs []error
	for _, b := range r.budgets {
		if b.DeletionTimestamp != nil {
			continue
		}
		call, cancel := context.WithTimeout(ctx, callTimeout)
		err := r.cluster.client.PolicyV1().PodDisruptionBudgets(b.Namespace).Delete(call, b.Name,
			metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &b.UID}})
		cancel()
		if !apierrors.IsConflict(err) {
			errs = append(errs, ignoreNotFound(err))
		}
	}
	return errors.Join(errs...)
}

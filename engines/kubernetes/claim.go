package kubernetes

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// claimInterval is the time between two checks of the size of a claim.
const claimInterval = 30 * time.Second

// claimCheck is the size in bytes that a claim should have, and what this gateway saw last.
type claimCheck struct {
	size int64
	at   time.Time
	// uid is the UID of the claim; empty: there is no claim. It is known only if answered is true.
	uid      types.UID
	answered bool
}

// claim returns the claim that the launcher makes for the weights.
func (in install) claim(w Weights) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: w.Claim, Labels: in.labels()},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceStorage: *resource.NewQuantity(w.Size, resource.BinarySI),
			}},
		},
	}
	if w.StorageClass != "" {
		c.Spec.StorageClassName = &w.StorageClass
	}
	return c
}

// createClaim returns the UID of the claim. It creates the claim if the launcher has to make it and
// there is none. Under a used-up quota the API refuses also to create a claim that exists. So its
// refusal counts only if there is no claim.
func (c *cluster) createClaim(ctx context.Context, w Weights, options metav1.CreateOptions) (types.UID, error) {
	if w.Size == 0 {
		return "", nil
	}
	claims := c.client.CoreV1().PersistentVolumeClaims(c.location.namespace)
	made, err := claims.Create(ctx, c.claim(w), options)
	if err == nil {
		c.claimSeen(w.Claim, made.UID)
		return made.UID, nil
	}
	found, missing := claims.Get(ctx, w.Claim, metav1.GetOptions{})
	switch {
	case missing == nil:
		c.claimSeen(w.Claim, found.UID)
		return found.UID, nil
	case apierrors.IsAlreadyExists(err):
		return "", missing
	}
	return "", err
}

// claimSeen sets the UID of a claim.
func (c *cluster) claimSeen(name string, uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	seen := c.claims[name]
	seen.uid, seen.answered = uid, true
	c.claims[name] = seen
}

// hasLost reports whether the claim into which a Job has fetched the weights is gone. Another claim
// may have its name.
func (c *cluster) hasLost(w Weights, j *batchv1.Job) bool {
	c.mu.Lock()
	seen, into := c.claims[w.Claim], j.Annotations[annotationClaim]
	c.mu.Unlock()
	return w.Size > 0 && seen.answered && (seen.uid == "" || into != "" && into != string(seen.uid))
}

// claimSizes returns the sizes of the claims that the launcher makes for these weights.
func claimSizes(needed map[string]*Weights) map[string]int64 {
	sizes := map[string]int64{}
	for _, w := range needed {
		if w != nil && w.Size > 0 {
			sizes[w.Claim] = max(sizes[w.Claim], w.Size)
		}
	}
	return sizes
}

// enlargeClaims adds the writes that give the claims these sizes. An error becomes a fault of the
// cluster, because the pods can still use the claim as it is.
func (c *cluster) enlargeClaims(writes map[string]write, sizes map[string]int64, now time.Time) {
	c.forgetClaims(sizes)
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, size := range sizes {
		last := c.claims[name]
		if last.size == size && now.Sub(last.at) < claimInterval {
			continue
		}
		writes[enlarge(name)] = func(ctx context.Context) (bool, error) {
			uid, answered, err := c.enlargeClaim(ctx, name, size)
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.claims[name] == last { // else it was made meanwhile, or is not needed any more
				c.claims[name] = claimCheck{size, now, uid, answered}
				c.health.set(enlarge(name), err)
			}
			return false, nil
		}
	}
}

// enlarge is how a fault and a write name the enlargement of a claim.
func enlarge(claim string) string { return "enlarge the claim " + claim }

// forgetClaims ends the checks of all other claims and clears their faults.
func (c *cluster) forgetClaims(other map[string]int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name := range c.claims {
		if other[name] == 0 {
			delete(c.claims, name)
			c.health.clear(enlarge(name))
		}
	}
}

// enlargeClaim enlarges a claim that is smaller than size bytes, and returns its UID. Kubernetes
// enlarges only claims that are bound. answered is false if the API did not answer. The
// error says why the claim cannot get the size, or why its volume has not.
func (c *cluster) enlargeClaim(ctx context.Context, name string, size int64) (uid types.UID, answered bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	claim, err := c.client.CoreV1().PersistentVolumeClaims(c.location.namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", apierrors.IsNotFound(err), ignoreNotFound(err)
	}
	return claim.UID, true, c.growClaim(ctx, claim, size)
}

// growClaim is enlargeClaim for the claim as it is now.
func (c *cluster) growClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim, size int64) error {
	is, want := claim.Spec.Resources.Requests[corev1.ResourceStorage], resource.NewQuantity(size, resource.BinarySI)
	if is.Cmp(*want) >= 0 || claim.Status.Phase != corev1.ClaimBound {
		return resizeFault(claim)
	}
	requests := map[string]any{string(corev1.ResourceStorage): want.String()}
	patch, err := versionedPatch(map[string]any{"spec": map[string]any{"resources": map[string]any{"requests": requests}}}, claim)
	if err != nil {
		return err
	}
	claims := c.client.CoreV1().PersistentVolumeClaims(claim.Namespace)
	_, err = claims.Patch(ctx, claim.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
	switch {
	case apierrors.IsConflict(err) || apierrors.IsNotFound(err):
		return nil // The next check sees the newer version.
	case err != nil:
		return fmt.Errorf("the claim stays at %s although cache.size is %s: %w", is.String(), want, err)
	}
	c.Log.Info("claim enlarged", zap.String("claim", claim.Name), zap.Stringer("from", &is), zap.Stringer("to", want))
	return nil
}

// resizeFault returns why the volume of a claim could not be enlarged, or nil.
func resizeFault(claim *corev1.PersistentVolumeClaim) error {
	for _, is := range claim.Status.Conditions {
		failed := is.Type == corev1.PersistentVolumeClaimControllerResizeError || is.Type == corev1.PersistentVolumeClaimNodeResizeError
		if failed && is.Status == corev1.ConditionTrue {
			return fmt.Errorf("the volume was not enlarged: %s", is.Message)
		}
	}
	return nil
}

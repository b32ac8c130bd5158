package custom

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// writer writes while this gateway leads. It belongs to one goroutine.
type writer struct {
	*Watcher
	api objectClient
	// tries are the last ones, by object.
	attempts map[types.UID]writeAttempt
}

// try is what became of a write.
type writeAttempt struct {
	next time.Time // when the object may be written again
	err  error     // what the API has against the object
}

// run makes what is written true until ctx ends: after each report and each change, and when this gateway begins to lead.
func (w *writer) run(ctx context.Context) {
	ticker := time.NewTicker(minWriteInterval)
	defer ticker.Stop()
	for left, led := false, false; ; {
		select {
		case <-ctx.Done():
			return
		case <-w.writeSignal:
			left = true
		case <-ticker.C:
		}
		leads := w.isLeader()
		if leads && (left || !led) {
			left = w.writeAll(ctx)
		}
		led = leads
		select {
		case <-ctx.Done():
			return
		case <-time.After(settleDelay):
		}
	}
}

func (w *writer) isLeader() bool { return w.config.IsLeader != nil && w.config.IsLeader() }

// round looks at all objects. It returns whether something is left to do: an object was written a moment ago, or a write failed.
func (w *writer) writeAll(ctx context.Context) bool {
	w.mu.Lock()
	statuses, released := w.statuses, maps.Clone(w.released)
	w.mu.Unlock()
	var failure error
	left := false
	models := w.models.list()
	w.forget(models)
	for _, e := range slices.Concat(w.engines.list(), models) {
		patches := pendingPatches(e, statuses, released[e.raw.GetUID()])
		if len(patches) == 0 {
			continue
		}
		last := w.attempts[e.raw.GetUID()]
		if time.Now().Before(last.next) {
			left, failure = true, cmp.Or(failure, last.err)
			continue
		}
		err := w.writeObject(ctx, e, patches)
		if ctx.Err() != nil || errors.Is(err, errNotLeader) {
			return true
		}
		if err != nil {
			left, failure = true, cmp.Or(failure, err)
		}
		if err != nil && !isObjectError(err) {
			failure = err
			break // the others would fare no better
		}
	}
	if failure == nil {
		w.setError("writing", "")
	} else {
		w.setError("writing", "the status of custom resources cannot be written: "+withoutURL(failure).Error())
	}
	return left
}

// forget drops what is known of models that are gone.
func (w *writer) forget(models []entry) {
	there := map[types.UID]bool{}
	for _, e := range slices.Concat(models, w.engines.list()) {
		there[e.raw.GetUID()] = true
	}
	gone := func(uid types.UID) bool { return !there[uid] }
	maps.DeleteFunc(w.attempts, func(uid types.UID, _ writeAttempt) bool { return gone(uid) })
	w.mu.Lock()
	maps.DeleteFunc(w.released, func(uid types.UID, _ bool) bool { return gone(uid) })
	w.mu.Unlock()
}

// errNotLeader says that another gateway writes now.
var errNotLeader = errors.New("custom: not the leader any more")

// write sends the patches of one object.
func (w *writer) writeObject(ctx context.Context, e entry, patches []patch) error {
	for _, p := range patches {
		if !w.isLeader() {
			return errNotLeader
		}
		call, cancel := context.WithTimeout(ctx, callTimeout)
		_, err := w.api(e.Kind).Patch(call, e.Name, types.MergePatchType, p.data, metav1.PatchOptions{FieldManager: "sluice"}, p.subresources...)
		cancel()
		pause := minWriteInterval
		switch {
		case err == nil:
		case apierrors.IsNotFound(err), apierrors.IsConflict(err):
			err = nil // it is gone, or another version of it is on its way to us
		default:
			pause = maxRetryDelay
		}
		if err == nil || isObjectError(err) {
			w.attempts[e.raw.GetUID()] = writeAttempt{next: time.Now().Add(pause), err: err}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// ofObject tells whether an error is the API's verdict on one object, after which others may still be written.
func isObjectError(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) || apierrors.IsRequestEntityTooLargeError(err)
}

// patch is a merge patch of an object, or of its status.
type patch struct {
	data         []byte
	subresources []string
}

// patches are what must be written of one object.
func pendingPatches(e entry, statuses map[Kind]map[string]Status, released bool) []patch {
	var all []patch
	if finalizers, differ := wantedFinalizers(e, released); differ {
		// With the version that was read: a finalizer that somebody else set meanwhile is not lost.
		data := mustMarshal(map[string]any{"metadata": map[string]any{"finalizers": finalizers, "resourceVersion": e.raw.GetResourceVersion()}})
		all = append(all, patch{data: data})
	}
	s, ok := statuses[e.Kind][e.Name]
	if !ok || released {
		return all
	}
	status, _, _ := unstructured.NestedMap(e.raw.Object, "status") //nolint:errcheck // a status that is no object is as good as none
	if fields := s.patchFor(status, time.Now()); fields != nil {
		all = append(all, patch{data: mustMarshal(map[string]any{"status": fields}), subresources: []string{"status"}})
	}
	return all
}

// finalizers are those that an object must have, and whether it has others: a model whose pods are ours must not go before them.
func wantedFinalizers(e entry, released bool) ([]string, bool) {
	have := e.raw.GetFinalizers()
	there := slices.Contains(have, Finalizer)
	launcher, _, _ := unstructured.NestedString(e.raw.Object, "spec", "launcher") //nolint:errcheck // one that is no text is refused by others
	switch {
	case e.Kind != Model:
	case e.Deleting && released && there:
		return slices.DeleteFunc(slices.Clone(have), func(f string) bool { return f == Finalizer }), true
	case !e.Deleting && !there && (launcher == "" || launcher == "kubernetes"):
		return append(slices.Clone(have), Finalizer), true
	}
	return have, false
}

// marshal writes JSON of what was JSON before.
func mustMarshal(value map[string]any) []byte {
	data, err := json.Marshal(value)
	if err != nil {
		panic("custom: " + err.Error())
	}
	return data
}

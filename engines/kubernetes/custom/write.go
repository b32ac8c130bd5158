package custom

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// writer writes to the API while this gateway is the leader. Only one goroutine uses it.
type writer struct {
	*Watcher
	api objectClient
	// attempts holds the last write of each object by UID.
	attempts map[types.UID]writeAttempt
}

// writeAttempt is the result of a write.
type writeAttempt struct {
	next time.Time // when the object may be written again
	err  error     // why the API rejected the object, or nil
	// dropped are the fields of the status that the API has not kept, because its definition of the
	// kind is older than this gateway. They are not written for themselves before again.
	dropped []string
	again   time.Time
}

// ignored returns the fields of the status that are not worth a write of their own now.
func (a writeAttempt) ignored() []string {
	if time.Now().Before(a.again) {
		return a.dropped
	}
	return nil
}

// run writes all differences after each report, after each change, and when this gateway becomes
// the leader, until ctx ends.
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
		switch {
		case !leads: // the errors now concern another gateway
			w.setError("writing", "")
			w.setError("definitions", "")
		case left || !led:
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

// writeAll writes all objects that differ. It returns true if some are left: they were written a
// moment ago, or a write failed.
func (w *writer) writeAll(ctx context.Context) bool {
	w.mu.Lock()
	statuses, released := w.statuses, maps.Clone(w.released)
	w.mu.Unlock()
	var failure error
	left := false
	models := w.models.list()
	w.forget(models)
	all := slices.Concat(w.engines.list(), models)
	for _, e := range all {
		last := w.attempts[e.raw.GetUID()]
		patches := pendingPatches(e, statuses, released[e.raw.GetUID()], last.ignored())
		if len(patches) == 0 {
			continue
		}
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
			break // The other writes would fail too.
		}
	}
	w.setError("definitions", w.definitionFault(all))
	if failure == nil {
		w.setError("writing", "")
	} else {
		w.setError("writing", "custom resources cannot be written: "+withoutURL(failure).Error())
	}
	return left
}

// forget removes the data of objects that no longer exist.
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

// definitionFault says which fields of a status the API does not keep, or is empty.
func (w *writer) definitionFault(all []entry) string {
	fields := map[string]bool{}
	for _, e := range all {
		for _, name := range w.attempts[e.raw.GetUID()].dropped {
			fields[string(e.Kind)+" status."+name] = true
		}
	}
	if len(fields) == 0 {
		return ""
	}
	return "the cluster's CustomResourceDefinitions are older than this gateway: apply those of its version; the API does not keep " +
		strings.Join(slices.Sorted(maps.Keys(fields)), ", ")
}

// errNotLeader means that this gateway is no longer the leader.
var errNotLeader = errors.New("this gateway is no longer the leader")

// writeObject writes the patches of an object. A patch that the API rejects holds up no other one.
func (w *writer) writeObject(ctx context.Context, e entry, patches []patch) error {
	attempt := w.attempts[e.raw.GetUID()]
	attempt.next, attempt.err = time.Now().Add(minWriteInterval), nil
	for _, p := range patches {
		if !w.isLeader() {
			return errNotLeader
		}
		call, cancel := context.WithTimeout(ctx, callTimeout)
		written, err := w.api(e.Kind).Patch(call, e.Name, types.MergePatchType, p.data, metav1.PatchOptions{FieldManager: "sluice"}, p.subresources...)
		cancel()
		switch {
		case err == nil && p.status != nil:
			attempt.dropped, attempt.again = p.dropped(written), time.Now().Add(droppedRetryDelay)
		case err == nil, apierrors.IsNotFound(err), apierrors.IsConflict(err):
			// The object is gone, or the watch will deliver a newer version.
		case isObjectError(err):
			attempt.next, attempt.err = time.Now().Add(maxRetryDelay), cmp.Or(attempt.err, err)
		default:
			return err
		}
	}
	w.attempts[e.raw.GetUID()] = attempt
	return attempt.err
}

// isObjectError reports whether the API rejected this object, so that others may still be written.
// An internal error is that of an admission webhook which does not answer.
func isObjectError(err error) bool {
	return apierrors.IsInternalError(err) || apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) ||
		apierrors.IsRequestEntityTooLargeError(err)
}

// patch is a merge patch of an object or of its status.
type patch struct {
	data         []byte
	subresources []string
	// status holds the fields of the status, or is nil.
	status map[string]any
}

// dropped returns the fields of the patch's status that the written object lacks.
func (p patch) dropped(written *unstructured.Unstructured) []string {
	kept, _, _ := unstructured.NestedMap(written.Object, "status") // a malformed status counts as empty
	return slices.DeleteFunc(slices.Sorted(maps.Keys(p.status)), func(name string) bool { return reflect.DeepEqual(kept[name], p.status[name]) })
}

// pendingPatches returns the patches that an object needs. Of its status, the ignored fields alone
// are no reason for a patch.
func pendingPatches(e entry, statuses map[Kind]map[string]Status, released bool, ignored []string) []patch {
	var all []patch
	if finalizers, differ := wantedFinalizers(e, released); differ {
		// The patch requires the version that was read, so that it does not remove a finalizer that
		// was added since.
		data := mustMarshal(map[string]any{"metadata": map[string]any{"finalizers": finalizers, "resourceVersion": e.raw.GetResourceVersion()}})
		all = append(all, patch{data: data})
	}
	s, ok := statuses[e.Kind][e.Name]
	if !ok || released {
		return all
	}
	// A malformed status counts as empty.
	status, _, _ := unstructured.NestedMap(e.raw.Object, "status")
	if fields := s.patchFor(status, ignored, time.Now()); fields != nil {
		all = append(all, patch{data: mustMarshal(map[string]any{"status": fields}), subresources: []string{"status"}, status: fields})
	}
	return all
}

// wantedFinalizers returns the finalizers that an object must have, and whether they differ from
// its current ones. A model with pods has the finalizer of this package until it is released.
func wantedFinalizers(e entry, released bool) ([]string, bool) {
	have := e.raw.GetFinalizers()
	there := slices.Contains(have, Finalizer)
	// Other code reports a malformed launcher.
	launcher, _, _ := unstructured.NestedString(e.raw.Object, "spec", "launcher")
	switch {
	case e.Kind != Model:
	case e.Deleting && released && there:
		return slices.DeleteFunc(slices.Clone(have), func(f string) bool { return f == Finalizer }), true
	case !e.Deleting && !there && (launcher == "" || launcher == "kubernetes"):
		return append(slices.Clone(have), Finalizer), true
	}
	return have, false
}

// mustMarshal encodes a value that was decoded from JSON.
func mustMarshal(value map[string]any) []byte {
	data, err := json.Marshal(value)
	if err != nil {
		panic("custom: " + err.Error())
	}
	return data
}

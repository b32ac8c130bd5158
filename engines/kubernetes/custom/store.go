package custom

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/sluice-gateway/sluice/engines/kubernetes"
)

// store holds the objects of one kind as last read. A reflector of client-go fills it. The content
// stays while the API is unreachable.
type store struct {
	kind Kind
	// onChange is called after each change, without the lock.
	onChange func()

	mu sync.Mutex
	// entries holds the objects by name. The objects must not be modified. Guarded by mu.
	entries map[string]entry
	// synced is true once a whole list was read. Guarded by mu.
	synced bool
}

// entry is an object with its original form.
type entry struct {
	Object
	raw *unstructured.Unstructured
}

// watchKind keeps a store up to date until ctx ends. It sets the error of the kind after each call
// that fails, and removes it when a watch has begun: a user who may only list the objects is told
// of no change.
func (w *Watcher) watchKind(ctx context.Context, api objectClient, s *store) {
	objects := api(s.kind)
	note := func(err error) {
		if ctx.Err() == nil {
			w.setError(string(s.kind), readError(s.kind, err))
		}
	}
	calls := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			list, err := objects.List(ctx, options)
			if err != nil {
				note(err)
			}
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			events, err := objects.Watch(ctx, options)
			note(err)
			return events, err
		},
	}
	kubernetes.PaceWatches(calls)
	cache.NewReflectorWithOptions(calls, &unstructured.Unstructured{}, s, cache.ReflectorOptions{
		Name:            "custom",
		TypeDescription: string(s.kind),
		Backoff:         &wait.Backoff{Duration: minRetryDelay, Factor: 2, Jitter: 0.2, Steps: 10, Cap: maxRetryDelay},
	}).RunWithContext(ctx)
}

// readError returns the text for an error of reading objects, or "".
func readError(kind Kind, err error) string {
	switch {
	case err == nil:
		return ""
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("the cluster does not know the kind %s (%s/%s): "+
			"its CustomResourceDefinition is not installed or does not serve this version", kind, Group, Version)
	case apierrors.IsForbidden(err):
		return err.Error()
	}
	return "the cluster's API cannot be read: " + withoutURL(err).Error()
}

// withoutURL removes the URL from an error, because it differs in each retry.
func withoutURL(err error) error {
	var call *url.Error
	if errors.As(err, &call) {
		return call.Err
	}
	return err
}

// Add implements cache.ReflectorStore, as do Update, Delete, Replace and Resync.
func (s *store) Add(object any) error {
	raw, ok := object.(*unstructured.Unstructured)
	if !ok {
		return fmt.Errorf("the watch delivered a %T, which is no object", object)
	}
	read := s.parse(raw)
	s.mu.Lock()
	if s.entries == nil {
		s.entries = map[string]entry{}
	}
	s.entries[read.Name] = read
	s.mu.Unlock()
	s.onChange()
	return nil
}

// Update replaces an object.
func (s *store) Update(object any) error { return s.Add(object) }

// Delete removes an object.
func (s *store) Delete(object any) error {
	raw, ok := object.(*unstructured.Unstructured)
	if !ok {
		return fmt.Errorf("the watch delivered a %T, which is no object", object)
	}
	s.mu.Lock()
	delete(s.entries, raw.GetName())
	s.mu.Unlock()
	s.onChange()
	return nil
}

// Replace replaces all objects.
func (s *store) Replace(list []any, _ string) error {
	entries := make(map[string]entry, len(list))
	for _, object := range list {
		raw, ok := object.(*unstructured.Unstructured)
		if !ok {
			return fmt.Errorf("the watch delivered a %T, which is no object", object)
		}
		read := s.parse(raw)
		entries[read.Name] = read
	}
	s.mu.Lock()
	s.entries, s.synced = entries, true
	s.mu.Unlock()
	s.onChange()
	return nil
}

// Resync does nothing.
func (s *store) Resync() error { return nil }

// parse returns the entry of an object. It accepts every object, because one invalid object must
// not hide others.
func (s *store) parse(raw *unstructured.Unstructured) entry {
	// Managed fields are more than half of an object and are not used.
	raw.SetManagedFields(nil)
	spec := []byte("{}")
	if value, ok := raw.Object["spec"]; ok && value != nil {
		// It was decoded from JSON, so this cannot fail.
		if text, err := json.Marshal(value); err == nil {
			spec = text
		}
	}
	accepted, _, _ := unstructured.NestedString(raw.Object, "status", fieldAcceptedSpec)
	return entry{raw: raw, Object: Object{
		Kind: s.kind, APIVersion: Group + "/" + Version, Name: raw.GetName(), Namespace: raw.GetNamespace(), UID: string(raw.GetUID()),
		Generation: raw.GetGeneration(), Spec: spec, Accepted: []byte(accepted), Deleting: raw.GetDeletionTimestamp() != nil,
	}}
}

func (s *store) get(name string) (entry, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.entries[name]
	return e, ok
}

func (s *store) list() []entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.entries), func(a, b entry) int { return cmp.Compare(a.Name, b.Name) })
}

// all returns all objects, sorted by name, and whether the store is synced.
func (s *store) all() ([]Object, bool) {
	s.mu.Lock()
	complete := s.synced
	s.mu.Unlock()
	var objects []Object
	for _, e := range s.list() {
		objects = append(objects, e.Object)
	}
	return objects, complete
}

// isSameObject reports whether OnChange need not be called for the difference of two objects. The
// accepted spec differs only after a gateway's own write.
func isSameObject(a, b Object) bool {
	spec := bytes.Equal(a.Spec, b.Spec)
	return spec && a.Kind == b.Kind && a.Name == b.Name && a.UID == b.UID && a.Generation == b.Generation && a.Deleting == b.Deleting
}

package custom

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
)

// store holds the objects of one kind as the API told them last. A reflector of client-go fills it: it lists, watches, and lists again when it may
// have missed something. What it holds stays while the API is away.
type store struct {
	kind Kind
	// changed is called after every change, without the lock.
	onChange func()

	mu sync.Mutex
	// entries by name; what they point to is not changed any more.
	entries map[string]entry
	// complete tells that there was a whole list once.
	synced bool
}

// entry is an object, and all of it as the API has it.
type entry struct {
	Object
	raw *unstructured.Unstructured
}

// follow keeps a store up to date until ctx ends. It notes whether the API answers; a watch that the API ends in order is begun anew without a word.
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
			note(err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			events, err := objects.Watch(ctx, options)
			note(err)
			return events, err
		},
	}
	cache.NewReflectorWithOptions(calls, &unstructured.Unstructured{}, s, cache.ReflectorOptions{
		Name:            "custom",
		TypeDescription: string(s.kind),
		Backoff:         &wait.Backoff{Duration: minRetryDelay, Factor: 2, Jitter: 0.2, Steps: 10, Cap: maxRetryDelay},
	}).RunWithContext(ctx)
}

// reading is the problem when objects cannot be read.
func readError(kind Kind, err error) string {
	switch {
	case err == nil:
		return ""
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("the cluster does not know the kind %s (%s/%s): its CustomResourceDefinition is not installed", kind, Group, Version)
	case apierrors.IsForbidden(err):
		return err.Error()
	}
	return "the cluster's API cannot be read: " + withoutURL(err).Error()
}

// plain takes the URL off an error, which is another one for each try.
func withoutURL(err error) error {
	var call *url.Error
	if errors.As(err, &call) {
		return call.Err
	}
	return err
}

// Add is called by the reflector, as are all others down to Resync.
func (s *store) Add(object any) error {
	raw, ok := object.(*unstructured.Unstructured)
	if !ok {
		return fmt.Errorf("custom: a %T instead of an object", object)
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

// Update puts a new version in the place of the old one.
func (s *store) Update(object any) error { return s.Add(object) }

// Delete takes an object out.
func (s *store) Delete(object any) error {
	raw, ok := object.(*unstructured.Unstructured)
	if !ok {
		return fmt.Errorf("custom: a %T instead of an object", object)
	}
	s.mu.Lock()
	delete(s.entries, raw.GetName())
	s.mu.Unlock()
	s.onChange()
	return nil
}

// Replace sets all objects.
func (s *store) Replace(list []any, _ string) error {
	entries := make(map[string]entry, len(list))
	for _, object := range list {
		raw, ok := object.(*unstructured.Unstructured)
		if !ok {
			return fmt.Errorf("custom: a %T instead of an object", object)
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

// Resync has nothing to do: who reads gets everything each time.
func (s *store) Resync() error { return nil }

// entry reads an object. Nothing can be wrong with one that hides others: a spec that makes no sense is for others to refuse.
func (s *store) parse(raw *unstructured.Unstructured) entry {
	raw.SetManagedFields(nil) // more than half of the object, and nobody reads it
	spec := []byte("{}")
	if value, ok := raw.Object["spec"]; ok && value != nil {
		if text, err := json.Marshal(value); err == nil { // it was JSON a moment ago
			spec = text
		}
	}
	return entry{raw: raw, Object: Object{
		Kind: s.kind, APIVersion: Group + "/" + Version, Name: raw.GetName(), Namespace: raw.GetNamespace(), UID: string(raw.GetUID()),
		Generation: raw.GetGeneration(), Spec: spec, Deleting: raw.GetDeletionTimestamp() != nil,
	}}
}

// get returns one entry.
func (s *store) get(name string) (entry, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.entries[name]
	return e, ok
}

// list returns all entries by name.
func (s *store) list() []entry {
	s.mu.Lock()
	list := make([]entry, 0, len(s.entries))
	for _, e := range s.entries {
		list = append(list, e)
	}
	s.mu.Unlock()
	slices.SortFunc(list, func(a, b entry) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// all returns all objects by name, and whether that is really all.
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

// same tells whether two objects differ in nothing that Changed is called for.
func isSameObject(a, b Object) bool {
	spec := bytes.Equal(a.Spec, b.Spec)
	a.Spec, b.Spec = nil, nil
	return spec && a.Kind == b.Kind && a.Name == b.Name && a.UID == b.UID && a.Generation == b.Generation && a.Deleting == b.Deleting
}

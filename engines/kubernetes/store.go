package kubernetes

import (
	"context"
	"errors"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// forgetWritten is how long a write of our own is believed before a watch has shown it.
const ownWriteLifetime = 10 * time.Second

// store is what a watch has shown of one kind of object: the whole of it, replaced by each list. Nobody changes the objects in it.
type watchStore[T metav1.Object] struct {
	// changed is called without the lock.
	changed func()

	mu sync.Mutex
	// items by name; guarded by mu
	items map[string]T
	// synced: the first list was read; guarded by mu
	synced bool
	// written are results of our own writes that the watch has not shown yet, by name; guarded by mu
	ownWrites map[string]ownWrite[T]
}

// written is an object as our write left it. over is the version that the write replaced: as long as the watch shows that one, it is behind.
type ownWrite[T metav1.Object] struct {
	object   T
	replaced string
	at       time.Time
}

func newWatchStore[T metav1.Object](changed func()) *watchStore[T] {
	return &watchStore[T]{changed: changed, items: map[string]T{}, ownWrites: map[string]ownWrite[T]{}}
}

// list returns the objects, our own last writes among them.
func (s *watchStore[T]) list(now time.Time) []T {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]T, 0, len(s.items))
	for name, item := range s.items {
		if w, ours := s.ownWrites[name]; ours && w.replaced == item.GetResourceVersion() {
			item = w.object
		}
		all = append(all, item)
	}
	for name, w := range s.ownWrites {
		switch item, there := s.items[name]; {
		case now.Sub(w.at) > ownWriteLifetime, there && w.replaced != item.GetResourceVersion():
			delete(s.ownWrites, name)
		case !there && w.replaced == "":
			all = append(all, w.object)
		}
	}
	return all
}

// wrote notes the result of a write over a version, "" for one that made the object.
func (s *watchStore[T]) recordWrite(object T, over string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if item, there := s.items[object.GetName()]; there && item.GetResourceVersion() != over {
		return // the watch was quicker
	}
	s.ownWrites[object.GetName()] = ownWrite[T]{object: object, replaced: over, at: now}
}

func (s *watchStore[T]) hasSynced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.synced
}

// Add, Update, Delete, Replace and Resync are for the reflector.

func (s *watchStore[T]) Add(obj any) error { return s.Update(obj) }

// Update puts in an object.
func (s *watchStore[T]) Update(obj any) error {
	return s.apply(obj, func(item T) { s.items[item.GetName()] = item })
}

// Delete takes out an object.
func (s *watchStore[T]) Delete(obj any) error {
	return s.apply(obj, func(item T) { delete(s.items, item.GetName()) })
}

func (s *watchStore[T]) apply(obj any, how func(T)) error {
	item, ok := obj.(T)
	if !ok {
		return errors.New("an object of another kind")
	}
	item.SetManagedFields(nil)
	s.mu.Lock()
	how(item)
	s.mu.Unlock()
	s.changed()
	return nil
}

// Replace puts in all objects that there are.
func (s *watchStore[T]) Replace(list []any, _ string) error {
	items := make(map[string]T, len(list))
	for _, obj := range list {
		item, ok := obj.(T)
		if !ok {
			return errors.New("an object of another kind")
		}
		item.SetManagedFields(nil)
		items[item.GetName()] = item
	}
	s.mu.Lock()
	s.items, s.synced = items, true
	s.mu.Unlock()
	s.changed()
	return nil
}

// Resync has nothing to do.
func (s *watchStore[T]) Resync() error { return nil }

// watched is where objects of a kind are.
type watchTarget struct {
	client    rest.Interface
	resource  string
	namespace string
	selector  string
	// kind is an object of the kind.
	kind any
}

// follow keeps the store as the API is, until ctx ends; an API that is away leaves it as it is. failed hears what goes wrong.
func watchObjects(ctx context.Context, w watchTarget, s cache.ReflectorStore, failed func(error)) {
	source := cache.NewFilteredListWatchFromClient(w.client, w.resource, w.namespace, func(o *metav1.ListOptions) { o.LabelSelector = w.selector })
	reflector := cache.NewReflectorWithOptions(source, w.kind, s, cache.ReflectorOptions{
		Name: w.resource,
		// Others have thousands of watchers on an API server that comes back. We are a few.
		Backoff: &wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Cap: 5 * time.Second, Steps: 5, Jitter: 0.5},
	})
	for ctx.Err() == nil {
		if err := reflector.ListAndWatchWithContext(ctx); err != nil && ctx.Err() == nil {
			failed(err)
		}
		pause(ctx, retryDelay/2)
	}
}

// awaitNext waits for news, for at most so long, and at least as long as there must be between two looks; or until ctx ends.
func waitForSignal(ctx context.Context, news <-chan struct{}, atMost time.Duration) {
	pause(ctx, minLoopDelay)
	timer := time.NewTimer(atMost)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-news:
	case <-timer.C:
	}
}

// pause waits, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

package kubernetes

import (
	"context"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// ownWriteLifetime is how long a result of the gateway's own write is used while the watch has not
// shown it.
const ownWriteLifetime = 10 * time.Second

// watchStore holds the objects of one kind as the watch has shown them. Each list replaces its
// content. The objects must not be modified.
type watchStore[T metav1.Object] struct {
	// changed is called after each change, without the lock.
	changed func()

	mu sync.Mutex
	// items holds the objects by name. Guarded by mu.
	items map[string]T
	// synced is true once a list was read. Guarded by mu.
	synced bool
	// ownWrites holds, by name, the results of the gateway's own writes that the watch has not
	// shown yet. Guarded by mu.
	ownWrites map[string]ownWrite[T]
}

// ownWrite is the result of a write of this gateway. replaced is the resource version that the
// write replaced. While the watch shows that version, the watch is behind.
type ownWrite[T metav1.Object] struct {
	object   T
	replaced string
	at       time.Time
}

func newWatchStore[T metav1.Object](changed func()) *watchStore[T] {
	return &watchStore[T]{changed: changed, items: map[string]T{}, ownWrites: map[string]ownWrite[T]{}}
}

// list returns the objects, with the results of the gateway's own writes in place of older
// versions.
func (s *watchStore[T]) list(now time.Time) []T {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]T, 0, len(s.items))
	for name := range s.items {
		all = append(all, s.latestLocked(name, now))
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

// get returns the object of this name as list does. It returns the zero value if there is none.
func (s *watchStore[T]) get(name string, now time.Time) T {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.latestLocked(name, now)
}

// latestLocked is get for a caller that holds s.mu.
func (s *watchStore[T]) latestLocked(name string, now time.Time) T {
	item, there := s.items[name]
	version := ""
	if there {
		version = item.GetResourceVersion()
	}
	if w, ok := s.ownWrites[name]; ok && w.replaced == version && now.Sub(w.at) <= ownWriteLifetime {
		return w.object
	}
	return item
}

// recordWrite stores the result of a write. replaced is the version that it replaced, or "" if it
// created the object.
func (s *watchStore[T]) recordWrite(object T, replaced string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if item, there := s.items[object.GetName()]; there && item.GetResourceVersion() != replaced {
		return // The watch was faster.
	}
	s.ownWrites[object.GetName()] = ownWrite[T]{object: object, replaced: replaced, at: now}
}

func (s *watchStore[T]) hasSynced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.synced
}

// Add, Update, Delete, Replace and Resync implement cache.ReflectorStore.

// Add stores a new object.
func (s *watchStore[T]) Add(obj any) error { return s.Update(obj) }

// Update stores a new version of an object.
func (s *watchStore[T]) Update(obj any) error {
	return s.apply(obj, func(item T) { s.items[item.GetName()] = item })
}

// Delete removes an object.
func (s *watchStore[T]) Delete(obj any) error {
	return s.apply(obj, func(item T) { delete(s.items, item.GetName()) })
}

func (s *watchStore[T]) apply(obj any, how func(T)) error {
	item, ok := obj.(T)
	if !ok {
		return fmt.Errorf("the watch delivered a %T, which is another kind", obj)
	}
	item.SetManagedFields(nil)
	s.mu.Lock()
	how(item)
	s.mu.Unlock()
	s.changed()
	return nil
}

// Replace replaces all objects.
func (s *watchStore[T]) Replace(list []any, _ string) error {
	items := make(map[string]T, len(list))
	for _, obj := range list {
		item, ok := obj.(T)
		if !ok {
			return fmt.Errorf("the watch delivered a %T, which is another kind", obj)
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

// Resync does nothing.
func (s *watchStore[T]) Resync() error { return nil }

// watchTarget tells which objects to watch.
type watchTarget struct {
	client    rest.Interface
	resource  string
	namespace string
	selector  string
	// kind is an empty object of the kind.
	kind any
}

// watchObjects keeps the store up to date until ctx ends. While the API is unreachable the store
// keeps its content. told is called with each error, and with nil when a watch has begun: a user
// who may only list the objects has them, but is told of no change.
func watchObjects(ctx context.Context, w watchTarget, s cache.ReflectorStore, told func(error)) {
	source := cache.NewFilteredListWatchFromClient(w.client, w.resource, w.namespace, func(o *metav1.ListOptions) { o.LabelSelector = w.selector })
	begin := source.WatchFuncWithContext
	source.WatchFuncWithContext = func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		events, err := begin(ctx, o)
		if err == nil {
			told(nil)
		}
		return events, err
	}
	reflector := newReflector(w.resource, source, w.kind, s)
	for ctx.Err() == nil {
		if err := reflector.ListAndWatchWithContext(ctx); err != nil && ctx.Err() == nil {
			told(err)
		}
		pause(ctx, retryDelay/2)
	}
}

// watchPause is the shortest time between the beginnings of two watches of the same objects.
const watchPause = 500 * time.Millisecond

// PaceWatches keeps a pause between the beginnings of the watches of a source. client-go makes none
// while the API answers each watch with 410, which means that its version is too old.
func PaceWatches(source *cache.ListWatch) {
	begin, last := source.WatchFuncWithContext, time.Time{}
	source.WatchFuncWithContext = func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		pause(ctx, watchPause-time.Since(last))
		last = time.Now()
		return begin(ctx, o)
	}
}

// newReflector returns what keeps the store up to date with the source. kind is an empty object.
func newReflector(resource string, source *cache.ListWatch, kind any, s cache.ReflectorStore) *cache.Reflector {
	PaceWatches(source)
	return cache.NewReflectorWithOptions(source, kind, s, cache.ReflectorOptions{
		Name: resource,
		// The default back-off suits thousands of clients that reconnect to one API server. An
		// installation has only a few gateways.
		Backoff: &wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Cap: 5 * time.Second, Steps: 5, Jitter: 0.5},
	})
}

// waitForSignal waits for a signal, at most for atMost and at least for minLoopDelay, or until ctx
// ends.
func waitForSignal(ctx context.Context, signal <-chan struct{}, atMost time.Duration) {
	pause(ctx, minLoopDelay)
	select {
	case <-ctx.Done():
	case <-signal:
	case <-time.After(atMost):
	}
}

// pause waits for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

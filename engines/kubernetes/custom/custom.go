// Package custom watches the custom resources Engine and InferenceModel (sluice.dev/v1alpha1) of
// one namespace and writes their status. The gateway runs its Watcher if the configuration file has
// a section "kubernetes".
//
// A Watcher delivers the whole list of objects after each change, so nothing depends on a single
// event. It does not validate specs: it delivers them as JSON, with the fields of an item of
// engines or models in the configuration file. Every gateway reads the objects. Only the leader
// writes the status, and the finalizer that keeps a deleted model until its pods are gone.
package custom

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/sluice-gateway/sluice/engines/kubernetes"
)

// Names of the resources in the API.
const (
	// Group is the API group of the resources.
	Group = "sluice.dev"
	// Version is the version of the group that the package uses.
	Version = "v1alpha1"
	// Finalizer keeps a deleted InferenceModel until ReleaseFinalizers is called for it.
	Finalizer = "sluice.dev/drain"
)

// Kind is a kind of custom resource.
type Kind string

// The kinds of custom resources.
const (
	// Engine is the kind of an item of engines.
	Engine Kind = "Engine"
	// Model is the kind of an item of models.
	Model Kind = "InferenceModel"
)

// resource returns the kind's name in the paths of the API.
func (k Kind) resource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: Group, Version: Version, Resource: strings.ToLower(string(k)) + "s"}
}

// Object is one custom resource.
type Object struct {
	Kind Kind
	// APIVersion is "sluice.dev/v1alpha1". With Kind, Name and UID it makes an owner reference.
	APIVersion, Name, Namespace, UID string
	// Generation grows with each change of the spec.
	Generation int64
	// Spec is the spec as a JSON object. It is {} if there is none.
	Spec []byte
	// Accepted is the spec that a gateway accepted last, as the status tells it, in the form of
	// Spec. It is empty if no spec was accepted yet.
	Accepted []byte
	// Deleting is true if the object was deleted. It disappears when its finalizers are removed.
	Deleting bool
}

// Status is the status to write to one object.
type Status struct {
	Kind Kind
	Name string
	// Generation is the generation of the spec that the status belongs to.
	Generation int64
	// Phase of an InferenceModel is Pending, Starting, Ready, Draining, Failed or Idle. Empty means
	// unknown. An Engine has no phase.
	Phase string
	// Replicas counts the existing replicas, Ready the ready ones, Desired the wanted ones. They
	// are 0 for an Engine.
	Replicas, Ready, Desired int
	// Selector is the label selector of the pods of an InferenceModel. Empty means that it has
	// none.
	Selector string
	// Accepted is true if the spec is valid and in use. Otherwise Message tells why not.
	Accepted bool
	// Message tells operators why the object is not accepted or what its replicas wait for.
	Message string
	// InForce is the spec that is in force: this one, or the last one that was accepted. It is
	// stored in the status for gateways that start later. Empty leaves what is stored.
	InForce []byte
}

// Config is the configuration of a Watcher.
type Config struct {
	// Access is the access to the cluster.
	kubernetes.Access
	// Namespace is the namespace of the objects. Empty means the default of Access.
	Namespace string
	// IsLeader reports whether this gateway may write. It is called before each write. Nil means it
	// may not.
	IsLeader func() bool
	// OnChange gets all objects, sorted by kind and name: after the first list, and whenever a
	// spec, a generation or a deletion differs. Calls do not overlap. OnChange may keep the list.
	OnChange func([]Object)
	// Log receives errors when they appear and disappear. Nil means no log.
	Log *zap.Logger
}

// Delays and limits. They bound the work for a burst of changes and the calls during an outage.
const (
	// from a change until it is handled, so that a burst is handled once
	settleDelay      = 100 * time.Millisecond
	minWriteInterval = time.Second     // between two writes of one object
	minRetryDelay    = time.Second     // before the first retry of a failed call
	maxRetryDelay    = 5 * time.Second // the longest delay between retries
	// from a write of which the API has not kept all fields until they are written again
	droppedRetryDelay = 5 * time.Minute
	// for one write: an admission webhook may take up to 30 s, and only the API's answer names it
	callTimeout = 35 * time.Second
	// Limits of writes per second and of writes in a burst.
	writeRate, writeBurst = 50, 100
)

// Watcher watches the objects and writes their status.
type Watcher struct {
	config Config
	// engines and models hold the objects as last read.
	engines, models *store
	// changed wakes notifyLoop, writeSignal wakes the writer. Their capacity is 1.
	changed, writeSignal chan struct{}

	mu sync.Mutex
	// statuses is the argument of the last Report. Guarded by mu.
	statuses map[Kind]map[string]Status
	// released holds the UIDs of deleted models whose finalizer may be removed. A later model of
	// the same name has another UID. Guarded by mu.
	released map[types.UID]bool
	// errors holds the current errors by subject. Guarded by mu.
	errors map[string]string
}

// New returns a Watcher. It starts nothing.
func New(config Config) *Watcher {
	config.Log = cmp.Or(config.Log, zap.NewNop())
	w := &Watcher{config: config, changed: make(chan struct{}, 1), writeSignal: make(chan struct{}, 1),
		released: map[types.UID]bool{}, errors: map[string]string{}}
	w.engines, w.models = &store{kind: Engine, onChange: w.onStoreChange}, &store{kind: Model, onChange: w.onStoreChange}
	return w
}

// Run watches and writes until ctx ends. It retries for ever. Errors tells while the API is
// unreachable or the resources are not installed.
func (w *Watcher) Run(ctx context.Context) error {
	// Errors has the failed calls, so client-go does not log them.
	ctx = klog.NewContext(ctx, klog.New(nil))
	api, closeIdle := w.connect(ctx)
	if api == nil {
		return nil
	}
	defer closeIdle()
	group, ctx := errgroup.WithContext(ctx)
	for _, s := range []*store{w.engines, w.models} {
		group.Go(func() error { w.watchKind(ctx, api, s); return nil })
	}
	group.Go(func() error { w.notifyLoop(ctx); return nil })
	group.Go(func() error {
		(&writer{Watcher: w, api: api, attempts: map[types.UID]writeAttempt{}}).run(ctx)
		return nil
	})
	return group.Wait()
}

// objectClient returns the client for the objects of a kind in the watched namespace.
type objectClient func(Kind) dynamic.ResourceInterface

// connect retries until the kubeconfig can be read, because it may be created after the gateway has
// started. It returns nil when ctx ends.
func (w *Watcher) connect(ctx context.Context) (objectClient, func()) {
	for {
		api, closeIdle, err := w.newClient()
		if err == nil {
			w.setError("access", "")
			return api, closeIdle
		}
		w.setError("access", err.Error())
		select {
		case <-ctx.Done():
			return nil, nil
		case <-time.After(maxRetryDelay):
		}
	}
}

// newClient returns a client and the function that closes its idle connections. It makes no calls.
func (w *Watcher) newClient() (objectClient, func(), error) {
	config, namespace, err := w.config.Connect()
	if err != nil {
		return nil, nil, err
	}
	namespace = cmp.Or(w.config.Namespace, namespace)
	config.QPS, config.Burst = writeRate, writeBurst
	config.WarningHandlerWithContext = rest.NoWarnings{}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, nil, fmt.Errorf("client of custom resources: %w", err)
	}
	objects, err := dynamic.NewForConfigAndClient(config, client)
	if err != nil {
		return nil, nil, fmt.Errorf("client of custom resources: %w", err)
	}
	return func(k Kind) dynamic.ResourceInterface { return objects.Resource(k.resource()).Namespace(namespace) },
		func() { utilnet.CloseIdleConnectionsFor(client.Transport) }, nil
}

// Errors returns the current errors in one line, or "".
func (w *Watcher) Errors() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var lines []string
	for _, about := range slices.Sorted(maps.Keys(w.errors)) {
		lines = append(lines, w.errors[about])
	}
	return strings.Join(slices.Compact(lines), "; ")
}

// setError sets the current error of a subject. An empty text removes it.
func (w *Watcher) setError(about, text string) {
	w.mu.Lock()
	before := w.errors[about]
	if text == "" {
		delete(w.errors, about)
	} else {
		w.errors[about] = text
	}
	w.mu.Unlock()
	switch text {
	case before:
	case "":
		w.config.Log.Info("custom resources recovered", zap.String("about", about))
	default:
		w.config.Log.Warn("custom resources failed", zap.String("about", about), zap.String("problem", text))
	}
}

// Report replaces the statuses of all objects. The leader writes the differences soon, at most once
// per second and object. An object that is missing in the list keeps its status. Report does not
// block.
func (w *Watcher) Report(statuses []Status) {
	all := map[Kind]map[string]Status{Engine: {}, Model: {}}
	for _, s := range statuses {
		if byName, ok := all[s.Kind]; ok {
			byName[s.Name] = s
		}
	}
	w.mu.Lock()
	w.statuses = all
	w.mu.Unlock()
	signal(w.writeSignal)
}

// ReleaseFinalizers names the deleted InferenceModels of which nothing is left. The leader removes
// their finalizer. A name of a model that is not being deleted has no effect. ReleaseFinalizers
// does not block.
func (w *Watcher) ReleaseFinalizers(gone []string) {
	for _, name := range gone {
		entry, ok := w.models.get(name)
		if !ok || !entry.Deleting {
			continue
		}
		w.mu.Lock()
		w.released[entry.raw.GetUID()] = true
		w.mu.Unlock()
	}
	signal(w.writeSignal)
}

// onStoreChange is called after each change of a store.
func (w *Watcher) onStoreChange() {
	signal(w.changed)
	signal(w.writeSignal)
}

// signal adds a token to c unless c is full.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// notifyLoop calls OnChange whenever the objects differ, until ctx ends.
func (w *Watcher) notifyLoop(ctx context.Context) {
	var last []Object
	for told := false; waitForSignal(ctx, w.changed); {
		engines, ok := w.engines.all()
		models, ok2 := w.models.all()
		now := slices.Concat(engines, models)
		if !ok || !ok2 || told && slices.EqualFunc(last, now, isSameObject) {
			continue
		}
		told, last = true, now
		w.config.OnChange(slices.Clone(now))
	}
}

// waitForSignal waits for a signal and then for settleDelay, so that a burst is handled once. It
// returns false if ctx ended.
func waitForSignal(ctx context.Context, c <-chan struct{}) bool {
	select {
	case <-ctx.Done():
		return false
	case <-c:
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(settleDelay):
		return true
	}
}

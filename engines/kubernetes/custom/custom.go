// Package custom reads the custom resources Engine and InferenceModel (sluice.dev/v1alpha1) of one namespace and writes their status.
//
// A Watcher hands over the whole list of objects whenever it differs, so that nothing depends on a single event. What an object's spec means, and
// whether it is sound, is not its matter: the spec goes on as JSON, with the same fields as an item of engines or models in the file. Of
// several gateways all read and only the leader writes: status, and the finalizer that holds a deleted model until its streams have ended.
package custom

import (
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

// What the resources are called in the API.
const (
	// Group of the resources.
	Group = "sluice.dev"
	// Version of the group that is read and written.
	Version = "v1alpha1"
	// Finalizer keeps an InferenceModel that is deleted until Release says that nothing of it is left.
	Finalizer = "sluice.dev/drain"
)

// Kind is a kind of resource.
type Kind string

// The kinds.
const (
	// Engine is an item of engines.
	Engine Kind = "Engine"
	// Model is an item of models.
	Model Kind = "InferenceModel"
)

// resource is the kind as it stands in the API's paths.
func (k Kind) resource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: Group, Version: Version, Resource: strings.ToLower(string(k)) + "s"}
}

// Object is one custom resource.
type Object struct {
	Kind Kind
	// APIVersion is sluice.dev/v1alpha1; with Kind, Name and UID it makes an owner reference.
	APIVersion, Name, Namespace, UID string
	// Generation grows with every change of the spec.
	Generation int64
	// Spec is the spec as JSON, an object; {} when there is none.
	Spec []byte
	// Deleting tells that somebody has deleted the object; it is gone when its finalizers are.
	Deleting bool
}

// Status is what is true of one object.
type Status struct {
	Kind Kind
	Name string
	// Generation of the spec that this was made of.
	Generation int64
	// Phase of an InferenceModel: Pending, Starting, Ready, Draining, Failed or Idle. Empty: not known. Engines have none.
	Phase string
	// Replicas that there are, those of them that serve, and how many there should be. Engines have none.
	Replicas, Ready, Desired int
	// Accepted tells that the spec is sound and in force; when it is not, Message says why.
	Accepted bool
	// Message for people: why the object is not accepted, or what its replicas wait for.
	Message string
}

// Config is what a Watcher needs.
type Config struct {
	// Access to the cluster.
	kubernetes.Access
	// Namespace of the objects. Empty: the one that the access means.
	Namespace string
	// Leads tells whether this gateway is the one that writes; it is asked before every write. nil: it never is.
	IsLeader func() bool
	// Changed gets all objects, sorted by kind and name: when they have been read for the first time, and whenever a spec, a generation
	// or a deletion differs. It is never called twice at once; the next call waits for its return. It keeps the list.
	OnChange func([]Object)
	// Log gets problems as they come and go. nil: nobody does.
	Log *zap.Logger
}

// Pauses. The API answers watches at once; these bound how often a burst is looked at, and what an outage costs.
const (
	settleDelay      = 100 * time.Millisecond // from a change until it is looked at, so that a burst is one change
	minWriteInterval = time.Second            // between two writes of one object
	minRetryDelay    = time.Second            // until the first new try after an API call failed
	maxRetryDelay    = 5 * time.Second        // between tries in a long outage
	callTimeout      = 10 * time.Second       // for one write
	// Writes a second, and how many may come at once. An installation with more models takes a little longer.
	writeRate, writeBurst = 50, 100
)

// Watcher reads the objects and writes their status.
type Watcher struct {
	config Config
	// engines and models are what the API told last.
	engines, models *store
	// news and work each hold one signal: something was read, something may have to be written.
	changed, writeSignal chan struct{}

	mu sync.Mutex
	// statuses is what Report was given last.
	statuses map[Kind]map[string]Status
	// released are deleted models of which nothing is left, by UID: a later model of the same name is another one.
	released map[types.UID]bool
	// problems by what they are about; without an entry all is well.
	errors map[string]string
}

// New makes a Watcher, which does nothing before Run.
func New(config Config) *Watcher {
	if config.Log == nil {
		config.Log = zap.NewNop()
	}
	w := &Watcher{config: config, changed: make(chan struct{}, 1), writeSignal: make(chan struct{}, 1), released: map[types.UID]bool{}, errors: map[string]string{}}
	w.engines, w.models = &store{kind: Engine, onChange: w.onStoreChange}, &store{kind: Model, onChange: w.onStoreChange}
	return w
}

// Run reads and writes until ctx ends. Nothing is a reason to give up: while the API is away, or the resources are not installed, Problem says
// so and it tries again.
func (w *Watcher) Run(ctx context.Context) error {
	ctx = klog.NewContext(ctx, klog.New(nil)) // client-go tells of each failed try; Problem has them
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

// api is the objects of one namespace.
type objectClient func(Kind) dynamic.ResourceInterface

// connect waits until the access can be read: a kubeconfig may come later than we do. It returns nil when ctx has ended.
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

// open makes a client. It asks nobody.
func (w *Watcher) newClient() (objectClient, func(), error) {
	config, namespace, err := w.config.Connect()
	if err != nil {
		return nil, nil, err
	}
	if w.config.Namespace != "" {
		namespace = w.config.Namespace
	}
	config.QPS, config.Burst = writeRate, writeBurst
	config.WarningHandlerWithContext = rest.NoWarnings{}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, nil, fmt.Errorf("custom: %w", err)
	}
	objects, err := dynamic.NewForConfigAndClient(config, client)
	if err != nil {
		return nil, nil, fmt.Errorf("custom: %w", err)
	}
	return func(k Kind) dynamic.ResourceInterface { return objects.Resource(k.resource()).Namespace(namespace) },
		func() { utilnet.CloseIdleConnectionsFor(client.Transport) }, nil
}

// Problem says what is wrong now, in one line for people; empty when all is well.
func (w *Watcher) Errors() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var lines []string
	for _, about := range slices.Sorted(maps.Keys(w.errors)) {
		lines = append(lines, w.errors[about])
	}
	return strings.Join(slices.Compact(lines), "; ")
}

// problem sets what is wrong about one thing, or with an empty text that nothing is.
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
		w.config.Log.Info("custom resources: all is well again", zap.String("about", about))
	default:
		w.config.Log.Warn("custom resources", zap.String("about", about), zap.String("problem", text))
	}
}

// Report says what is true of all objects now, in place of what was said before. The leader writes what differs, soon, and at most once a second for
// an object. An object that is not in the list keeps the status that it has. It never blocks.
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

// Release names InferenceModels that are being deleted and of which nothing is left, those of which there never was anything included. The leader
// takes the finalizer off them. A name that is not being deleted has no effect. It never blocks.
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

// read is called when something was read.
func (w *Watcher) onStoreChange() {
	signal(w.changed)
	signal(w.writeSignal)
}

// signal leaves a signal unless one is there.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// tell hands the objects on whenever they differ.
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

// pause waits for a signal and then for what comes with it. It returns false when ctx has ended.
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

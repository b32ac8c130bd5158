package kubernetes

import (
	"cmp"
	"reflect"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/engines"
)

// Model is a model to run: Desired pods of one engine version.
type Model struct {
	// Model is reported to the fleet unchanged. Its Desired is the number of replicas.
	engines.Model
	// Version tells how to start and probe the engine, and its image.
	Version engines.Version
	// Launch holds the values for the command template. The launcher sets Host, Port, GPUs and
	// Sluice.
	Launch engines.Launch
	// Env is added to the engine's environment and takes precedence. $(POD_IP) in a value is
	// replaced by the pod's address. Any other $ is literal.
	Env map[string]string
	// Secrets are environment variables with values from Secrets of the namespace. They take
	// precedence over Env.
	Secrets map[string]SecretKey
	// Resources are the resources of one replica. CPU and memory become requests, memory and GPUs
	// become limits. Nil requests nothing.
	Resources *engines.Resources
	// GPUResource is the resource name for whole GPUs. Empty means "nvidia.com/gpu".
	GPUResource string
	// Hosts is the number of pods that a replica spreads over. Resources are those of all together.
	// Above 1 the model is a LeaderWorkerSet.
	Hosts int
	// Placement is "spread" or "pack". Empty means "spread". The scheduler treats it as a
	// preference.
	Placement string
	// Cluster is "", "context", "context/namespace" or "/namespace". Missing parts are those of the
	// launcher.
	Cluster string
	// Volumes are claims that are mounted for reading.
	Volumes []Volume
	// Weights are fetched before pods are made. Nil means that the engine fetches for itself.
	Weights *Weights
	// Patches are strategic merge patches over the template of the pods, applied in this order
	// after that of Version. Package podpatch has checked them.
	Patches []map[string]any
	// StartTimeout is how long the engine may take to become ready before it is restarted. 0 means
	// 30 minutes.
	StartTimeout time.Duration
	// DrainTimeout is how long a draining pod may take to finish its requests. 0 means
	// Config.DrainTimeout.
	DrainTimeout time.Duration
	// Frozen keeps all objects of the model as they are, because nothing says how they should be.
	// Only Name and Owner count then, and the fleet is told of the pods alone.
	Frozen bool
	// Owner is the custom resource in the home namespace that describes the model, or nil. It owns
	// the model's Deployments in the home namespace only.
	Owner *Owner
}

// SecretKey is one entry of a Secret.
type SecretKey struct{ Name, Key string }

// Volume is a PersistentVolumeClaim of the namespace, mounted for reading at Path.
type Volume struct{ Claim, Path string }

// Owner identifies an object. When it is deleted, the garbage collector deletes the Deployments it
// owns.
type Owner struct{ APIVersion, Kind, Name, UID string }

// uid returns the UID, or "" without an owner.
func (o *Owner) uid() string {
	if o == nil {
		return ""
	}
	return o.UID
}

// hasSameManifest reports whether two models have the same Deployment apart from the number of
// replicas.
func (m Model) hasSameManifest(o Model) bool {
	m.Model, o.Model = engines.Model{Name: m.Name}, engines.Model{Name: o.Name}
	return reflect.DeepEqual(m, o)
}

// location is a namespace of a cluster, identified by a context of the kubeconfig.
type location struct{ context, namespace string }

// locationOf parses Model.Cluster. Missing parts are taken from home.
func locationOf(cluster string, home location) location {
	context, namespace, _ := strings.Cut(cluster, "/")
	if context == "" || context == home.context {
		context = home.context
		namespace = cmp.Or(namespace, home.namespace)
	}
	return location{context: context, namespace: namespace}
}

// Status is the state of the launcher for the operator.
type Status struct {
	// Clusters lists the clusters in use, the home cluster first.
	Clusters []ClusterStatus
	// Faults tells, by model, why no Deployment can be rendered for the model.
	Faults map[string]string
	// Blocked tells, by model, why the cluster does not do all that the model needs, such as to
	// create its pods.
	Blocked map[string]string
}

// ClusterStatus is the state of one namespace of one cluster.
type ClusterStatus struct {
	// Context is empty for the default.
	Context string
	// Errors are the current errors, separated by "; ". Empty means none.
	Errors string
}

package kubernetes

import (
	"reflect"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/engines"
)

// Model is what the launcher keeps running: Desired pods of one engine version.
type Model struct {
	// Model is reported to the fleet as it is. Its Desired is how many replicas there shall be.
	engines.Model
	// Version is how the engine is started and probed, and in which image.
	Version engines.Version
	// Launch is what the command is rendered with. Host, Port, GPUs and Sluice are the launcher's to fill.
	Launch engines.Launch
	// Env is added to the engine's environment, and wins. $(POD_IP) in a value stands for the pod's address; any other $ is itself.
	Env map[string]string
	// Secrets are environment variables whose values Secrets of the namespace hold; they win over Env.
	Secrets map[string]SecretKey
	// Resources of one replica: processors and memory are requested, memory and GPUs are limits as well. nil: nothing is asked for.
	Resources *engines.Resources
	// GPUResource is the resource of which Resources.GPU is a whole number; empty: nvidia.com/gpu.
	GPUResource string
	// Placement says how replicas lie on hosts: "spread", which empty means, or "pack". Neither is a condition.
	Placement string
	// Cluster says where the pods are: "", "context", "context/namespace" or "/namespace". What is not said is the launcher's own.
	Cluster string
	// Volumes are claims that the engine may read.
	Volumes []Volume
	// StartTimeout is how long the engine may take from its start to its readiness before it is started anew; 0 means 10 min.
	StartTimeout time.Duration
	// DrainTimeout is how long a pod that is wanted no longer may take to finish its requests: as long as a response may take. 0 means
	// Config.DrainTimeout.
	DrainTimeout time.Duration
	// Owner is the custom resource in the home namespace that the model came from; nil: none. It owns Deployments there and nowhere else.
	Owner *Owner
}

// SecretKey is one entry of a Secret.
type SecretKey struct{ Name, Key string }

// Volume is a PersistentVolumeClaim of the namespace, mounted for reading at Path.
type Volume struct{ Claim, Path string }

// Owner is the object with which the model's Deployments go, if nobody takes them away before.
type Owner struct{ APIVersion, Kind, Name, UID string }

// uid is empty without an owner.
func (o *Owner) uid() string {
	if o == nil {
		return ""
	}
	return o.UID
}

// Load is what gateways have to do for a model.
type Load struct {
	// Running requests are at replicas, Queued ones wait.
	Running int `json:"running,omitempty"`
	Queued  int `json:"queued,omitempty"`
	// Admitted counts all that ever ran.
	Admitted uint64 `json:"admitted,omitempty"`
}

// sameManifest tells whether two models differ in nothing that their Deployments show, number apart.
func (m Model) hasSameManifest(o Model) bool {
	m.Model, o.Model = engines.Model{Name: m.Name}, engines.Model{Name: o.Name}
	return reflect.DeepEqual(m, o)
}

// place is a namespace of a cluster: what is watched, led and written as one.
type location struct{ context, namespace string }

// placeOf reads Model.Cluster; what it leaves out is as in home.
func locationOf(cluster string, home location) location {
	context, namespace, _ := strings.Cut(cluster, "/")
	if context == "" || context == home.context {
		context = home.context
		if namespace == "" {
			namespace = home.namespace
		}
	}
	return location{context: context, namespace: namespace}
}

// Status is how the launcher fares, for the operator.
type Status struct {
	// Clusters that the launcher has to do with, the home one first.
	Clusters []ClusterStatus
	// Faults says of models, by name, why no Deployment can be made of them.
	Faults map[string]string
	// Blocked says of models, by name, why they have fewer pods than they should: what the cluster refuses to make.
	Blocked map[string]string
}

// ClusterStatus is how it is with one namespace of one cluster.
type ClusterStatus struct {
	// Context and Namespace as far as they were named; empty is the default one.
	Context, Namespace string
	// Reachable tells that the API answers now.
	Reachable bool
	// Synced tells that all of its objects were read once.
	Synced bool
	// Leader is the identity of the gateway that writes; empty: not known.
	Leader string
	// Leads tells that it is this gateway.
	IsLeader bool
	// Gateways are those that are known to live, this one included.
	Gateways int
	// Problem is the last thing that went wrong and has not gone right since; empty: nothing.
	Errors string
}

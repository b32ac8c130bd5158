package config

import (
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/sluice-gateway/sluice/engines"
)

// label matches a DNS label of RFC 1123, the form of most names in Kubernetes.
var label = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// checkKubernetes checks the section kubernetes and makes its kubeconfig absolute.
func (k *checker) checkKubernetes() {
	section, at := k.config.Kubernetes, path{"kubernetes"}
	if section == nil {
		return
	}
	if section.Kubeconfig != "" {
		section.Kubeconfig = k.absolutePath(section.Kubeconfig)
	}
	const longest = 20 // the names of Deployments begin with it, before the name of the model
	if !label.MatchString(section.Name) || len(section.Name) > longest {
		k.faultf(at.field("name"), "must be lower case letters, digits and -, at most %d characters, is %s", longest, quoted(section.Name))
	}
	k.checkNamespace(at.field("namespace"), section.Namespace)
}

func (k *checker) checkNamespace(at path, name string) {
	if name != "" && k.valid(at) && !label.MatchString(name) {
		k.faultf(at, "must be the name of a namespace: lower case letters, digits and -, at most 63 characters, is %s", quoted(name))
	}
}

func (k *checker) checkKubernetesModel(at path, m *Model) {
	if k.config.Kubernetes == nil {
		k.faultf(at.field("launcher"),
			"kubernetes needs the section kubernetes at the top of the file: add kubernetes: {} to use the cluster that kubectl uses")
	}
	k.applyProfiles(at, m)
	k.rejectSet(at.field("evict"), "launcher: kubernetes, which has priority classes for that")
	if _, namespace, ok := strings.Cut(m.Cluster, "/"); ok {
		k.checkNamespace(at.field("cluster"), namespace)
	}
	k.rejectSet(at.field("env_from"), "launcher: kubernetes, whose replicas get the Secrets that secrets names")
	k.checkKubernetesGPU(at.field("resources").field("gpu"), m)
	k.checkSecrets(at.field("secrets"), m)
	version, ok := k.checkLaunchedModel(at, m)
	if ok && version.Image == "" {
		k.faultf(at.field("engine"), "engine %s has no image, so it cannot run on Kubernetes: set image in its version, or use another engine", engineTitle(m))
	}
	if ok && m.Hosts > 1 && k.valid(at.field("hosts")) {
		k.checkHosts(at.field("hosts"), m, version)
	}
}

// checkHosts checks a replica that spreads over several pods.
func (k *checker) checkHosts(at path, m *Model, version engines.Version) {
	gpus := k.config.launch(*m).GPUs
	switch {
	case !version.MultiHost.Supported():
		k.faultf(at, "engine %s cannot spread a replica over several hosts: remove hosts, or set multi_host in the engine's version", engineTitle(m))
	case gpus == 0:
		k.faultf(at, "needs resources.gpu, the GPUs of all hosts of a replica together")
	case gpus%m.Hosts != 0:
		k.faultf(at, "must divide resources.gpu, which is %d, is %d: each host gets an equal part of the GPUs", gpus, m.Hosts)
	case k.config.Kubernetes != nil && k.config.Kubernetes.Name != "" && k.config.Kubernetes.Name[0] <= '9':
		k.faultf(at, "needs a kubernetes.name that begins with a letter, because LeaderWorkerSets have Services of their name, is %s",
			quoted(k.config.Kubernetes.Name))
	}
}

// checkKubernetesGPU rejects a share of a GPU unless gpu_resource names a resource that is shared.
func (k *checker) checkKubernetesGPU(at path, m *Model) {
	if m.Resources != nil && m.Resources.GPU > 0 && m.Resources.GPU < 1 && m.GPUResource == "" && k.valid(at) {
		k.faultf(at,
			"must be a whole number with launcher: kubernetes, is %v: for a share of a GPU "+
				"name a shared resource in gpu_resource, such as nvidia.com/gpu.shared",
			m.Resources.GPU)
	}
}

// checkSecrets checks the entries of the environment that come from Secrets.
func (k *checker) checkSecrets(at path, m *Model) {
	for _, name := range slices.Sorted(maps.Keys(m.Secrets)) {
		secret, key, ok := strings.Cut(m.Secrets[name], "/")
		switch {
		case !ok || secret == "" || key == "" || strings.Contains(key, "/"):
			k.faultf(at.field(name), "must be the name of a Secret and the name of its key, as in hf/token")
		case m.Env[name] != "":
			k.faultf(at.field(name), "is also in env: remove one of them")
		}
	}
	k.checkEnv(at, m.Secrets)
}

// checkClaim checks a registry whose directory is on a volume of Kubernetes.
func (k *checker) checkClaim(at path, r *Registry) {
	if !filepath.IsAbs(r.Path) && k.valid(at.field("path")) {
		k.faultf(at.field("path"), "must be absolute with a claim, because the volume is mounted there, is %s", quoted(r.Path))
	}
	if k.valid(at.field("claim")) && !label.MatchString(r.Claim) {
		k.faultf(at.field("claim"),
			"must be the name of a PersistentVolumeClaim: lower case letters, digits and -, at most 63 characters, is %s", quoted(r.Claim))
	}
}

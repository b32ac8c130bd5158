package config

import (
	"maps"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/sluice-gateway/sluice/engines"
)

// local checks a model that is launched on this host, or on one that has joined.
func (k *checker) local(at path, m *Model) {
	for _, field := range []string{"gpu_resource", "secrets"} {
		k.noEffect(at.field(field), "launcher: local")
	}
	where, labels := at.field("cluster"), k.labels()
	if m.Cluster != "" && k.sound(where) && !slices.Contains(labels, m.Cluster) {
		k.fault(where, "is a label of no node in nodes; %s", suggestion(m.Cluster, labels))
	}
	k.launched(at, m)
}

// labels are those of all nodes.
func (k *checker) labels() []string {
	var all []string
	for _, n := range k.config.Nodes {
		all = append(all, n.Labels...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// nodes checks what is said of hosts.
func (k *checker) nodes() {
	var names []named
	for i, n := range k.config.Nodes {
		at := path{"nodes"}.item(i)
		names = append(names, named{n.Name, at.field("name")})
		k.name(at.field("name"), n.Name)
		for j, label := range n.Labels {
			k.name(at.field("labels").item(j), label)
		}
	}
	k.unique(names)
}

// control checks where hosts join.
func (k *checker) control(others ...netip.AddrPort) {
	at := path{"control"}
	if k.config.Control == "" {
		return
	}
	control, ok := k.address(at, &k.config.Control)
	for _, other := range others {
		if ok && other.IsValid() && control.Port() == other.Port() &&
			(control.Addr() == other.Addr() || control.Addr().IsUnspecified() || other.Addr().IsUnspecified()) {
			k.fault(at, "%s is taken by %s: choose another port", control, other)
			return
		}
	}
}

// label is what Kubernetes takes for the names of most things (RFC 1123).
var label = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// kubernetes checks the section of that name.
func (k *checker) kubernetes() {
	section, at := k.config.Kubernetes, path{"kubernetes"}
	if section == nil {
		return
	}
	if section.Kubeconfig != "" {
		section.Kubeconfig = k.resolve(section.Kubeconfig)
	}
	const longest = 20 // it goes before the names of models in those of Deployments
	if !label.MatchString(section.Name) || len(section.Name) > longest {
		k.fault(at.field("name"), "must be lower case letters, digits and -, at most %d", longest)
	}
	k.namespace(at.field("namespace"), section.Namespace)
}

func (k *checker) namespace(at path, name string) {
	if name != "" && k.sound(at) && !label.MatchString(name) {
		k.fault(at, "must be the name of a namespace: lower case letters, digits and -, at most 63")
	}
}

// onKubernetes checks a model that is launched on Kubernetes.
func (k *checker) onKubernetes(at path, m *Model) {
	if k.config.Kubernetes == nil {
		k.fault(at.field("launcher"), "kubernetes needs the section kubernetes at the top of the file; kubernetes: {} takes what kubectl would take")
	}
	k.noEffect(at.field("evict"), "launcher: kubernetes, which has priority classes for that")
	if _, namespace, ok := strings.Cut(m.Cluster, "/"); ok {
		k.namespace(at.field("cluster"), namespace)
	}
	if gpu := at.field("resources").field("gpu"); m.Resources != nil && m.Resources.GPU > 0 && m.Resources.GPU < 1 && m.GPUResource == "" && k.sound(gpu) {
		k.fault(gpu, "Kubernetes gives whole GPUs only; name the resource that stands for a shared one in gpu_resource, such as nvidia.com/gpu.shared")
	}
	for _, name := range slices.Sorted(maps.Keys(m.Secrets)) {
		where := at.field("secrets").field(name)
		secret, key, ok := strings.Cut(m.Secrets[name], "/")
		switch {
		case !ok || secret == "" || key == "" || strings.Contains(key, "/"):
			k.fault(where, "must be the name of a Secret and of its key, as in hf/token")
		case m.Env[name] != "":
			k.fault(where, "is in env too")
		}
	}
	k.env(at.field("secrets"), m.Secrets)
	if version, ok := k.launched(at, m); ok && version.Image == "" {
		k.fault(at.field("engine"), "engine %s names no image, so it cannot be launched on Kubernetes", title(m))
	}
}

// claim checks a directory that is on a volume of Kubernetes.
func (k *checker) claim(at path, r *Registry) {
	if !filepath.IsAbs(r.Path) && k.sound(at.field("path")) {
		k.fault(at.field("path"), "must be absolute with a claim: it is where the volume is mounted")
	}
	if k.sound(at.field("claim")) && !label.MatchString(r.Claim) {
		k.fault(at.field("claim"), "must be the name of a PersistentVolumeClaim")
	}
}

// refused checks what makes a replica unhealthy.
func (k *checker) refused(at path, m *Model) {
	where := at.field("unhealthy_on")
	if m.Launcher == engines.None || !k.sound(where) {
		return
	}
	if k.given(where) && len(m.UnhealthyOn) == 0 {
		k.fault(where, "must name at least one of connect, reset, 5xx, 503")
	}
	if !k.given(where) {
		if m.UnhealthyOn = []Failure{FailConnect, Fail5xx}; m.Launcher == engines.Upstream {
			m.UnhealthyOn = []Failure{FailConnect, FailReset, Fail5xx, Fail503}
		}
	}
}

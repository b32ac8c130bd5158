package config

import (
	"cmp"
	"slices"

	"github.com/sluice-gateway/sluice/engines/podpatch"
)

// checkProfiles checks the profiles by themselves.
func (k *checker) checkProfiles() {
	var names []named
	for i := range k.config.Profiles {
		p, at := &k.config.Profiles[i], path{"profiles"}.item(i)
		names = append(names, named{p.Name, at.field("name")})
		k.checkName(at.field("name"), p.Name)
		k.checkPod(at.field("pod"), p.Pod)
		k.checkResources(at, &Model{Resources: p.Resources})
	}
	k.checkUnique(names)
}

func (k *checker) checkPod(at path, patch map[string]any) {
	if !k.valid(at) {
		return
	}
	for _, fault := range podpatch.Check(patch) {
		where := at.below(patch, fault.Path)
		if fault.Message == "" {
			k.faultf(where, "unknown field; %s", suggest(fault.Path[len(fault.Path)-1], fault.Known))
			continue
		}
		k.faultf(where, "%s", fault.Message)
	}
}

// applyProfiles gives a model the resources of its profiles that it does not say itself, and
// collects the patches of its pods. A later profile overrides an earlier one.
func (k *checker) applyProfiles(at path, m *Model) {
	k.checkPod(at.field("pod"), m.Pod)
	own := at.field("resources")
	for i, name := range slices.Backward(m.Profiles) {
		p, ok := k.profile(at.field("profiles").item(i), name)
		if !ok {
			continue
		}
		if len(p.Pod) > 0 {
			m.PodPatches = append(m.PodPatches, p.Pod)
		}
		m.GPUResource = cmp.Or(m.GPUResource, p.GPUResource)
		if p.Resources != nil {
			m.Resources = m.Resources.withDefaults(*p.Resources, func(field string) bool { return k.isSet(own.field(field)) })
		}
	}
	slices.Reverse(m.PodPatches)
	if len(m.Pod) > 0 {
		m.PodPatches = append(m.PodPatches, m.Pod)
	}
}

// profile returns the profile of this name, which a model names at a path.
func (k *checker) profile(at path, name string) (Profile, bool) {
	var known []string
	for _, p := range k.config.Profiles {
		if p.Name == name {
			return p, true
		}
		known = append(known, p.Name)
	}
	if k.valid(at) {
		k.faultf(at, "there is no profile %s; %s", quoted(name), suggest(name, known))
	}
	return Profile{}, false
}

// withDefaults returns the resources with those of a profile where the model sets none. isSet tells
// which fields the model sets. r may be nil.
func (r *Resources) withDefaults(profile Resources, isSet func(field string) bool) *Resources {
	merged := Resources{}
	if r != nil {
		merged = *r
	}
	if !isSet("cpu") && merged.CPU == 0 {
		merged.CPU = profile.CPU
	}
	if !isSet("memory") && merged.Memory == 0 {
		merged.Memory = profile.Memory
	}
	if !isSet("gpu") && merged.GPU == 0 {
		merged.GPU = profile.GPU
	}
	return &merged
}

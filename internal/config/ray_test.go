package config

import "testing"

const onRay = "models: [{name: a, engine: sim, task: embedding, launcher: ray"

// rayCases are the cases about the section ray and models with launcher ray.
func rayCases() []ruleCase {
	const head = "ray: {address: 'http://head:8265'}\n"
	return []ruleCase{
		{"ray", "ray: {address: 'https://head:8265/', name: own, ports: 30000-30000}\n" + onRay + ", cluster: h100, resources: {gpu: 0.5, memory: 8Gi}}]", nil},
		{"ray without a model", head, nil},
		{"ray without a section", onRay + "}]", []string{
			"1: models[a].launcher: ray needs the section ray at the top of the file, such as ray: {address: http://10.0.0.1:8265}"}},
		{"ray without an address", "ray: {}", []string{"1: ray.address: required, and missing"}},
		{"address of Ray without a scheme", "ray: {address: head:8265}", []string{
			"1: ray.address: must be the URL of Ray's dashboard, such as http://10.0.0.1:8265, is head:8265"}},
		{"address of Ray with a path", "ray: {address: 'http://head:8265/api'}", []string{
			"1: ray.address: must be the URL of Ray's dashboard, such as http://10.0.0.1:8265, is http://head:8265/api"}},
		{"ports of Ray", "ray: {address: 'http://h', ports: 22-23}", []string{
			"1: ray.ports: must be a range of TCP ports from 1024 to 65535, such as 21000-21999, is 22-23"}},
		{"ports of Ray backwards", "ray: {address: 'http://h', ports: 2000-1999}", []string{
			"1: ray.ports: must be a range of TCP ports from 1024 to 65535, such as 21000-21999, is 2000-1999"}},
		{"name on Ray", "ray: {address: 'http://h', name: A}", []string{"1: ray.name: must be lower case letters, digits and -, at most 63 characters, is A"}},
		{"token of Ray", "ray: {address: 'http://h', token_env: SLUICE_NO_SUCH_TOKEN}", []string{
			"1: ray.token_env: names an environment variable that is not set or empty: set it before Sluice starts"}},
		{"fields without effect on Ray", head + onRay + ", evict: idle, placement: pack, gpu_resource: g}]", []string{
			"2: models[a].evict: has no effect with launcher: ray; remove it",
			"2: models[a].gpu_resource: has no effect with launcher: ray; remove it",
			"2: models[a].placement: has no effect with launcher: ray, because Ray picks the node; remove it"}},
		{"secrets on Ray", head + onRay + ", env_from: {variables: [HOME]}}]", []string{
			"2: models[a].env_from: has no effect with launcher: ray, because everybody who reaches Ray's dashboard can read the environment of its jobs; " +
				"set credentials in the environment of ray start on the nodes; remove it"}},
	}
}

// TestN4_RayDefaults checks what an absent field of the section means, and that a directory on the
// nodes need not exist here.
func TestN4_RayDefaults(t *testing.T) {
	t.Setenv("RAY_TOKEN", "secret")
	c := parsed(t, "ray: {address: 'http://head:8265', token_env: RAY_TOKEN}\n"+
		"registries: [{name: shared, kind: directory, path: /}]\n"+
		"models: [{name: a, engine: llama-cpp, launcher: ray, source: {registry: shared, name: no-such-directory/model.gguf}}]")
	if r := c.Ray; r.Name != "sluice" || r.FirstPort != 21000 || r.LastPort != 21999 || r.Token != "secret" {
		t.Errorf("the section is %+v", *r)
	}
	if m := c.Models[0]; !m.Launched() || m.Replicas.Max != 1 {
		t.Errorf("the model is %+v", m)
	}
}

package headers

import "testing"

// The cluster of a model, whatever the model and its group are called, leads back to the model.
func TestClusterModel(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, model := range []string{"chat", "org/a:b", "a#b", "a#", "##", "#a", "a##b:80", ""} {
		for _, group := range []string{"", "h:443", "h:443/openai", "h:443#KEY", "b"} {
			cluster := GroupCluster(model, group)
			if got, ok := ClusterModel(cluster); !ok || got != model {
				t.Errorf("%q is of model %q, %t; want %q", cluster, got, ok, model)
			}
			if other, taken := seen[cluster]; taken {
				t.Errorf("%q is the cluster of %s and of %s in %s", cluster, other, model, group)
			}
			seen[cluster] = model + " in " + group
		}
	}
	if ModelCluster("chat") != "model/chat" || GroupCluster("chat", "h:443") != "model/chat#h:443" || GroupCluster("chat", "") != ModelCluster("chat") {
		t.Errorf("%v", seen)
	}
	if model, ok := ClusterModel(ControlCluster); ok {
		t.Errorf("Sluice's own cluster is of model %q", model)
	}
}

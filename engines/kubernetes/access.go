package kubernetes

import (
	"fmt"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Access says how a cluster's API is reached.
type Access struct {
	// Kubeconfig is the path of a file in kubectl's format. Empty: $KUBECONFIG, else ~/.kube/config, else the service account of the pod that we
	// run in.
	Kubeconfig string
	// Context is one of the file's. Empty: its current one.
	Context string
}

// Connect returns how to reach the API, and the namespace that is meant when nobody names one. It reads files and asks nobody.
func (a Access) Connect() (*rest.Config, string, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = a.Kubeconfig
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: a.Context})
	config, err := loader.ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("kubernetes: %w", err)
	}
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, "", fmt.Errorf("kubernetes: %w", err)
	}
	config.UserAgent = "sluice"
	return config, namespace, nil
}

package kubernetes

import (
	"fmt"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Access tells how to reach the API of a cluster.
type Access struct {
	// Kubeconfig is the path of a kubeconfig file. Empty means $KUBECONFIG, else ~/.kube/config,
	// else the service account of the gateway's own pod.
	Kubeconfig string
	// Context is a context of the file. Empty means its current context.
	Context string
}

// Connect returns the configuration of a client and the default namespace. It reads files and makes
// no calls.
func (a Access) Connect() (*rest.Config, string, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = a.Kubeconfig
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: a.Context})
	config, err := loader.ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("kubeconfig: %w", err)
	}
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, "", fmt.Errorf("namespace in the kubeconfig: %w", err)
	}
	config.UserAgent = "sluice"
	return config, namespace, nil
}

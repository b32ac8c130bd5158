package kubetest

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Kubectl runs kubectl as the administrator and returns its output. It fails the test if kubectl
// fails.
func (c *Cluster) Kubectl(t testing.TB, args ...string) string {
	t.Helper()
	out, err := c.TryKubectl(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TryKubectl is like Kubectl but returns the error, which contains kubectl's error output.
func (c *Cluster) TryKubectl(t testing.TB, args ...string) (string, error) {
	t.Helper()
	return c.kubectl(t, "", args...)
}

// Apply passes YAML to "kubectl apply" in the namespace. It fails the test if kubectl fails.
func (c *Cluster) Apply(t testing.TB, namespace, yaml string) {
	t.Helper()
	if err := c.TryApply(t, namespace, yaml); err != nil {
		t.Fatal(err)
	}
}

// TryApply is like Apply but returns the error, which contains kubectl's error output.
func (c *Cluster) TryApply(t testing.TB, namespace, yaml string) error {
	t.Helper()
	_, err := c.kubectl(t, yaml, "apply", "--namespace", namespace, "--filename", "-")
	return err
}

func (c *Cluster) kubectl(t testing.TB, stdin string, args ...string) (string, error) {
	// The test's context has ended when cleanups run, so it is not used.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), waitLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.binary, append([]string{"kubectl"}, args...)...)
	cmd.Env = c.environment()
	cmd.Stdin = strings.NewReader(stdin)
	var out, complaint strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(complaint.String()))
	}
	return out.String(), nil
}

// Namespace creates a namespace and returns its name. It is deleted when the test ends, without
// waiting.
func (c *Cluster) Namespace(t testing.TB) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	made, err := c.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if c.api.checkAlive() != nil {
			return // A test may leave the API server stopped. The whole cluster is removed then.
		}
		ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
		defer cancel()
		if err := c.client.CoreV1().Namespaces().Delete(ctx, made.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	if err := c.waitServiceAccount(ctx, made.Name); err != nil {
		t.Fatal(err)
	}
	return made.Name
}

// waitServiceAccount waits until the namespace has its default service account, without which no
// pod can be created. The account also shows that the controllers work.
func (c *Cluster) waitServiceAccount(ctx context.Context, namespace string) error {
	return until(ctx, "the default service account of namespace "+namespace, func() error {
		for _, p := range c.control {
			if err := p.checkAlive(); err != nil {
				return err
			}
		}
		_, err := c.client.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

// User returns the path of a kubeconfig with a token of an existing service account. The token is
// valid for an hour. RBAC determines its rights.
func (c *Cluster) User(t testing.TB, namespace, serviceAccount string) string {
	t.Helper()
	accounts := c.client.CoreV1().ServiceAccounts(namespace)
	token, err := accounts.CreateToken(t.Context(), serviceAccount, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	path := c.path(fmt.Sprintf("%s.%s.kubeconfig", namespace, serviceAccount))
	if err := c.writeKubeconfig(path, namespace, token.Status.Token); err != nil {
		t.Fatal(err)
	}
	return path
}

// StopAPI kills the API server. Clients are refused until StartAPI.
func (c *Cluster) StopAPI(t testing.TB) {
	t.Helper()
	c.api.kill()
}

// StartAPI starts the API server again on the same port and waits until it is ready.
func (c *Cluster) StartAPI(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	if err := c.startAPI(ctx); err != nil {
		t.Fatal(err)
	}
}

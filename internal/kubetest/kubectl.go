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

// Kubectl runs kubectl as the admin and returns what it prints. It fails the test when kubectl fails.
func (c *Cluster) Kubectl(t testing.TB, args ...string) string {
	t.Helper()
	out, err := c.TryKubectl(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TryKubectl is Kubectl, but returns the error, which has what kubectl said.
func (c *Cluster) TryKubectl(t testing.TB, args ...string) (string, error) {
	t.Helper()
	return c.kubectl(t, "", args...)
}

// Apply gives YAML to "kubectl apply", in a namespace. It fails the test when kubectl fails.
func (c *Cluster) Apply(t testing.TB, namespace, yaml string) {
	t.Helper()
	if err := c.TryApply(t, namespace, yaml); err != nil {
		t.Fatal(err)
	}
}

// TryApply is Apply, but returns the error, which has what kubectl said.
func (c *Cluster) TryApply(t testing.TB, namespace, yaml string) error {
	t.Helper()
	_, err := c.kubectl(t, yaml, "apply", "--namespace", namespace, "--filename", "-")
	return err
}

func (c *Cluster) kubectl(t testing.TB, stdin string, args ...string) (string, error) {
	// Not the test's context: that one is over when cleanups run.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
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

// Namespace makes a namespace, which is told to go when the test ends; the test does not wait for it.
func (c *Cluster) Namespace(t testing.TB) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	made, err := c.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if c.api.alive() != nil {
			return // a test may leave it stopped: the whole cluster goes then
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := c.client.CoreV1().Namespaces().Delete(ctx, made.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	if err := c.serviceAccount(ctx, made.Name); err != nil {
		t.Fatal(err)
	}
	return made.Name
}

// serviceAccount waits until the namespace has the service account without which there are no pods. That the controllers have made it also says that
// they work.
func (c *Cluster) serviceAccount(ctx context.Context, namespace string) error {
	return until(ctx, "the default service account of namespace "+namespace, func() error {
		for _, p := range c.control {
			if err := p.alive(); err != nil {
				return err
			}
		}
		_, err := c.client.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

// User is the path of a kubeconfig with a token of a service account, which must exist, for an hour. It may do what RBAC grants to that account.
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

// StartAPI starts the API server after a StopAPI, on the same port, and waits until it is ready.
func (c *Cluster) StartAPI(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := c.startAPI(ctx); err != nil {
		t.Fatal(err)
	}
}

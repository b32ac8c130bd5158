package kubetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// command is the process that a container becomes.
type command struct {
	path string
	args []string // including the program's name
	env  []string
	dir  string
}

// anyAddress matches 0.0.0.0, ::, [::] and the empty host of a port alone, on which servers in pods
// listen.
var anyAddress = regexp.MustCompile(`\b0\.0\.0\.0\b|^::$|\[::\]|^(:[0-9]+)$`)

// prepare returns the container's command, or why the container must wait.
func (p *pod) prepare(ctx context.Context) (command, *corev1.ContainerStateWaiting) {
	image := p.container.Image
	if strings.HasPrefix(image, "missing/") {
		return command{}, &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: fmt.Sprintf("failed to pull image %q: not found", image)}
	}
	env, err := p.environment(ctx)
	if err != nil {
		return command{}, &corev1.ContainerStateWaiting{Reason: "CreateContainerConfigError", Message: err.Error()}
	}
	c := command{dir: p.dir, env: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + p.dir, "HOSTNAME=" + p.object.Name}}
	for _, v := range p.container.Env {
		c.env = append(c.env, v.Name+"="+p.withPodAddress(env[v.Name]))
	}
	for _, arg := range slices.Concat(p.container.Command, p.container.Args) {
		c.args = append(c.args, p.withPodAddress(expand(arg, env)))
	}
	if len(c.args) == 0 {
		return command{}, &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: fmt.Sprintf("there are no images here: %q needs a command", image)}
	}
	if c.path = p.node.programs[c.args[0]]; c.path == "" {
		c.path, err = exec.LookPath(c.args[0])
	}
	if err != nil {
		return command{}, &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: fmt.Sprintf("no program for image %q: %v", image, err)}
	}
	return c, nil
}

// withPodAddress replaces anyAddress by the pod's address. There is no network namespace, so a
// server that listens on 0.0.0.0 would occupy the port of every other pod.
func (p *pod) withPodAddress(text string) string { return anyAddress.ReplaceAllString(text, p.ip+"$1") }

var reference = regexp.MustCompile(`\$\$|\$\([A-Za-z_.-][A-Za-z0-9_.-]*\)`)

// expand replaces $(NAME) by the variable's value and $$ by a dollar. An unknown variable stays as
// it is.
func expand(text string, env map[string]string) string {
	return reference.ReplaceAllStringFunc(text, func(found string) string {
		if found == "$$" {
			return "$"
		}
		if value, ok := env[found[2:len(found)-1]]; ok {
			return value
		}
		return found
	})
}

// environment returns the container's variables. A variable may refer to earlier ones.
func (p *pod) environment(ctx context.Context) (map[string]string, error) {
	if len(p.container.EnvFrom) > 0 {
		return nil, errors.New("the stand-in kubelet has no envFrom")
	}
	env := map[string]string{}
	for _, v := range p.container.Env {
		value := expand(v.Value, env)
		if v.ValueFrom != nil {
			var err error
			if value, err = p.valueFrom(ctx, v.ValueFrom); err != nil {
				return nil, fmt.Errorf("%s: %w", v.Name, err)
			}
		}
		env[v.Name] = value
	}
	return env, nil
}

// valueFrom returns the value of a field of the pod or of an entry of a Secret or ConfigMap.
func (p *pod) valueFrom(ctx context.Context, source *corev1.EnvVarSource) (string, error) {
	core := p.node.cluster.client.CoreV1()
	switch {
	case source.FieldRef != nil:
		return p.field(source.FieldRef.FieldPath)
	case source.SecretKeyRef != nil:
		ref := source.SecretKeyRef
		secret, err := core.Secrets(p.object.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if value, ok := secret.Data[ref.Key]; err == nil && ok {
			return string(value), nil
		}
		return "", absent(ref.Optional, err, "key %q in secret %q", ref.Key, ref.Name)
	case source.ConfigMapKeyRef != nil:
		ref := source.ConfigMapKeyRef
		configMap, err := core.ConfigMaps(p.object.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if value, ok := configMap.Data[ref.Key]; err == nil && ok {
			return value, nil
		}
		return "", absent(ref.Optional, err, "key %q in config map %q", ref.Key, ref.Name)
	default:
		return "", errors.New("the stand-in kubelet has fieldRef, secretKeyRef and configMapKeyRef only")
	}
}

// absent returns the error for a missing entry, or nil if the entry is optional.
func absent(optional *bool, err error, what string, args ...any) error {
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if optional != nil && *optional {
		return nil
	}
	if err != nil {
		return err // The error names what was not found.
	}
	return fmt.Errorf("there is no "+what, args...)
}

// keyedField matches the path of one label or annotation.
var keyedField = regexp.MustCompile(`^metadata\.(labels|annotations)\['(.*)'\]$`)

func (p *pod) field(path string) (string, error) {
	if m := keyedField.FindStringSubmatch(path); m != nil {
		if m[1] == "labels" {
			return p.object.Labels[m[2]], nil
		}
		return p.object.Annotations[m[2]], nil
	}
	fields := map[string]string{
		"metadata.name": p.object.Name, "metadata.namespace": p.object.Namespace, "metadata.uid": string(p.object.UID),
		"spec.nodeName": p.node.Name, "spec.serviceAccountName": p.object.Spec.ServiceAccountName,
		"status.podIP": p.ip, "status.podIPs": p.ip, "status.hostIP": "127.0.0.1", "status.hostIPs": "127.0.0.1",
	}
	value, ok := fields[path]
	if !ok {
		return "", fmt.Errorf("the stand-in kubelet has no field %q", path)
	}
	return value, nil
}

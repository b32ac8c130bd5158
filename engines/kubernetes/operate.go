package kubernetes

import (
	"context"
	"fmt"
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-gateway/sluice/internal/loglines"
)

// searchedLines is how many of the last lines of a pod's log are searched.
const searchedLines = 50_000

// ScaledBy returns the identity of another gateway that decides how many pods a model has, because
// it leads in the model's namespace. It is empty if this gateway does or nobody is known to.
func (l *Launcher) ScaledBy(model string) string {
	if c := l.clusterOf(model); c != nil {
		return c.otherLeader()
	}
	return ""
}

// Restart deletes the pod of a replica. The gateways drain it, and its Deployment makes another.
func (l *Launcher) Restart(ctx context.Context, id string) error {
	c, p, err := l.podOf(id)
	if err != nil {
		return err
	}
	return ignoreNotFound(c.client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID}}))
}

// Log writes the wanted lines of the log of a replica's engine to w. The error is that of the API
// or of w.
func (l *Launcher) Log(ctx context.Context, w io.Writer, id string, q loglines.Query) error {
	c, p, err := l.podOf(id)
	if err != nil {
		return err
	}
	lines := int64(q.Tail)
	if q.Search != "" {
		lines = searchedLines
	}
	stream, err := c.client.CoreV1().Pods(p.Namespace).GetLogs(p.Name, &corev1.PodLogOptions{
		Container: engineContainer, Follow: q.Follow, TailLines: &lines,
	}).Stream(ctx)
	if err != nil {
		return fmt.Errorf("log of the pod %s: %w", p.Name, err)
	}
	defer stream.Close() //nolint:errcheck // the stream was read
	if q.Follow {
		return q.Copy(w, stream, podRedactor(p))
	}
	for _, line := range q.Last(stream, podRedactor(p)) {
		if _, err := io.WriteString(w, line); err != nil {
			return err
		}
	}
	return nil
}

func (l *Launcher) podOf(id string) (*cluster, *corev1.Pod, error) {
	for _, c := range l.allClusters() {
		for _, p := range c.pods.list(time.Now()) {
			if p.Name == id && !isLoader(p) && !isWorker(p) {
				return c, p, nil
			}
		}
	}
	return nil, nil, fmt.Errorf("the pod %s is not there any more", id)
}

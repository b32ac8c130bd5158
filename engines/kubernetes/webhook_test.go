package kubernetes

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/client-go/rest"
)

// slowWebhook answers calls of the API like one whose admission webhook takes as long as it may.
type slowWebhook struct{}

func (slowWebhook) RoundTrip(r *http.Request) (*http.Response, error) {
	const says = `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "InternalError", "code": 500,
		"message": "Internal error occurred: failed calling webhook \"policy.example.com\": context deadline exceeded"}`
	select {
	case <-r.Context().Done():
		return nil, r.Context().Err()
	case <-time.After(30 * time.Second):
	}
	return &http.Response{StatusCode: http.StatusInternalServerError, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(strings.NewReader(says)), Request: r}, nil
}

// TestAWebhookThatDoesNotAnswerIsNamed: the operator reads which admission webhook keeps a model
// from its Deployment.
func TestAWebhookThatDoesNotAnswerIsNamed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, err := newCluster(Config{}.withDefaults(), location{namespace: "n"}, &rest.Config{Transport: slowWebhook{}})
		if err != nil {
			t.Fatal(err)
		}
		m := wanted{Model: engine("m", 1)}
		if m.manifest, err = c.manifest(m.Model); err != nil {
			t.Fatal(err)
		}
		r := modelReconciler{cluster: c, model: m, deployments: []*appsv1.Deployment{}, now: time.Now()}
		err = r.execute(context.Background(), action{kind: actionCreate, deployment: m.manifest.Name, replicas: 1})
		if err == nil || !strings.Contains(err.Error(), "policy.example.com") {
			t.Error(err)
		}
	})
}

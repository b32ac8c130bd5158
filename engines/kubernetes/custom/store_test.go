package custom

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// tooOld refuses each watch as too old. It calls enough at the 20th.
type tooOld struct {
	watches int
	enough  func()
}

func (a *tooOld) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Query().Get("watch") != "" {
		if a.watches++; a.watches == 20 {
			a.enough()
		}
	}
	return nil, apierrors.NewResourceExpired("too old resource version")
}

// TestWatchesThatAreTooOldHavePauses: the API answers each watch with 410, which says that its
// version is too old. The gateway goes on with pauses, and the operator is told.
func TestWatchesThatAreTooOldHavePauses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{}))
		client, err := dynamic.NewForConfig(&rest.Config{Transport: &tooOld{enough: stop}})
		if err != nil {
			t.Fatal(err)
		}
		w := New(Config{})
		began := time.Now()
		w.watchKind(ctx, func(k Kind) dynamic.ResourceInterface { return client.Resource(k.resource()) }, w.models)
		if took := time.Since(began); took < 5*time.Second || !strings.Contains(w.Errors(), "too old") {
			t.Errorf("20 watches within %v: %s", took, w.Errors())
		}
	})
}

package kubernetes

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// TestObjectsThatMayOnlyBeListed: a gateway that may list objects and not watch them says so once,
// and not after each list anew. It is over when a watch begins.
func TestObjectsThatMayOnlyBeListed(t *testing.T) {
	var allowed atomic.Bool
	var refused atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.URL.Query().Get("watch") == "":
			w.Write([]byte(`{"kind":"JobList","apiVersion":"batch/v1","metadata":{"resourceVersion":"1"},"items":[]}`))
		case allowed.Load():
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		default:
			refused.Add(1)
			w.WriteHeader(http.StatusForbidden)
			w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`))
		}
	}))
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop() // the server waits for an open watch
	core, logs := observer.New(zap.InfoLevel)
	h := newHealth(zap.New(core))
	store := newWatchStore[*batchv1.Job](func() {})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		target := watchTarget{client: client.BatchV1().RESTClient(), resource: "jobs", namespace: "n", kind: &batchv1.Job{}}
		watchObjects(ctx, target, store, func(err error) { h.set("watch jobs", err) })
	}()
	waitUntil(t, "several refused watches", func() bool { return refused.Load() > 4 })
	if n := logs.Len(); n != 1 || !store.hasSynced() || h.problem() == "" {
		t.Errorf("%d lines, %q: %v", n, h.problem(), logs.All())
	}
	allowed.Store(true)
	waitUntil(t, "a watch", func() bool { return h.problem() == "" })
	stop()
	<-ended
	if n := logs.FilterMessage("Kubernetes operation recovered").Len(); n != 1 || logs.Len() != 2 {
		t.Errorf("%d recovered: %v", n, logs.All())
	}
}

// TestAnOldOwnWriteIsForgotten: a write that the watch has not shown for long is forgotten, however
// the object is read.
func TestAnOldOwnWriteIsForgotten(t *testing.T) {
	version := func(v string) *batchv1.Job {
		return &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "j", ResourceVersion: v}}
	}
	store := newWatchStore[*batchv1.Job](func() {})
	if err := store.Replace([]any{version("1")}, ""); err != nil {
		t.Fatal(err)
	}
	written := time.Now()
	store.recordWrite(version("2"), "1", written)
	for i, after := range []time.Duration{0, ownWriteLifetime, ownWriteLifetime + 1} {
		want := []string{"2", "2", "1"}[i]
		now := written.Add(after)
		got, all := store.get("j", now), store.list(now)
		if got.ResourceVersion != want || all[0].ResourceVersion != want {
			t.Errorf("after %v: get has version %s, list %s, want %s", after, got.ResourceVersion, all[0].ResourceVersion, want)
		}
	}
}

// TestWatchesThatAreTooOldHavePauses: the API answers each watch with 410, which says that its
// version is too old. The gateway goes on with pauses.
func TestWatchesThatAreTooOldHavePauses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const enough = 20
		ctx, stop := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{}))
		watches, began := 0, time.Now()
		source := &cache.ListWatch{
			ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
				return &batchv1.JobList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}, nil
			},
			WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) {
				if watches++; watches == enough {
					stop()
				}
				return nil, apierrors.NewResourceExpired("too old resource version")
			},
		}
		reflector := newReflector("jobs", source, &batchv1.Job{}, newWatchStore[*batchv1.Job](func() {}))
		for ctx.Err() == nil {
			_ = reflector.ListAndWatchWithContext(ctx)
		}
		if took := time.Since(began); took < (enough-1)*watchPause {
			t.Errorf("%d watches within %v", enough, took)
		}
	})
}

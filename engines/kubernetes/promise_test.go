package kubernetes

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/sluice-gateway/sluice/engines"
)

// sendRequests simulates requests to ready replicas through the gateway until ctx ends. Each lasts
// up to five seconds.
func (g *gateway) sendRequests(ctx context.Context, calls *sync.WaitGroup, sent *atomic.Int64) {
	for range 3 {
		calls.Go(func() {
			for ctx.Err() == nil {
				if ready := idsIn(g.replicas("m"), engines.Ready); len(ready) > 0 {
					pod := ready[rand.IntN(len(ready))]
					g.addRequests(pod, 1)
					sent.Add(1)
					// This may be longer than it takes to remove a pod.
					pause(ctx, time.Duration(rand.IntN(5000))*time.Millisecond)
					g.addRequests(pod, -1)
				}
				pause(ctx, time.Millisecond)
			}
		})
	}
}

func (g *gateway) addRequests(pod string, n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.requests[pod] += n
}

// The promise of the package: whatever is wanted, and however often that changes, no pod is deleted
// while a live gateway has requests on it.
func TestNoPodIsDeletedWithRequests(t *testing.T) {
	s := newTestNamespace(t, nil)
	gateways := []*gateway{s.gateway("a", nil), s.gateway("b", nil), s.gateway("c", nil)}
	to, _, err := Access{Kubeconfig: s.Kubeconfig}.Connect()
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(to)
	if err != nil {
		t.Fatal(err)
	}
	watch, err := client.CoreV1().Pods(s.namespace).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ended := map[string]bool{}
	var watching, calls sync.WaitGroup
	watching.Go(func() {
		for e := range watch.ResultChan() {
			pod, ok := e.Object.(metav1.Object)
			if !ok || pod.GetDeletionTimestamp() == nil || ended[pod.GetName()] {
				continue
			}
			ended[pod.GetName()] = true
			for i, g := range gateways {
				if n := g.requestsOn(pod.GetName()); n > 0 {
					t.Errorf("%s was deleted with %d requests of gateway %d", pod.GetName(), n, i)
				}
			}
		}
	})
	ctx, stop := context.WithCancel(t.Context())
	var sent atomic.Int64
	for _, g := range gateways {
		g.sendRequests(ctx, &calls, &sent)
	}
	want := func(desired, template int) {
		for _, g := range gateways {
			g.Set([]Model{engine("m", desired, env("TEMPLATE", fmt.Sprint(template)))})
		}
	}
	for i := range 16 {
		want(1+rand.IntN(4), i/6)
		pause(ctx, time.Duration(500+rand.IntN(1500))*time.Millisecond)
	}
	stop()
	calls.Wait()
	want(1, 2)
	gateways[0].waitReady("m", 1)
	watch.Stop()
	watching.Wait()
	t.Log(sent.Load(), "requests,", len(ended), "pods ended")
	if len(ended) < 3 {
		t.Errorf("only %d pods were deleted, want at least 3", len(ended))
	}
}

func (g *gateway) requestsOn(pod string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.requests[pod]
}

package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/weights"
)

const (
	// loaderInterval is the time between two questions of how far a loader is.
	loaderInterval = time.Second
	// podWait is how long a Job or a group may lack pods before that is a fault.
	podWait = 30 * time.Second
)

// loaderLoop asks the running loaders how far they are, until ctx ends.
func (c *cluster) loaderLoop(ctx context.Context) {
	client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for ctx.Err() == nil {
		found := map[string]weights.Progress{}
		for _, p := range c.pods.list(time.Now()) {
			if !isLoader(p) || p.Status.Phase != corev1.PodRunning || p.Status.PodIP == "" {
				continue
			}
			// A loader that does not answer has just begun or is about to end.
			if progress, err := askLoader(ctx, client, p.Status.PodIP); err == nil {
				found[p.Name] = progress
			}
		}
		c.mu.Lock()
		changed := len(found) > 0 || len(c.fetches) > 0
		c.fetches = found
		c.mu.Unlock()
		if changed {
			signal(c.observeSignal)
		}
		pause(ctx, loaderInterval)
	}
}

// askLoader returns how far the loader at an address is.
func askLoader(ctx context.Context, client *http.Client, ip string) (p weights.Progress, err error) {
	url := "http://" + net.JoinHostPort(ip, strconv.Itoa(loaderPort)) + "/progress"
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return p, err
	}
	response, err := client.Do(request)
	if err != nil {
		return p, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return p, fmt.Errorf("the loader answered %s", response.Status)
	}
	err = json.NewDecoder(http.MaxBytesReader(nil, response.Body, 1<<16)).Decode(&p)
	return p, err
}

// loaders returns the loaders of the wanted models as replicas that start. By them clients and
// operators see how far the weights are and why they cannot be fetched.
func (c *cluster) loaders(pods []*corev1.Pod) []engines.Replica {
	c.mu.Lock()
	models, fetches := c.wanted, c.fetches
	c.mu.Unlock()
	var all []engines.Replica
	for _, m := range models {
		if m.Weights == nil || m.Desired == 0 {
			continue
		}
		p := newestLoader(pods, c.jobName(*m.Weights))
		if p == nil || p.Status.Phase == corev1.PodSucceeded {
			continue
		}
		if condition, _ := loaderPodEnd(p); condition == batchv1.JobComplete {
			continue
		}
		r := engines.Replica{ID: p.Name, Model: m.Name, Launcher: engines.Kubernetes, Node: p.Spec.NodeName}
		r.State, r.Reason, r.Since = stateOf(p, containerStatus(p.Status.ContainerStatuses, roleLoader))
		if fetch, ok := fetches[p.Name]; ok && (r.State == engines.Ready || r.State == engines.Starting) {
			r.State, r.Reason = engines.Starting, fetch.String()
			r.Fetch = engines.Fetch{Done: fetch.Done, Total: fetch.Total, Rate: fetch.Rate}
		}
		if r.State == engines.Ready {
			r.State, r.Reason = engines.Starting, "fetching weights"
		}
		if r.Reason != "" {
			r.Reason = podRedactor(p).Text(r.Reason)
		}
		all = append(all, r)
	}
	return all
}

// jobsWithoutPods returns, by model, that the Job for its weights has no pod, which else would tell
// how far the weights are. The API may refuse the pods, such as under a quota. A Job has no
// condition for that, only events, which Sluice does not read.
func (c *cluster) jobsWithoutPods(now time.Time) map[string]string {
	c.mu.Lock()
	models := c.wanted
	c.mu.Unlock()
	pods, jobs := c.pods.list(now), map[string]*batchv1.Job{}
	for _, j := range c.jobs.list(now) {
		jobs[j.Name] = j
	}
	all := map[string]string{}
	for _, m := range models {
		if m.Weights == nil || m.Desired == 0 {
			continue
		}
		j := jobs[c.jobName(*m.Weights)]
		if j == nil || now.Sub(j.CreationTimestamp.Time) < podWait || newestLoader(pods, j.Name) != nil {
			continue
		}
		if end, _ := jobEnd(j); end != batchv1.JobComplete {
			all[m.Name] = fmt.Sprintf("the Job %s, which fetches its weights, has no pod; see why with kubectl describe job %s", j.Name, j.Name)
		}
	}
	return all
}

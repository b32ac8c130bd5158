package kubetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// probeInterval replaces the period of every probe, so that tests need not wait for seconds.
// Initial delays are ignored. The total time for a startup probe, which is threshold times period,
// is kept, because a start on a busy machine may take long.
const probeInterval = 200 * time.Millisecond

// probe reports whether the container has started and is ready, until ctx ends. It returns true if
// the container must be restarted, because it did not start in time or failed its liveness probe.
func (p *pod) probe(ctx context.Context, began time.Time) (sick bool) {
	c := p.container
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	client := &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	if s := c.StartupProbe; s != nil {
		deadline := began.Add(time.Duration(s.InitialDelaySeconds+s.FailureThreshold*s.PeriodSeconds) * time.Second)
		for p.sendProbe(ctx, client, s) != nil {
			if time.Now().After(deadline) {
				return ctx.Err() == nil
			}
			if !next(ctx, tick) {
				return false
			}
		}
	}
	p.report.set(func(s *state) { s.started, s.ready = true, c.ReadinessProbe == nil })
	ready, alive := &probeState{good: c.ReadinessProbe == nil}, &probeState{good: true}
	for ctx.Err() == nil {
		if alive.update(c.LivenessProbe, func() error { return p.sendProbe(ctx, client, c.LivenessProbe) }); !alive.good && ctx.Err() == nil {
			return true
		}
		if ready.update(c.ReadinessProbe, func() error { return p.sendProbe(ctx, client, c.ReadinessProbe) }) && ctx.Err() == nil {
			p.report.set(func(s *state) { s.ready = ready.good })
		}
		next(ctx, tick)
	}
	return false
}

// next waits for the next tick. It returns false if ctx ended.
func next(ctx context.Context, tick *time.Ticker) bool {
	select {
	case <-tick.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// probeState is the result of several answers to a probe.
type probeState struct {
	good bool
	row  int32 // answers in a row that contradict good
}

// update sends one probe and returns whether good has changed. Without a probe it does nothing.
func (v *probeState) update(probe *corev1.Probe, ask func() error) (changed bool) {
	if probe == nil {
		return false
	}
	if good := ask() == nil; good == v.good {
		v.row = 0
		return false
	}
	v.row++
	need := probe.FailureThreshold
	if !v.good {
		need = probe.SuccessThreshold
	}
	if v.row < need {
		return false
	}
	v.good, v.row = !v.good, 0
	return true
}

// sendProbe sends one probe. It returns an error if the answer is bad, late or missing.
func (p *pod) sendProbe(ctx context.Context, client *http.Client, probe *corev1.Probe) error {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(probe.TimeoutSeconds)*time.Second)
	defer cancel()
	switch {
	case probe.HTTPGet != nil:
		return p.sendHTTPProbe(ctx, client, probe.HTTPGet)
	case probe.TCPSocket != nil:
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", p.address(probe.TCPSocket.Host, probe.TCPSocket.Port))
		if err != nil {
			return err
		}
		return conn.Close()
	default:
		return errors.New("the stand-in kubelet supports only HTTP and TCP probes")
	}
}

func (p *pod) sendHTTPProbe(ctx context.Context, client *http.Client, get *corev1.HTTPGetAction) error {
	url := strings.ToLower(string(get.Scheme)) + "://" + p.address(get.Host, get.Port) +
		"/" + strings.TrimPrefix(get.Path, "/")
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	for _, h := range get.HTTPHeaders {
		request.Header.Add(h.Name, h.Value)
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	response.Body.Close()
	if response.StatusCode < http.StatusOK || response.StatusCode >= http.StatusBadRequest {
		return errors.New(response.Status)
	}
	return nil
}

// address returns the target of a probe. The host defaults to the pod's address. A port may be the
// name of a port of the container.
func (p *pod) address(host string, port intstr.IntOrString) string {
	host = cmp.Or(host, p.ip)
	number := port.IntVal
	for _, named := range p.container.Ports {
		if port.Type == intstr.String && named.Name == port.StrVal {
			number = named.ContainerPort
		}
	}
	return net.JoinHostPort(host, fmt.Sprint(number))
}

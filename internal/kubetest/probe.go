package kubetest

import (
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

// probeInterval stands for the period of every probe, so that tests need not wait for whole seconds. Initial delays are left out. What a startup probe
// allows in all (its threshold times its period) is kept, because a start on a busy machine takes what it takes.
const probeInterval = 200 * time.Millisecond

// probe tells the reporter whether the container has started and is ready, until the context ends. It returns true when the container must be
// restarted: it did not start in time, or is not alive.
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
		for p.ask(ctx, client, s) != nil {
			if time.Now().After(deadline) {
				return ctx.Err() == nil
			}
			if !next(ctx, tick) {
				return false
			}
		}
	}
	p.report.set(func(s *state) { s.started, s.ready = true, c.ReadinessProbe == nil })
	ready, alive := &verdict{good: c.ReadinessProbe == nil}, &verdict{good: true}
	for ctx.Err() == nil {
		if alive.hear(c.LivenessProbe, func() error { return p.ask(ctx, client, c.LivenessProbe) }); !alive.good && ctx.Err() == nil {
			return true
		}
		if ready.hear(c.ReadinessProbe, func() error { return p.ask(ctx, client, c.ReadinessProbe) }) && ctx.Err() == nil {
			p.report.set(func(s *state) { s.ready = ready.good })
		}
		next(ctx, tick)
	}
	return false
}

func next(ctx context.Context, tick *time.Ticker) bool {
	select {
	case <-tick.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// verdict is what is believed after several answers to a probe.
type verdict struct {
	good bool
	row  int32 // answers in a row that say otherwise
}

// hear asks once, and says whether the verdict is another now. Without a probe nothing changes.
func (v *verdict) hear(probe *corev1.Probe, ask func() error) (changed bool) {
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

// ask makes one probe. It fails when the answer is bad, late or none.
func (p *pod) ask(ctx context.Context, client *http.Client, probe *corev1.Probe) error {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(probe.TimeoutSeconds)*time.Second)
	defer cancel()
	switch {
	case probe.HTTPGet != nil:
		return p.get(ctx, client, probe.HTTPGet)
	case probe.TCPSocket != nil:
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", p.address(probe.TCPSocket.Host, probe.TCPSocket.Port))
		if err != nil {
			return err
		}
		return conn.Close()
	default:
		return errors.New("the stand-in kubelet has probes by HTTP and TCP only")
	}
}

func (p *pod) get(ctx context.Context, client *http.Client, get *corev1.HTTPGetAction) error {
	url := strings.ToLower(string(get.Scheme)) + "://" + p.address(get.Host, get.Port) + "/" + strings.TrimPrefix(get.Path, "/")
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

// address is where a probe goes: to the pod, unless it names a host; to a port of the container where it has the name of one.
func (p *pod) address(host string, port intstr.IntOrString) string {
	if host == "" {
		host = p.ip
	}
	number := port.IntVal
	for _, named := range p.container.Ports {
		if port.Type == intstr.String && named.Name == port.StrVal {
			number = named.ContainerPort
		}
	}
	return net.JoinHostPort(host, fmt.Sprint(number))
}

package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"time"
)

// probeResult is what the answer to a probe means.
type probeResult int

const (
	healthy probeResult = iota
	// unhealthy: the engine answers, but not as it should.
	unhealthy
	// busy: the engine does not answer in time, or answers 503. Under load this is no fault.
	busy
	// refused: no process listens.
	refused
)

// maxProbeBody is how many bytes of an answer's body are read.
const maxProbeBody = 4 << 10

// prober probes engines by HTTP.
type prober struct{ client *http.Client }

func newProber(timeout time.Duration) *prober {
	return &prober{client: &http.Client{
		Timeout: timeout,
		// No proxy from the environment, and no connection that an engine has closed in the
		// meantime.
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// probe probes once and says what was wrong. Without a path it only connects.
func (p *prober) probe(ctx context.Context, address netip.AddrPort, path string) (probeResult, string) {
	if path == "" {
		return p.connect(ctx, address)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address.String()+path, nil)
	if err != nil {
		return unhealthy, fmt.Sprintf("probe %s: %v", path, err)
	}
	response, err := p.client.Do(request)
	if err != nil {
		return classify(err), fmt.Sprintf("probe %s: %v", path, cause(err))
	}
	defer response.Body.Close()
	_, _ = io.CopyN(io.Discard, response.Body, maxProbeBody)
	text := fmt.Sprintf("probe %s answers %d", path, response.StatusCode)
	switch {
	case response.StatusCode/100 == 2:
		return healthy, ""
	case response.StatusCode == http.StatusServiceUnavailable:
		return busy, text
	}
	return unhealthy, text
}

func (p *prober) connect(ctx context.Context, address netip.AddrPort) (probeResult, string) {
	dialer := net.Dialer{Timeout: p.client.Timeout}
	conn, err := dialer.DialContext(ctx, "tcp", address.String())
	if err != nil {
		return classify(err), fmt.Sprintf("probe: %v", cause(err))
	}
	_ = conn.Close()
	return healthy, ""
}

// classify returns what a failed probe means.
func classify(err error) probeResult {
	var slow net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return refused
	case errors.As(err, &slow) && slow.Timeout():
		return busy
	}
	return unhealthy
}

// cause returns the error without the address and the method, which change with every start.
func cause(err error) error {
	var number syscall.Errno
	var slow net.Error
	switch {
	case errors.As(err, &number):
		return number
	case errors.As(err, &slow) && slow.Timeout():
		return errors.New("no answer in time")
	}
	return err
}

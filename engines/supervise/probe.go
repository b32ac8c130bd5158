// Package supervise is what the launchers that keep servers running have in common: probes, the
// pause between two starts, and what the log of a server says. The packages engines/local and
// engines/ray use it.
package supervise

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

	"github.com/sluice-gateway/sluice/internal/lack"
)

// Result is what the answer to a probe means.
type Result int

// The results of a probe.
const (
	Healthy Result = iota
	// Unhealthy: the engine answers, but not as it should.
	Unhealthy
	// Busy: the engine does not answer in time, or answers 503. Under load this is no fault.
	Busy
	// Refused: no process listens.
	Refused
	// Untold: the engine could not be asked, because this machine lacks files, ports or memory.
	Untold
)

// MaxBadProbes is how many failed probes in a row make a replica fail.
const MaxBadProbes = 3

// MaxBusy is how long a replica may leave its probes without a good answer while it has requests
// that it does not answer either. A slow engine takes less for a prompt, and then answers.
const MaxBusy = 2 * time.Minute

// SilentTooLong says that a replica has failed because of MaxBusy, and what its last probe was.
func SilentTooLong(maxBusy time.Duration, probe string) string {
	return fmt.Sprintf("left several requests in a row without an answer, and was not healthy for %v: %s", maxBusy, probe)
}

// maxProbeBody is how many bytes of an answer's body are read.
const maxProbeBody = 4 << 10

// Prober probes engines by HTTP. Its methods may be called from any goroutine.
type Prober struct{ client *http.Client }

// NewProber returns a Prober that waits for an answer as long as timeout.
func NewProber(timeout time.Duration) *Prober {
	return &Prober{client: &http.Client{
		Timeout: timeout,
		// No proxy from the environment, and no connection that an engine has closed in the
		// meantime.
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Probe probes once and says what was wrong. Without a path it only connects.
func (p *Prober) Probe(ctx context.Context, address netip.AddrPort, path string) (Result, string) {
	if path == "" {
		return p.connect(ctx, address)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address.String()+path, nil)
	if err != nil {
		return Unhealthy, fmt.Sprintf("probe %s: %v", path, err)
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
		return Healthy, ""
	case response.StatusCode == http.StatusServiceUnavailable:
		return Busy, text
	}
	return Unhealthy, text
}

func (p *Prober) connect(ctx context.Context, address netip.AddrPort) (Result, string) {
	dialer := net.Dialer{Timeout: p.client.Timeout}
	conn, err := dialer.DialContext(ctx, "tcp", address.String())
	if err != nil {
		return classify(err), fmt.Sprintf("probe: %v", cause(err))
	}
	_ = conn.Close()
	return Healthy, ""
}

// classify returns what a failed probe means.
func classify(err error) Result {
	var slow net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return Refused
	case lack.IsOwn(err):
		return Untold
	case errors.As(err, &slow) && slow.Timeout():
		return Busy
	}
	return Unhealthy
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

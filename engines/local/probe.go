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

// answer is what an engine's answer to a probe means.
type answer int

const (
	well answer = iota
	// unwell: it answers, but something else than it should.
	unwell
	// busy: it does not answer in time, or asks for patience (503). Under load that is no fault.
	busy
	// gone: nobody listens.
	gone
)

// enough is how much of an answer's body is read, in bytes.
const enough = 4 << 10

type prober struct{ client *http.Client }

func newProber(timeout time.Duration) *prober {
	return &prober{client: &http.Client{
		Timeout: timeout,
		// No proxy from the environment, and no connection that an engine has closed in the meantime.
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// ask probes once. The text says what was wrong. Without a path it only connects.
func (p *prober) ask(ctx context.Context, address netip.AddrPort, path string) (answer, string) {
	if path == "" {
		return p.connect(ctx, address)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address.String()+path, nil)
	if err != nil {
		return unwell, fmt.Sprintf("probe %s: %v", path, err)
	}
	response, err := p.client.Do(request)
	if err != nil {
		return classify(err), fmt.Sprintf("probe %s: %v", path, cause(err))
	}
	defer response.Body.Close()
	_, _ = io.CopyN(io.Discard, response.Body, enough)
	text := fmt.Sprintf("probe %s answers %d", path, response.StatusCode)
	switch {
	case response.StatusCode/100 == 2:
		return well, ""
	case response.StatusCode == http.StatusServiceUnavailable:
		return busy, text
	}
	return unwell, text
}

func (p *prober) connect(ctx context.Context, address netip.AddrPort) (answer, string) {
	dialer := net.Dialer{Timeout: p.client.Timeout}
	conn, err := dialer.DialContext(ctx, "tcp", address.String())
	if err != nil {
		return classify(err), fmt.Sprintf("probe: %v", cause(err))
	}
	_ = conn.Close()
	return well, ""
}

func classify(err error) answer {
	var slow net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return gone
	case errors.As(err, &slow) && slow.Timeout():
		return busy
	}
	return unwell
}

// cause is the error without the address and the method, which say nothing new and change with every start.
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

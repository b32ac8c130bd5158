package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-gateway/sluice/engines"
)

// sight is the outcome of one look at a server.
type checkResult struct {
	startedAt time.Time
	address   netip.AddrPort
	models    []string
	err       error
	// busy: the server took the connection, or may have, and did not answer in time
	inconclusive bool
}

// Bounds on what a server may make us read and keep.
const (
	maxListBytes = 4 << 20
	maxModels    = 1000
	maxNameBytes = 256
)

// caller is how the server at a URL is asked.
type modelClient struct {
	*http.Client
	base      string
	transport *engines.Transport
}

// look resolves the server's name and asks for its models.
func (l *Launcher) check(ctx context.Context, c modelClient) checkResult {
	ctx, cancel := context.WithTimeout(ctx, l.Timeout)
	defer cancel()
	s := checkResult{startedAt: time.Now()}
	if s.address, s.err = resolve(ctx, c.base); s.err != nil {
		s.inconclusive = true // the name server is in trouble, not this one
		return s
	}
	s.models, s.err = c.fetchModels(ctx, baseURL(c.base)+"/v1/models")
	var status *notFound
	if errors.As(s.err, &status) {
		s.models, s.err = c.fetchModels(ctx, baseURL(c.base)+"/models")
	}
	s.inconclusive = errors.Is(s.err, errTimeout)
	return s
}

// notFound is a server that does not know the path.
type notFound struct{ code int }

func (e *notFound) Error() string { return statusError(e.code).Error() }

func (c modelClient) fetchModels(ctx context.Context, url string) ([]string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	req.Host = hostHeader(c.base)
	if c.transport != nil {
		for _, h := range c.transport.Headers {
			req.Header.Set(h.Name, h.Value)
		}
	}
	resp, err := c.Do(req)
	if err != nil {
		return nil, withoutURL(err)
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusMethodNotAllowed:
		return nil, &notFound{resp.StatusCode}
	case resp.StatusCode != http.StatusOK:
		return nil, statusError(resp.StatusCode)
	}
	return parseModels(io.LimitReader(resp.Body, maxListBytes))
}

// parse reads {"data":[{"id":…}]}, OpenAI's shape, or a bare array of such models, as some servers answer.
func parseModels(r io.Reader) ([]string, error) {
	type model struct {
		ID   string `json:"id"`
		Name string `json:"name"`
	}
	body, err := io.ReadAll(r)
	if err != nil {
		return nil, withoutURL(err)
	}
	var listed struct {
		Data   []model `json:"data"`
		Models []model `json:"models"`
	}
	if err := json.Unmarshal(body, &listed); err != nil {
		if json.Unmarshal(body, &listed.Data) != nil {
			return nil, errors.New("its list of models is not the JSON it should be")
		}
	}
	if listed.Data == nil {
		listed.Data = listed.Models
	}
	names := []string{} // not nil: the server has been seen, even if it lists nothing
	for _, m := range listed.Data {
		name := m.ID
		if name == "" {
			name = m.Name
		}
		if name != "" && len(name) <= maxNameBytes && len(names) < maxModels {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

var errTimeout = errors.New("its list of models did not come in time")

// reason is an error without the URL in front, which the replica's id already says.
func withoutURL(err error) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		if wrapped.Timeout() {
			return errTimeout
		}
		return certificateError(wrapped.Err)
	}
	return err
}

// resolve finds the address that Envoy is to connect to: Envoy's endpoints are addresses, not names. IPv4 is preferred, the
// lowest address first, so that the answer is stable while the name's addresses are.
func resolve(ctx context.Context, base string) (netip.AddrPort, error) {
	host, portText, err := net.SplitHostPort(hostPort(base))
	if err != nil {
		return netip.AddrPort{}, err
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("port %s: %w", portText, err)
	}
	addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if len(addresses) == 0 {
		return netip.AddrPort{}, errNoAddress
	}
	for i := range addresses {
		addresses[i] = addresses[i].Unmap()
	}
	slices.SortFunc(addresses, func(a, b netip.Addr) int {
		if a.Is4() != b.Is4() {
			if a.Is4() {
				return -1
			}
			return 1
		}
		return a.Compare(b)
	})
	return netip.AddrPortFrom(addresses[0], uint16(port)), nil
}

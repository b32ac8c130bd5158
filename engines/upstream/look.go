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
	"strings"
	"time"
)

// sight is the outcome of one look at a server.
type sight struct {
	began   time.Time
	address netip.AddrPort
	models  []string
	err     error
	// busy: the server took the connection, or may have, and did not answer in time
	busy bool
}

// Bounds on what a server may make us read and keep.
const (
	maxList   = 4 << 20
	maxModels = 1000
	maxName   = 256
)

// look resolves the server's name and asks for its models.
func (l *Launcher) look(ctx context.Context, base string) sight {
	ctx, cancel := context.WithTimeout(ctx, l.Timeout)
	defer cancel()
	s := sight{began: time.Now()}
	if s.address, s.err = resolve(ctx, base); s.err != nil {
		s.busy = true // the name server is in trouble, not this one
		return s
	}
	s.models, s.err = l.list(ctx, root(base)+"/v1/models")
	var status *notFound
	if errors.As(s.err, &status) {
		s.models, s.err = l.list(ctx, root(base)+"/models")
	}
	s.busy = errors.Is(s.err, errLate)
	return s
}

// notFound is a server that does not know the path.
type notFound struct{ code int }

func (e *notFound) Error() string { return statusError(e.code).Error() }

func (l *Launcher) list(ctx context.Context, url string) ([]string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := l.Client.Do(req)
	if err != nil {
		return nil, reason(err)
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusMethodNotAllowed:
		return nil, &notFound{resp.StatusCode}
	case resp.StatusCode != http.StatusOK:
		return nil, statusError(resp.StatusCode)
	}
	return parse(io.LimitReader(resp.Body, maxList))
}

// parse reads {"data":[{"id":…}]}, OpenAI's shape, or a bare array of such models, as some servers answer.
func parse(r io.Reader) ([]string, error) {
	type model struct {
		ID   string `json:"id"`
		Name string `json:"name"`
	}
	body, err := io.ReadAll(r)
	if err != nil {
		return nil, reason(err)
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
		if name != "" && len(name) <= maxName && len(names) < maxModels {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

var errLate = errors.New("its list of models did not come in time")

// reason is an error without the URL in front, which the replica's id already says.
func reason(err error) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		if wrapped.Timeout() {
			return errLate
		}
		return wrapped.Err
	}
	return err
}

// root is the URL without a trailing /v1 or slash.
func root(base string) string {
	return strings.TrimSuffix(strings.TrimSuffix(base, "/"), "/v1")
}

// hostport is the replica's id: the host as the file names it and the port.
func hostport(base string) string {
	u, err := url.Parse(base)
	if err != nil {
		return base
	}
	port := u.Port()
	if port == "" {
		port = "80"
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// resolve finds the address that Envoy is to connect to: Envoy's endpoints are addresses, not names. IPv4 is preferred, the
// lowest address first, so that the answer is stable while the name's addresses are.
func resolve(ctx context.Context, base string) (netip.AddrPort, error) {
	host, portText, err := net.SplitHostPort(hostport(base))
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
		return netip.AddrPort{}, errUnresolved
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

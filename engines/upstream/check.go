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

// checkResult is the result of one check of a server.
type checkResult struct {
	startedAt time.Time
	address   netip.AddrPort
	list      modelList
	err       error
	// inconclusive is true if err does not prove that the server is down: it may have been too busy
	// to answer in time, or its name could not be resolved.
	inconclusive bool
}

// modelList is a server's list of models. names are sorted. refused has no Server.
type modelList struct {
	names []string
	// listed are the names of all items, sorted.
	listed  []string
	refused RefusedNames
	// closeDelimited says that the server has ended the response by closing its connection.
	closeDelimited bool
}

// Limits for a server's list of models: bytes, and number of models.
const (
	maxListBytes = 4 << 20
	maxModels    = 1000
)

// modelClient fetches the list of models from one server.
type modelClient struct {
	*http.Client
	base      string
	transport *engines.Transport
}

// check resolves the server's host name and fetches its models.
func (l *Launcher) check(ctx context.Context, c modelClient) checkResult {
	ctx, cancel := context.WithTimeout(ctx, l.Timeout)
	defer cancel()
	s := checkResult{startedAt: time.Now()}
	if s.address, s.err = resolve(ctx, c.base); s.err != nil {
		s.inconclusive = true // The name server may be the cause.
		return s
	}
	s.list, s.err = c.fetchModels(ctx, baseURL(c.base)+"/v1/models")
	var status *notFound
	if errors.As(s.err, &status) {
		s.list, s.err = c.fetchModels(ctx, baseURL(c.base)+"/models")
	}
	s.inconclusive = errors.Is(s.err, errTimeout)
	return s
}

// notFound is the error of a server that does not know the path.
type notFound struct{ code int }

func (e *notFound) Error() string { return statusError(e.code).Error() }

// fetchModels returns the list of models at url.
func (c modelClient) fetchModels(ctx context.Context, url string) (list modelList, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return list, err
	}
	req.Host = hostHeader(c.base)
	c.transport.SetHeaders(req.Header)
	resp, err := c.Do(req)
	if err != nil {
		return list, withoutURL(err)
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusMethodNotAllowed:
		return list, &notFound{resp.StatusCode}
	case resp.StatusCode != http.StatusOK:
		return list, statusError(resp.StatusCode)
	}
	list, err = parseModels(io.LimitReader(resp.Body, maxListBytes))
	list.closeDelimited = engines.IsCloseDelimited(resp)
	return list, err
}

// parseModels parses {"data":[{"id":…}]}, which is OpenAI's format, or an array of such models.
// Some servers return "models" and "name" instead. An item without a name is skipped by itself and
// counted in the list's refused names.
func parseModels(r io.Reader) (list modelList, err error) {
	body, err := io.ReadAll(r)
	if err != nil {
		return list, withoutURL(err)
	}
	var listed struct {
		Data   []json.RawMessage `json:"data"`
		Models []json.RawMessage `json:"models"`
	}
	if err := json.Unmarshal(body, &listed); err != nil {
		if json.Unmarshal(body, &listed.Data) != nil {
			return list, errors.New("its list of models is not valid JSON of a known form")
		}
	}
	if listed.Data == nil {
		listed.Data = listed.Models
	}
	var names []string
	var skipped RefusedNames
	for _, item := range listed.Data {
		if name := itemName(item); name != "" {
			names = append(names, name)
		} else {
			skipped.skip(item)
		}
	}
	list = newModelList(names)
	list.refused.Malformed, list.refused.FirstMalformed = skipped.Malformed, skipped.FirstMalformed
	return list, nil
}

// itemName returns the name of the model in one item of a list: its id, or else its name. It
// returns "" for an item that has neither as a text.
func itemName(item json.RawMessage) string {
	var fields struct {
		ID   json.RawMessage `json:"id"`
		Name json.RawMessage `json:"name"`
	}
	if json.Unmarshal(item, &fields) != nil {
		return ""
	}
	for _, field := range []json.RawMessage{fields.ID, fields.Name} {
		var name string
		if json.Unmarshal(field, &name) == nil && name != "" {
			return name
		}
	}
	return ""
}

// newModelList separates the names that models can have from the others. It keeps and changes
// names. None of them is empty.
func newModelList(names []string) (list modelList) {
	slices.Sort(names)
	list.listed = slices.Compact(names)
	for _, name := range list.listed {
		switch {
		case !engines.ValidName(name):
			list.refused.refuse(name)
		case len(list.names) == maxModels:
			list.refused.Beyond++
		default:
			list.names = append(list.names, name)
		}
	}
	return list
}

var errTimeout = errors.New("its list of models did not come in time")

// withoutURL removes the URL from an error of net/http, because the replica's id contains it.
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

// resolve returns the address of the server, because Envoy's endpoints must be addresses. It
// prefers IPv4 and then the lowest address, so the result is stable while the name's addresses are.
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

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
	"time"

	"github.com/sluice-gateway/sluice/engines"
)

type checkResult struct {
	startedAt time.Time
	address   netip.AddrPort
	// addresses is how many addresses the host name has; 0 means that it was not looked up.
	addresses int
	// list is the server's list of models; nil means that the check has not found it out.
	list *modelList
	err  error
	// inconclusive is true if err does not prove that the server is down. The server may have been
	// too busy to answer in time, or its name could not be resolved.
	inconclusive bool
}

// modelList is a server's list of models. names are sorted. refused has no Server.
type modelList struct {
	names []string
	// listed are the names of all items, sorted.
	listed []string
	// askedAs are the names by which requests reach those models that have another name there than
	// in the list, by the name in the list.
	askedAs map[string]string
	refused RefusedNames
	// strict says that the server refuses requests for names that it does not list.
	strict bool
	// absent says that the server has no list of models. names are then those that it told of
	// elsewhere.
	absent bool
	// closeDelimited says that the server has ended a response by closing its connection.
	closeDelimited bool
}

// Limits for a server's list of models: bytes, and number of models.
const (
	maxListBytes = 4 << 20
	maxModels    = 1000
)

// question is what one check asks a server.
type question struct {
	*http.Client
	base      string
	transport *engines.Transport
	// address is the address of the server. If it is not valid, check looks it up.
	address netip.AddrPort
	// last is the address that the last look-up has found, among so many. It is not valid before
	// the first one.
	last      netip.AddrPort
	lastCount int
	// healthPath is the path of the server's probe. It is empty if the configuration names none.
	healthPath string
	// discover says that the server's own models are to be served.
	discover bool
}

// check resolves the server's host name, and finds out whether the server is alive and which models
// it has.
func (l *Launcher) check(ctx context.Context, q question) checkResult {
	ctx, cancel := context.WithTimeout(ctx, l.Timeout)
	defer cancel()
	s := checkResult{startedAt: time.Now()}
	if !q.address.IsValid() {
		timeout := l.Timeout
		if q.last.IsValid() {
			timeout /= 2 // the rest is for the server, if no name server answers
		}
		limited, cancel := context.WithTimeout(ctx, timeout)
		addresses, err := l.lookUp(limited, q.base)
		cancel()
		switch {
		case err == nil:
			q.address, s.addresses = addresses[0], len(addresses)
		case q.last.IsValid() && !isUnknownName(err):
			q.address, s.addresses = q.last, q.lastCount // the server need not be down with its name server
		default:
			s.err, s.inconclusive = err, true // The name server may be the cause.
			return s
		}
	}
	s.address = q.address
	s.list, s.err = q.ask(ctx)
	s.inconclusive = errors.Is(s.err, errTimeout)
	return s
}

// isUnknownName reports whether err is that of a look-up whose name does not exist.
func isUnknownName(err error) bool {
	var failed *net.DNSError
	return errors.As(err, &failed) && failed.IsNotFound
}

// ask finds out whether the server is alive and which models it has. The list shows both, unless
// the configuration names a probe.
func (q question) ask(ctx context.Context) (*modelList, error) {
	if q.healthPath != "" {
		if _, err := q.probe(ctx, q.healthPath); err != nil {
			return nil, err
		}
	}
	list, err := q.fetchList(ctx)
	switch {
	case err == nil:
		return &list, nil
	case isNotFound(err):
		return q.askWithoutList(ctx)
	case q.healthPath != "":
		return nil, nil // The probe has succeeded, and a list may come the next time.
	}
	return nil, err
}

// fetchList returns the server's list of models.
func (q question) fetchList(ctx context.Context) (modelList, error) {
	list, err := q.fetchModels(ctx, "/v1/models")
	if isNotFound(err) {
		list, err = q.fetchModels(ctx, "/models")
	}
	return list, err
}

// statusError is the error of an answer whose status is not from 200 to 299. what is the name of
// the path in the message.
type statusError struct {
	what string
	code int
}

func (e statusError) Error() string {
	message := fmt.Sprintf("%s answered %d", e.what, e.code)
	if e.code == http.StatusUnauthorized || e.code == http.StatusForbidden {
		message += ": check the key that the gateway sends"
	}
	return message
}

// isNotFound reports whether err is that of a server which does not know the path.
func isNotFound(err error) bool {
	var s statusError
	return errors.As(err, &s) && (s.code == http.StatusNotFound || s.code == http.StatusMethodNotAllowed || s.code == http.StatusNotImplemented)
}

// isRedirect reports whether err is that of an answer with a status from 300 to 399.
func isRedirect(err error) bool {
	var s statusError
	return errors.As(err, &s) && s.code >= 300 && s.code < 400
}

// get sends a GET for the path below the server's base URL, to the address that Envoy will call
// too. An answer without success is an error, which calls the path what. The caller closes the
// body.
func (q question) get(ctx context.Context, path, what string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, q.transport.URL(q.address.String(), path), nil)
	if err != nil {
		return nil, err
	}
	req.Host = hostHeader(q.base)
	q.transport.SetHeaders(req.Header)
	resp, err := q.Do(req)
	if err != nil {
		return nil, readable(withoutURL(err), q.base)
	}
	if resp.StatusCode >= 200 && resp.StatusCode < 300 {
		return resp, nil
	}
	resp.Body.Close() //nolint:errcheck // nothing of it was read
	return nil, statusError{what, resp.StatusCode}
}

func (q question) fetchModels(ctx context.Context, path string) (list modelList, err error) {
	resp, err := q.get(ctx, path, "its list of models")
	if err != nil {
		return list, err
	}
	defer resp.Body.Close()
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
	askedAs := map[string]string{}
	strict := false
	for _, item := range listed.Data {
		name := itemName(item)
		if name == "" {
			skipped.skip(item)
			continue
		}
		names = append(names, name)
		owner, parent := ownerOf(item)
		if owner == "sglang" && parent != "" {
			// SGLang lists an adapter by its own name, and knows it in requests as base:adapter. It
			// answers a request for the listed name with the base model, without an error.
			askedAs[name] = parent + ":" + name
		}
		strict = strict || owner == "vllm" || owner == "sluice-sim"
	}
	list = newModelList(names)
	list.askedAs, list.strict = askedAs, strict
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

// ownerOf returns which engine an item of a list says that it is of, and the base model of an item
// that is a LoRA adapter. A result is "" if the item does not say so.
func ownerOf(item json.RawMessage) (owner, parent string) {
	var fields struct {
		OwnedBy string `json:"owned_by"`
		Parent  string `json:"parent"`
	}
	if json.Unmarshal(item, &fields) != nil {
		return "", ""
	}
	return fields.OwnedBy, fields.Parent
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

var errTimeout = errors.New("it did not answer in time")

// withoutURL removes the URL from an error of net/http, because the replica's id contains it.
func withoutURL(err error) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		if wrapped.Timeout() {
			return errTimeout
		}
		return wrapped.Err
	}
	return err
}

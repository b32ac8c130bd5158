// Package adminclient calls the admin API of a running gateway (docs/api.md). The commands of
// cmd/sluice use it, and so does internal/gateway for a restart.
package adminclient

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/internal/headers"
)

const (
	// maxAnswer is the size of the largest answer that Call reads, in bytes.
	maxAnswer = 64 << 20
	// defaultPatience is how long a GET waits for its answer.
	defaultPatience = 30 * time.Second
)

// Client calls the admin listener of a gateway.
type Client struct {
	// Address is what the listener listens on (host:port), or the URL of a proxy before it.
	Address string
	// Token is a token of admin_auth. It is empty if the listener needs none.
	Token string
	// Patience is how long a GET may take. 0 means 30 seconds. Other methods have no limit of their
	// own, because the gateway may have done what they ask for when they give up.
	Patience time.Duration
}

// Error is an answer that is not a success.
type Error struct {
	// Status is the HTTP status.
	Status int
	// Message is what the gateway says, or else the status as a text.
	Message string
}

// Error implements error.
func (e *Error) Error() string {
	switch {
	case e.Status == http.StatusUnauthorized:
		return e.Message + " For this command set SLUICE_ADMIN_TOKEN, or --admin-token-file."
	case e.Status == http.StatusNotFound && strings.HasPrefix(e.Message, "Unknown admin URL"):
		return e.Message + " The gateway is older than this program, or what the call needs is not configured."
	}
	return e.Message
}

// UnreachableError tells that nobody answers at the address.
type UnreachableError struct {
	Address string
	Err     error
}

// Error implements error.
func (e *UnreachableError) Error() string {
	cause := e.Err
	if wrapped := new(url.Error); errors.As(cause, &wrapped) {
		cause = wrapped.Err // without the URL, which says less than the address
	}
	return fmt.Sprintf("no gateway answers at %s: %v: start it, or name another by -c FILE or --admin HOST:PORT", e.Address, cause)
}

// Unwrap returns the error of the network.
func (e *UnreachableError) Unwrap() error { return e.Err }

// SilentError tells that a gateway has not answered in time. Something may have accepted the
// connection.
type SilentError struct {
	Address string
	// Waited is how long the client has waited.
	Waited time.Duration
}

// Error implements error.
func (e *SilentError) Error() string {
	return fmt.Sprintf("the gateway at %s has not answered for %v: its process is stopped or overloaded, or a firewall drops what is sent to it: "+
		"look at its log, or name another by -c FILE or --admin HOST:PORT", e.Address, e.Waited)
}

// Call sends a request, with body as its JSON, and decodes the answer into into. A nil body means
// {} for every method other than GET. A nil into means that the answer is not read. The error is an
// *Error for an answer of the admin listener that is not a success, and an *UnreachableError
// without an answer.
// A GET that has not read its whole answer after Patience fails with a *SilentError.
func (c Client) Call(ctx context.Context, method, path string, body, into any) error {
	if method == http.MethodGet {
		patient, cancel := context.WithTimeoutCause(ctx, c.patience(), c.silence())
		defer cancel()
		ctx = patient
	}
	resp, err := c.Do(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // the body was read
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil || into == nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("what answers at %s is no admin listener of Sluice: %w", c.Address, err)
	}
	return nil
}

// Do sends a request as Call does and returns an answer that is a success. The caller closes its
// body, which may take any time. The head of the answer to a GET must come in Patience.
func (c Client) Do(ctx context.Context, method, path string, body any) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	if method == http.MethodGet {
		defer time.AfterFunc(c.patience(), func() { cancel(c.silence()) }).Stop()
	}
	resp, err := c.send(ctx, method, path, body)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	resp.Body = &answerBody{resp.Body, cancel}
	return resp, nil
}

// send sends a request and returns an answer that is a success.
func (c Client) send(ctx context.Context, method, path string, body any) (*http.Response, error) {
	req, err := c.request(ctx, method, path, body)
	if err != nil {
		return nil, err
	}
	resp, err := c.http().Do(req)
	switch {
	case ctx.Err() != nil:
		if err == nil {
			_ = resp.Body.Close()
		}
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, &UnreachableError{c.Address, err}
	case resp.StatusCode >= http.StatusMultipleChoices:
		defer resp.Body.Close()                    //nolint:errcheck // the body was read
		if resp.Header.Get(headers.Source) != "" { // the admin listener does not send it
			return nil, fmt.Errorf("the listener for clients answers at %s: name the address of `admin` by --admin HOST:PORT", c.Address)
		}
		return nil, errorOf(resp)
	}
	return resp, nil
}

// answerBody is the body of an answer. Its end also ends the context of its request.
type answerBody struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

func (b *answerBody) Close() error {
	defer b.cancel(nil)
	return b.ReadCloser.Close()
}

// patience returns how long a GET may take.
func (c Client) patience() time.Duration { return cmp.Or(c.Patience, defaultPatience) }

// silence returns the error of a GET that has taken longer.
func (c Client) silence() error { return &SilentError{c.Address, c.patience()} }

func (c Client) request(ctx context.Context, method, path string, body any) (*http.Request, error) {
	var content io.Reader
	if method != http.MethodGet {
		if body == nil {
			body = struct{}{}
		}
		text, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base()+path, content)
	if err != nil {
		return nil, fmt.Errorf("the address %q of the admin listener is neither HOST:PORT nor a URL: %w", c.Address, err)
	}
	if content != nil { // the listener refuses others
		req.Header.Set("Content-Type", "application/json")
	}
	if c.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.Token)
	}
	return req, nil
}

func (c Client) isURL() bool {
	return strings.HasPrefix(c.Address, "http://") || strings.HasPrefix(c.Address, "https://")
}

// direct calls listeners without the proxy that the environment names for the web.
var direct = func() *http.Client {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.Proxy = nil
	return &http.Client{Transport: t}
}()

// http returns the client that calls the address. A listener is near, so its token and its answers
// pass no proxy of the environment. A URL may be one of the web.
func (c Client) http() *http.Client {
	if c.isURL() {
		return http.DefaultClient
	}
	return direct
}

// base returns the URL of the listener without a slash at its end.
func (c Client) base() string {
	if c.isURL() {
		return strings.TrimSuffix(c.Address, "/")
	}
	return "http://" + DialAddress(c.Address)
}

// errorOf returns the error that an answer tells.
func errorOf(resp *http.Response) *Error {
	const maxError = 1 << 20 // a reload lists all faults of a file
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxError))
	var answer struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal(text, &answer) != nil || answer.Error.Message == "" {
		answer.Error.Message = "the admin listener answered " + resp.Status
	}
	return &Error{resp.StatusCode, answer.Error.Message}
}

// DialAddress returns the address at which this machine reaches a listener, host:port. A listener
// on all addresses is reached on loopback.
func DialAddress(listen string) string {
	host, port, err := net.SplitHostPort(listen)
	ip, errIP := netip.ParseAddr(host)
	switch {
	case err != nil:
		return listen
	case host == "" || errIP == nil && ip == netip.IPv4Unspecified():
		host = "127.0.0.1"
	case errIP == nil && ip == netip.IPv6Unspecified():
		host = "::1"
	}
	return net.JoinHostPort(host, port)
}

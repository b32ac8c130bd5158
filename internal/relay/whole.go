package relay

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/sluice-gateway/sluice/internal/openai"
)

// An engine may end its answer too early, and the answer may look whole nevertheless. Examples are
// an answer that only the end of its connection ends, a Content-Length that is too small, and a
// proxy that closes a chunked body properly. So an answer counts as whole only if its content is:
// one whole JSON document here, the proper end of a stream in sse.Tracker.

// unusableError is the error of an answer that has come and cannot be passed on. Another replica is
// tried, as for a broken connection. The client is told fault if there is none.
type unusableError struct {
	fault *openai.Error
	err   error
}

func (e *unusableError) Error() string { return e.err.Error() }
func (e *unusableError) Unwrap() error { return e.err }

// incomplete returns the error of an answer whose body broke off with err.
func incomplete(err error) error {
	return &unusableError{openai.Errorf(openai.CodeUpstreamTruncated, "The engine's answer ended before it was whole."), err}
}

// unreadable returns the error of an answer that Sluice cannot read, for this reason.
func unreadable(format string, args ...any) error {
	fault := openai.Errorf(openai.CodeUpstreamError, "The engine's answer cannot be read: "+format+".", args...)
	return &unusableError{fault, errors.New(fault.Message)}
}

// decompress replaces the body of a response that is compressed although no compression was asked
// for. An encoding other than gzip cannot be read.
func decompress(r *http.Response) error {
	encoding := strings.ToLower(strings.TrimSpace(r.Header.Get("content-encoding")))
	switch encoding {
	case "", "identity":
		return nil
	case "gzip", "x-gzip":
	default:
		return unreadable("it is encoded although no encoding was asked for")
	}
	plain, err := gzip.NewReader(r.Body)
	if err != nil {
		return incomplete(err)
	}
	r.Body = struct {
		io.Reader
		io.Closer
	}{plain, r.Body}
	r.Header.Del("content-encoding")
	return nil
}

// isEventStream reports whether the response is read as a stream of server-sent events. A stream
// that the client has asked for is read as one unless it claims to be JSON. Some engines give it
// another type, and its events tell whether it is whole.
func (c *Call) isEventStream(r *http.Response) bool {
	if r.StatusCode != http.StatusOK {
		return false
	}
	media := mediaType(r.Header)
	return media == "text/event-stream" || c.Scan.Stream && c.Scan.Endpoint.Generates() && !isJSON(media)
}

// checkAnswer checks whether a successful answer is whole and of the kind that the endpoint has.
// Text and binary data of the other endpoints have no end that could be checked.
func (c *Call) checkAnswer(media string, body []byte) error {
	endpoint := c.Scan.Endpoint
	alwaysJSON := endpoint.Generates() || endpoint.NoOutput() && (media == "" || strings.HasPrefix(media, "text/"))
	switch {
	case !isJSON(media) && !alwaysJSON, json.Valid(body):
		return nil
	case !isJSON(media) && media != "":
		return unreadable("it has the type %s and is no JSON", media)
	}
	return incomplete(fmt.Errorf("relay: %d bytes are no whole JSON document", len(body)))
}

// isJSON reports whether a media type is one of JSON.
func isJSON(media string) bool {
	return media == "application/json" || strings.HasSuffix(media, "+json")
}

// mediaType returns the media type of a response, without parameters. Empty: there is no valid one.
func mediaType(h http.Header) string {
	media, _, err := mime.ParseMediaType(h.Get("content-type"))
	if err != nil {
		return ""
	}
	return media
}

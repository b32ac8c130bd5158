package admin

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"mime"
	"net/http"

	"github.com/sluice-gateway/sluice/internal/openai"
)

const (
	// playgroundPath is where the page's playground sends a chat completion.
	playgroundPath = "/api/v1/playground"
	// playgroundKey is the request header with the key of a tenant. It is not Authorization, which
	// holds the token of the admin listener and is never passed on.
	playgroundKey = "X-Playground-Key"
	// maxPlayground is the maximum length of a chat completion from the playground, in bytes.
	maxPlayground = 1 << 20
)

// playground sends the chat completion in the body to the clients' listener of this gateway and
// streams the answer. The page cannot call that listener itself, because it is another origin.
//
// The endpoint is no open proxy. The caller chooses neither the address nor the path, only an
// operator may call it, and of the headers only the key is passed on. A request passes the same
// checks and limits as any other request of the key's tenant.
func (h *handler) playground(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxPlayground))
	if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
		writeError(w, openai.Errorf(openai.CodeRequestTooLarge, "The body is longer than %d bytes.", maxPlayground))
		return
	}
	if err != nil {
		writeError(w, openai.Errorf(openai.CodeInvalidRequest, "The body could not be read."))
		return
	}
	answer, err := h.Chat(r.Context(), body, r.Header.Get(playgroundKey))
	if err != nil {
		writeError(w, openai.Errorf(openai.CodeGatewayUnavailable, "The clients' listener of this gateway does not answer: %v.", err))
		return
	}
	defer answer.Body.Close()
	mediaType, ok := chatType(answer.Header.Get("Content-Type"))
	if !ok {
		writeError(w, openai.Errorf(openai.CodeUpstreamError, "The clients' listener answered %d without JSON or events.", answer.StatusCode))
		return
	}
	w.Header().Set("Content-Type", mediaType)
	for _, name := range []string{"X-Request-Id", "Retry-After"} {
		if v := answer.Header.Get(name); v != "" {
			w.Header().Set(name, v)
		}
	}
	w.WriteHeader(answer.StatusCode)
	stream(w, answer.Body)
}

// chatType returns the media type of a chat completion, JSON or events. Anything else is not passed
// on, because a browser would take it as a file of the page's own origin.
func chatType(contentType string) (string, bool) {
	media, _, _ := mime.ParseMediaType(contentType)
	return media, media == "application/json" || media == "text/event-stream"
}

// stream copies a body and passes each piece on at once.
func stream(w http.ResponseWriter, body io.Reader) {
	out := http.NewResponseController(w)
	piece := make([]byte, 16<<10)
	for {
		n, err := body.Read(piece)
		if n > 0 {
			if _, failed := w.Write(piece[:n]); failed != nil || out.Flush() != nil { // the page has disconnected
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// NewChat returns a func for Config.Chat that calls the listener at an address, host:port. It uses
// no proxy and follows no redirect. encrypted says that the listener wants TLS. Its certificate is
// not checked, because the address is one of this machine and the certificate names another.
func NewChat(address string, encrypted bool) func(ctx context.Context, body []byte, key string) (*http.Response, error) {
	client := &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	scheme := "http://"
	if encrypted {
		scheme = "https://"
	}
	return func(ctx context.Context, body []byte, key string) (*http.Response, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, scheme+address+"/v1/chat/completions", bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		r.Header.Set("Content-Type", "application/json")
		if key != "" {
			r.Header.Set("Authorization", "Bearer "+key)
		}
		return client.Do(r)
	}
}

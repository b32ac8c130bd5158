package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// Client is the HTTP client of the tests. It opens as many connections as there are requests.
var Client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}}

// Post sends JSON and returns the answer, whatever its status. Headers are "Name: value".
func (g *Gateway) Post(path, body string, headers ...string) *Answer {
	g.T.Helper()
	a, err := g.TryPost(context.Background(), path, body, headers...)
	if err != nil {
		g.T.Fatal(err)
	}
	return a
}

// PostLater sends JSON as Post does, and does not wait for its answer. If there is none, the test
// fails, and the channel gets an answer without a status.
func (g *Gateway) PostLater(path, body string, headers ...string) <-chan *Answer {
	answered := make(chan *Answer, 1)
	go func() {
		a, err := g.TryPost(g.T.Context(), path, body, headers...)
		if err != nil {
			g.T.Errorf("%s: %v", body, err)
			a = &Answer{Response: new(http.Response)}
		}
		answered <- a
	}()
	return answered
}

// AwaitServing waits until so many replicas of the model chat serve requests. Envoy knows a replica
// a moment after it is ready.
func (g *Gateway) AwaitServing(replicas int) {
	g.T.Helper()
	Eventually(g.T, "replicas serve", func() error {
		served := map[string]bool{}
		for i := range 4 * replicas {
			a := g.Post("/v1/chat/completions", ChatBody("chat", i%2 == 0, 2, "Hello"))
			if a.StatusCode != http.StatusOK {
				g.T.Fatal(a)
			}
			served[a.Header.Get("X-Sluice-Replica")] = true
		}
		if len(served) != replicas {
			return fmt.Errorf("served by %v", served)
		}
		return nil
	})
}

// Answer is a response with its whole body.
type Answer struct {
	*http.Response
	Content []byte // the body
}

// String returns the status and the body, for messages of tests that fail.
func (a *Answer) String() string { return fmt.Sprintf("%s: %s", a.Status, a.Content) }

// Code returns the member error.code of the body.
func (a *Answer) Code() string {
	var e struct{ Error struct{ Code string } }
	json.Unmarshal(a.Content, &e)
	return e.Error.Code
}

// TryPost is Post for requests that may fail: it returns the error.
func (g *Gateway) TryPost(ctx context.Context, path, body string, headers ...string) (*Answer, error) {
	r, err := g.Open(ctx, path, body, headers...)
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	return &Answer{r, b}, err
}

// Open sends JSON and returns the response as soon as its headers have arrived. Headers are
// "Name: value". The caller closes the body.
func (g *Gateway) Open(ctx context.Context, path, body string, headers ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.URL+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	return Client.Do(req)
}

// ChatBody returns the body of a chat request. The messages are of the user and the assistant by
// turns.
func ChatBody(model string, stream bool, tokens int, messages ...string) string {
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	list := make([]message, len(messages))
	for i, m := range messages {
		list[i] = message{[]string{"user", "assistant"}[i%2], m}
	}
	b, err := json.Marshal(map[string]any{"model": model, "stream": stream, "max_tokens": tokens, "ignore_eos": true, "messages": list})
	if err != nil {
		panic(err)
	}
	return string(b)
}

// Fetch returns the answer to a GET on Envoy's listener. Headers are "Name: value".
func (g *Gateway) Fetch(path string, headers ...string) *Answer {
	g.T.Helper()
	req, err := http.NewRequest(http.MethodGet, g.URL+path, nil)
	if err != nil {
		g.T.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	return g.Do(Client, req)
}

// Do sends a request and returns the answer, whatever its status.
func (g *Gateway) Do(c *http.Client, req *http.Request) *Answer {
	g.T.Helper()
	r, err := c.Do(req)
	if err != nil {
		g.T.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		g.T.Fatal(err)
	}
	return &Answer{r, b}
}

// ChatPath is the path of the chat API.
const ChatPath = "/v1/chat/completions"

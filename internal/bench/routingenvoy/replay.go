package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
)

// answer is what the client has seen of one request.
type answer struct {
	// first is the time from when the request was due to the first token of its answer.
	first time.Duration
	// late is how late it was sent.
	late time.Duration
	// replica is the replica that served it.
	replica string
	// prompt and cached are its tokens as the engine counts them.
	prompt, cached int
}

// replay sends each request when it is due and waits for all answers. One that is not a whole
// stream is an error.
func (g *gateway) replay(ctx context.Context, work []request) ([]answer, error) {
	answers := make([]answer, len(work))
	senders, ctx := errgroup.WithContext(ctx)
	begin := time.Now()
	for i := range work {
		due := begin.Add(work[i].at)
		select {
		case <-time.After(time.Until(due)):
		case <-ctx.Done():
			return nil, senders.Wait()
		}
		senders.Go(func() error {
			var err error
			if answers[i], err = g.send(ctx, &work[i], due); err != nil {
				return fmt.Errorf("request %d: %w", i, err)
			}
			return nil
		})
	}
	return answers, senders.Wait()
}

// send sends one request and reads its answer to the end.
func (g *gateway) send(ctx context.Context, q *request, due time.Time) (answer, error) {
	a := answer{late: time.Since(due)}
	body, err := json.Marshal(map[string]any{
		"model": "chat", "stream": true, "stream_options": map[string]bool{"include_usage": true},
		"max_tokens": q.output, "ignore_eos": true, "messages": []map[string]string{{"role": "user", "content": q.prompt}},
	})
	if err != nil {
		return a, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.url+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return a, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := g.client.Do(req)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(resp.Body)
		return a, fmt.Errorf("%s: %s", resp.Status, said)
	}
	a.replica = resp.Header.Get("X-Sluice-Replica")
	return a, a.read(resp.Body, due)
}

// read reads a stream of events to its end.
func (a *answer) read(body io.Reader, due time.Time) error {
	var last []byte
	lines := bufio.NewReader(body)
	for {
		line, err := lines.ReadBytes('\n')
		data, isEvent := bytes.CutPrefix(bytes.TrimSpace(line), []byte("data: "))
		if isEvent && a.first == 0 {
			a.first = time.Since(due)
		}
		if bytes.Equal(data, []byte("[DONE]")) {
			break
		}
		if isEvent {
			last = data
		}
		if err != nil {
			return fmt.Errorf("the stream ended without [DONE]: %w", err)
		}
	}
	var tail struct {
		Usage struct {
			Prompt  int `json:"prompt_tokens"`
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	err := json.Unmarshal(last, &tail)
	a.prompt, a.cached = tail.Usage.Prompt, tail.Usage.Details.Cached
	return err
}

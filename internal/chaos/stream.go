package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

// kind is a way in which a client uses a stream.
type kind struct {
	name, model string
	// resumable streams have a request_id. Their client resumes them when they break.
	resumable bool
}

var kinds = []kind{
	{"native", "native", false},
	{"managed", "managed", false},
	{"resumable", "managed", true},
}

// tokensOfStream is the length of a stream: 15 s at 100 ms a token.
const tokensOfStream = 150

// prompts is the number of different prompts of streams.
const prompts = 20

// texts are the right answers to all prompts, from an engine that nobody disturbs.
type texts struct{ answers [prompts]string }

// body is the request of a stream. id is its request_id, or empty.
func body(model string, prompt int, id string) string {
	if id != "" {
		id = fmt.Sprintf(`"request_id":%q,`, id)
	}
	return fmt.Sprintf(`{"model":%q,%s"stream":true,"max_tokens":%d,"min_tokens":%d,"ignore_eos":true,`+
		`"messages":[{"role":"user","content":"Conversation %d: tell me about the sea and its %d waves."}]}`,
		model, id, tokensOfStream, tokensOfStream, prompt, prompt*7)
}

// newTexts asks an engine of its own for all answers.
func newTexts(o options) (*texts, error) {
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	engine := &child{log: os.DevNull, command: []string{o.sluice, "sim", "--port", fmt.Sprint(ports[0]), "--name", "sim",
		"--model", "managed", "--token-interval", "0", "--prefill-rate", "0"}}
	if err := engine.start(); err != nil {
		return nil, err
	}
	defer engine.end(5 * time.Second)
	if err := awaitTCP(fmt.Sprint("127.0.0.1:", ports[0])); err != nil {
		return nil, err
	}
	t := new(texts)
	for i := range t.answers {
		s := stream{client: http.DefaultClient, url: fmt.Sprint("http://127.0.0.1:", ports[0]), kind: kind{model: "managed"}, prompt: i}
		if err := s.read(context.Background()); err != nil {
			return nil, fmt.Errorf("reference engine: %w", err)
		}
		t.answers[i] = s.text.String()
	}
	return t, nil
}

type stream struct {
	kind
	client *http.Client
	url    string
	prompt int
	// id is the request_id of a resumable stream.
	id string

	// text is the text so far, events the number of events and begun whether the response has
	// begun.
	text   strings.Builder
	lastID string
	begun  bool
	// resumed counts how often the client has come back.
	resumed int
}

// errRefused is the error of a stream whose response was no stream.
type errRefused struct {
	status  int
	message string
}

func (e errRefused) Error() string { return fmt.Sprint(e.status, " ", e.message) }

// read reads the stream to its end. It returns nil only for a stream that has ended with [DONE].
func (s *stream) read(ctx context.Context) error {
	err := s.readOnce(ctx, http.MethodPost, s.url+"/v1/chat/completions", body(s.model, s.prompt, s.id))
	for try := 0; err != nil && s.resumable && s.begun && ctx.Err() == nil && try < 60; try++ {
		s.resumed++
		time.Sleep(500 * time.Millisecond)
		again := s.readOnce(ctx, http.MethodGet, s.url+"/v1/streams/"+s.id, "")
		var refused errRefused
		if errors.As(again, &refused) && refused.status == http.StatusNotFound {
			return err // the stream does not exist any more
		}
		err = again
	}
	return err
}

// readOnce reads one response to its end.
func (s *stream) readOnce(ctx context.Context, method, url, content string) error {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(content))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if s.lastID != "" {
		req.Header.Set("Last-Event-ID", s.lastID)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b := new(bytes.Buffer)
		_, _ = b.ReadFrom(resp.Body)
		return errRefused{resp.StatusCode, b.String()}
	}
	s.begun = true
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		done, err := s.line(lines.Bytes())
		if done { // what is left is the end of the body; without it the connection could not be used again
			_, err = io.Copy(io.Discard, resp.Body)
			return err
		}
		if err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return errors.New("the stream has ended without [DONE]")
}

// line reads one line of the stream. done tells that it was the last.
func (s *stream) line(line []byte) (done bool, err error) {
	if id, ok := bytes.CutPrefix(line, []byte("id: ")); ok {
		s.lastID = string(id)
	}
	data, ok := bytes.CutPrefix(line, []byte("data: "))
	if !ok {
		return false, nil
	}
	if string(data) == "[DONE]" {
		return true, nil
	}
	var chunk struct {
		Error   *struct{ Code, Message string }
		Choices []struct{ Delta struct{ Content string } }
	}
	if err := json.Unmarshal(data, &chunk); err != nil {
		return false, err
	}
	if chunk.Error != nil {
		return false, errors.New(chunk.Error.Code + ": " + chunk.Error.Message)
	}
	for _, c := range chunk.Choices {
		s.text.WriteString(c.Delta.Content)
	}
	return false, nil
}

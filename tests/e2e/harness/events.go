package harness

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
)

// CheckWholeStream returns an error if the body of a streamed response is not complete.
func CheckWholeStream(body []byte) error {
	switch {
	case !bytes.HasSuffix(body, []byte("data: [DONE]\n\n")):
		return errors.New("it does not end with [DONE]")
	case !bytes.Contains(body, []byte(`"finish_reason":"`)):
		return errors.New("it has no finish_reason")
	}
	return nil
}

// Event is one server-sent event of a response, or a comment.
type Event struct{ Data, Comment string }

// ReadEvents reads a stream to its end and returns its events. If the stream breaks off, ReadEvents
// returns the events before and the error.
func ReadEvents(body io.Reader) (all []Event, err error) {
	r := bufio.NewReaderSize(body, 4<<20)
	var e Event
	for {
		line, err := r.ReadString('\n')
		switch text := strings.TrimRight(line, "\r\n"); {
		case strings.HasPrefix(text, "data: "):
			e.Data += text[len("data: "):]
		case strings.HasPrefix(text, ":"):
			e.Comment = strings.TrimSpace(text[1:])
		case text == "" && (e.Data != "" || e.Comment != ""):
			all, e = append(all, e), Event{}
		}
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return all, err
		}
	}
}

// Chunk is what the tests read of the data of an event.
type Chunk struct {
	ID, Object string
	Choices    []struct {
		Index        int
		Delta        struct{ Content, Role string }
		Text         string
		FinishReason *string `json:"finish_reason"`
	}
	Usage *struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
	}
	Error *struct {
		Code          any // engines have numbers
		Message, Type string
		Retryable     bool
		RetryAfter    int `json:"retry_after_ms"`
	}
}

// Chunk decodes the data of the event.
func (e Event) Chunk(t *testing.T) Chunk {
	t.Helper()
	var c Chunk
	if err := json.Unmarshal([]byte(e.Data), &c); err != nil {
		t.Fatalf("%q: %v", e.Data, err)
	}
	return c
}

// StreamedText returns the text of all events together, and the finish reason of the stream.
func StreamedText(t *testing.T, all []Event) (text, finish string) {
	t.Helper()
	for _, e := range all {
		if e.Data == "" || e.Data == "[DONE]" {
			continue
		}
		for _, c := range e.Chunk(t).Choices {
			text += c.Delta.Content
			if c.FinishReason != nil {
				finish = *c.FinishReason
			}
		}
	}
	return text, finish
}

// Comments returns the comments among the events. Heartbeats are comments.
func Comments(all []Event) (texts []string) {
	for _, e := range all {
		if e.Comment != "" {
			texts = append(texts, e.Comment)
		}
	}
	return texts
}

// Stream sends a request for a stream and reads the stream to its end. Headers are "Name: value".
func (g *Gateway) Stream(path, body string, headers ...string) (*http.Response, []Event) {
	g.T.Helper()
	r, err := g.Open(context.Background(), path, body, headers...)
	if err != nil {
		g.T.Fatal(err)
	}
	defer r.Body.Close()
	if r.StatusCode != 200 {
		b, _ := io.ReadAll(r.Body)
		g.T.Fatalf("%s: %s", r.Status, b)
	}
	all, err := ReadEvents(r.Body)
	if err != nil {
		g.T.Fatal(err)
	}
	return r, all
}
